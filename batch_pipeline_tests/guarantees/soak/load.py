"""The load of a soak: files that land at a steady rate, and backfills of published batches.

The records of the files are known, so that each can be found again. A file is written under a
temporary name and renamed. Some files arrive in bursts, some are half written for a while, and some
are old: their names and times are before those of other files.
"""

import gzip
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError

import psycopg

from batch_pipeline_tests.acceptance.live_dev import LiveDev

WAREHOUSE = "SOAK_WAREHOUSE_URL"  # the variable with the URL of the target database
SCHEMA = "public"
LOADED = "sales"
MALFORMED_MARKER = "torn"  # in malformed lines, and in no others
_MAX_BURST = 4  # files
_MAX_BAD = 3  # records per file
_SHARE = 0.1  # of files that have bad records, that are old, and that are slow
_OLD_SECONDS = 172_800
_MAX_PARTITIONS = 4
_PUBLISHED = """
SELECT lpad(b.first_id::text, 8, '0') || '-' || lpad(b.last_id::text, 8, '0')
FROM batch_pipeline.batch b
JOIN batch_pipeline.batch_state s ON s.batch_id = b.id
JOIN batch_pipeline.job j ON j.id = b.job_id
WHERE j.name = %s AND j.kind = 'incremental' AND s.state = 'published' ORDER BY b.first_id
"""


@dataclass(frozen=True, slots=True)
class Feed:
    """A stream whose files hold `records` records each. `files_per_second` land on average.

    `write` returns a file of ids, with bad records after some of them.
    """

    name: str
    suffix: str
    files_per_second: float
    records: range
    write: Callable[[Sequence[int], int], bytes]
    attributes: Mapping[str, Any]


def csv_file(ids: Sequence[int], bad: int) -> bytes:
    """Return csv with a header; each bad record is a truncated line."""
    lines = ["id,name,amount,note"]
    for number, uid in enumerate(ids):
        lines.append(f'{uid},"name of {uid}",{uid % 1000}.25,{_note(uid)}')
        lines += [f"{MALFORMED_MARKER}{uid}"] * (number < bad)
    return "\n".join([*lines, ""]).encode()


def jsonl_file(ids: Sequence[int], bad: int) -> bytes:
    """Return JSON lines; each bad record is a truncated line."""
    lines = []
    for number, uid in enumerate(ids):
        lines.append(json.dumps({"id": uid, "kind": f"kind {uid % 7}", "note": _note(uid)}))
        lines += [f'{{"id": {uid}, "{MALFORMED_MARKER}'] * (number < bad)
    return "\n".join([*lines, ""]).encode()


def _note(uid: int) -> str:
    """Return text that depends on the id only and does not compress well."""
    return f"{random.Random(uid).getrandbits(320):x}"  # noqa: S311 - text to fill files with


_JSONL = {"include": ["*.jsonl"], "format": "jsonl"}
_POSTGRES = {"conn": f"${WAREHOUSE}", "schema": SCHEMA}
FEEDS = (
    Feed("orders", ".csv", 0.5, range(20, 60), csv_file, {"batch": {"max_count": 20}}),
    Feed(
        *("events", ".jsonl", 0.3, range(100, 400), jsonl_file),
        {"source": _JSONL, "encoding": {"format": "parquet", "compression": "snappy"}},
    ),
    Feed(
        *("bulk", ".csv.gz", 0.4, range(50, 500)),
        lambda ids, bad: gzip.compress(csv_file(ids, bad), compresslevel=1, mtime=0),
        {"batch": {"max_weight": "64KiB", "min_weight": "32KiB", "max_wait": "15s"}},
    ),
    Feed(
        *(LOADED, ".csv", 0.3, range(20, 100), csv_file),
        {"targets": {"warehouse": {"postgres": _POSTGRES}}},
    ),
)


