"""Files that land at a steady rate, in the ways of real producers, and what they hold.

Each is written aside and renamed. Some come several at once, some stay half written for a while,
some are old: their names and times lie before those of files that are there. Knows no product.
"""

import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from batch_pipeline_tests.guarantees.soak.feeds import Feed

_MOST_AT_ONCE = 4
_BAD_SHARE = 0.1
_OLD_SHARE = 0.1
_SLOW_SHARE = 0.1
_MOST_BAD = 3
_LONG_AGO_SECONDS = 172_800


@dataclass(slots=True)
class Landed:
    """What has landed for a feed: ids of good records, and how many bad ones there were."""

    files: int = 0
    old_files: int = 0
    first_free_id: int = 1
    bad: int = 0

    @property
    def good_ids(self) -> range:
        """The ids of all good records."""
        return range(1, self.first_free_id)


@dataclass(frozen=True, slots=True)
class _Slow:
    """A file that is being written: where it is, what it will be called, what is missing."""

    unfinished: Path
    final: Path
    rest: bytes


@dataclass(slots=True)
class Arrivals:
    """The producers of some feeds; `landing` is the folder with a folder for each of them."""

    landing: Path
    feeds: Sequence[Feed]
    seed: int
    landed: dict[str, Landed] = field(default_factory=dict)
    _slow: list[_Slow] = field(default_factory=list)
    _begun: dict[str, int] = field(default_factory=dict)
    _next: dict[str, int] = field(default_factory=dict)
    _choose: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._choose = random.Random(self.seed)  # noqa: S311 - a load, no secrets
        for feed in self.feeds:
            self.landed[feed.name] = Landed()
            self._begun[feed.name] = 0
            self._next[feed.name] = self._choose.randint(1, _MOST_AT_ONCE)
            (self.landing / feed.name).mkdir(parents=True, exist_ok=True)

    @property
    def files(self) -> int:
        """How many files have landed."""
        return sum(one.files for one in self.landed.values())

    def catch_up(self, seconds: float) -> None:
        """Land what is due so many seconds after the start."""
        self._finish_slow()
        for feed in self.feeds:
            while self._begun[feed.name] + self._next[feed.name] <= seconds * feed.files_a_second:
                self._burst(feed, self._next[feed.name])
                self._next[feed.name] = self._choose.randint(1, _MOST_AT_ONCE)

    def finish(self) -> None:
        """Finish what is half written; nothing lands afterwards."""
        self._finish_slow()

    def _burst(self, feed: Feed, count: int) -> None:
        ready = [self._written(feed) for _ in range(count)]
        for one in ready:
            if one is not None:
                one[0].rename(one[1])
                self.landed[feed.name].files += 1

    def _written(self, feed: Feed) -> tuple[Path, Path] | None:
        """Write a file aside; give both names, or None if it is not finished yet."""
        landed, choose = self.landed[feed.name], self._choose
        self._begun[feed.name] += 1
        number = self._begun[feed.name]
        bad = choose.randint(1, _MOST_BAD) if choose.random() < _BAD_SHARE else 0
        content = self._content(landed, feed, bad)
        is_old = choose.random() < _OLD_SHARE
        is_slow = choose.random() < _SLOW_SHARE
        name = f"{'a-late' if is_old else 'on-time'}-{number:06d}{feed.suffix}"
        final = self.landing / feed.name / name
        unfinished = final.with_name(f".{name}.tmp" if number % 2 else f"{name}.part")
        if is_slow:
            half = len(content) // 2
            unfinished.write_bytes(content[:half])
            self._slow.append(_Slow(unfinished, final, content[half:]))
            return None
        unfinished.write_bytes(content)
        if is_old:
            landed.old_files += 1
            then = time.time() - _LONG_AGO_SECONDS
            os.utime(unfinished, (then, then))
        return unfinished, final

    def _content(self, landed: Landed, feed: Feed, bad: int) -> bytes:
        first = landed.first_free_id
        landed.first_free_id += self._choose.choice(feed.records)
        landed.bad += bad
        return feed.write(range(first, landed.first_free_id), bad)

    def _finish_slow(self) -> None:
        slow, self._slow = self._slow, []
        for one in slow:
            with one.unfinished.open("ab") as file:
                file.write(one.rest)
            one.unfinished.rename(one.final)
            self.landed[one.final.parent.name].files += 1