@dataclass(slots=True)
class Landed:
    """The files and records of a feed that have landed."""

    files: int = 0
    started_files: int = 0  # including those that are still being written
    first_free_id: int = 1
    bad: int = 0
    next_burst: int = 1

    @property
    def good_ids(self) -> range:
        return range(1, self.first_free_id)


@dataclass(slots=True)
class Arrivals:
    """The producers of some feeds. `folder` holds a landing folder for each feed."""

    folder: Path
    feeds: Sequence[Feed]
    seed: int
    landed: dict[str, Landed] = field(default_factory=dict)
    _half_written: list[tuple[Path, Path, bytes]] = field(default_factory=list)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - a load, no secrets
        for feed in self.feeds:
            self.landed[feed.name] = Landed(next_burst=self._random.randint(1, _MAX_BURST))
            (self.folder / feed.name).mkdir(parents=True, exist_ok=True)

    @property
    def files(self) -> int:
        return sum(landed.files for landed in self.landed.values())

    def catch_up(self, seconds: float) -> None:
        """Land the files that are due by some seconds after the start."""
        self.finish()
        for feed in self.feeds:
            landed = self.landed[feed.name]
            while landed.started_files + landed.next_burst <= seconds * feed.files_per_second:
                written = [self._write(feed, landed) for _ in range(landed.next_burst)]
                for unfinished, final in filter(None, written):
                    unfinished.rename(final)
                    landed.files += 1
                landed.next_burst = self._random.randint(1, _MAX_BURST)

    def finish(self) -> None:
        """Complete the files that are half written."""
        half_written, self._half_written = self._half_written, []
        for unfinished, final, rest in half_written:
            with unfinished.open("ab") as file:
                file.write(rest)
            unfinished.rename(final)
            self.landed[final.parent.name].files += 1

    def _write(self, feed: Feed, landed: Landed) -> tuple[Path, Path] | None:
        """Write a temporary file; return its path and the final one, or None if half written."""
        has_bad, is_old, is_slow = (self._random.random() < _SHARE for _ in range(3))
        bad = self._random.randint(1, _MAX_BAD) if has_bad else 0
        first = landed.first_free_id
        landed.first_free_id += self._random.choice(feed.records)
        landed.bad += bad
        landed.started_files += 1
        content = feed.write(range(first, landed.first_free_id), bad)
        name = f"{'a-late' if is_old else 'on-time'}-{landed.started_files:06d}{feed.suffix}"
        final = self.folder / feed.name / name
        is_hidden = landed.started_files % 2
        unfinished = final.with_name(f".{name}.tmp" if is_hidden else f"{name}.part")
        if is_slow:
            half = len(content) // 2
            unfinished.write_bytes(content[:half])
            self._half_written.append((unfinished, final, content[half:]))
            return None
        unfinished.write_bytes(content)
        if is_old:
            old_time = time.time() - _OLD_SECONDS
            os.utime(unfinished, (old_time, old_time))
        return unfinished, final


@dataclass(slots=True)
class Backfills:
    """Backfills of a few consecutive partitions, of one stream after the other.

    They are launched through the webserver. A launch that fails because a service is down is not
    repeated.
    """

    dev: LiveDev
    streams: Sequence[str]
    every_seconds: float
    until_seconds: float
    seed: int
    launched: int = 0
    _turn: int = 1
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - a load, no secrets

    def catch_up(self, seconds: float) -> None:
        """Launch the next backfill if it is due and the stream has published partitions."""
        if seconds < self._turn * self.every_seconds or seconds > self.until_seconds:
            return
        stream = self.streams[self._turn % len(self.streams)]
        self._turn += 1
        keys: list[str] = []
        with suppress(psycopg.Error, OSError, IndexError):
            keys = [key for (key,) in self.dev.query(_PUBLISHED, stream)]
        if not keys:
            return
        first = self._random.randrange(len(keys))
        chosen = keys[first : first + self._random.randint(1, _MAX_PARTITIONS)]
        with suppress(URLError, OSError, AssertionError, KeyError, TypeError):
            self.dev.launch(stream, chosen)
            self.launched += 1
