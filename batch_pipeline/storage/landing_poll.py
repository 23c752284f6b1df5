"""A landing that one process polls for files that are not known to be registered.

A pass lists all names, a bounded number of them per poll, so it may take several polls. Without a
key order and without events, one pass follows another, and files whose current state is registered
are left out. Otherwise passes run periodically and return all files; the polls between them list
the keys after the highest known key, or the files of events. No state is kept outside the process:
a new process starts with a pass. A file is never left out by its name alone, because a file that is
overwritten in place keeps its name.
"""

import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.item import LandedFile, Registered
from batch_pipeline.model.stream import KeyOrder
from batch_pipeline.storage.filesystem import FileFacts, IsKnown, State
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.s3_events import S3EventListing

_SHARDS = 256


class SeenFiles:
    """Fingerprints of the files that a pass has seen, in eight bytes each.

    Two files with the same fingerprint would be treated as one until the process ends or forgets;
    among ten million files, the probability of that is one in 370,000.
    """

    def __init__(self, fingerprints: Iterable[int] = ()) -> None:
        self._shards = [array("q") for _ in range(_SHARDS)]
        for one in fingerprints:
            self._shards[one % _SHARDS].append(one)
        for number, shard in enumerate(self._shards):  # singly: sorting takes five times its memory
            self._shards[number] = array("q", sorted(shard))

    def __contains__(self, fingerprint: int) -> bool:
        shard = self._shards[fingerprint % _SHARDS]
        index = bisect_left(shard, fingerprint)
        return index < len(shard) and shard[index] == fingerprint

    def __len__(self) -> int:
        return sum(len(shard) for shard in self._shards)


def fingerprint(name: str, size_bytes: int, state: State) -> int:
    """Return a 64-bit hash of a file's name, size and state (`FileFacts.state`).

    `hash` uses another key in each process, but a fingerprint never outlives its process.
    """
    return hash((name, size_bytes, state))


@dataclass(slots=True)
class _Pass:
    """A pass in progress: the last name that it has listed, and what it has seen so far."""

    began: float
    position: str = ""
    files: int = 0
    is_new: bool = False  # it has seen files that were not known
    fingerprints: "array[int]" = field(default_factory=lambda: array("q"))
    trouble: PipelineError | None = None


@dataclass(slots=True)
class _Poll:
    """The result of one poll; it takes effect once the listed files are registered."""

    highest: str
    behind: str = ""  # where the listing of keys behind the highest one stopped; empty at its end
    position: str = ""
    is_at_end: bool = False
    known: "array[int]" = field(default_factory=lambda: array("q"))
    returned: dict[str, int] = field(default_factory=dict)
    files: int = 0
    trouble: PipelineError | None = None


class PolledLanding:
    """A landing and the known state of its files; not thread-safe.

    A poll lists at most `limit` names of a pass, and as many after the highest known key; with
    None, it lists all of them.
    """

    def __init__(
        self,
        landing: SourceLanding,
        *,
        limit: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        arrivals = landing.source.arrivals
        self._landing = landing
        self._limit = limit
        self._now = now
        self._relist_every = arrivals.relist_every
        self._is_ascending = arrivals.order is KeyOrder.ASCENDING
        queue = arrivals.queue
        self._events = None if queue is None else S3EventListing(landing, queue)
        self._seen = SeenFiles()
        self._pass: _Pass | None = None
        self._last_began: float | None = None
        self._highest = self._behind = ""
        self._files = 0
        self._poll: _Poll | None = None
        self._trouble: PipelineError | None = None
        self._is_forgetting = False

    @property
    def troubles(self) -> tuple[PipelineError, ...]:
        """The error that kept files out of the last poll, and that of the first refused file.

        A refused file is reported until all names have been listed without it.
        """
        of_events = None if self._events is None else self._events.trouble
        return tuple(one for one in (of_events, self._trouble) if one is not None)

    def forget(self) -> None:
        """Make the next pass return all files; a pass in progress continues.

        This has no effect where all files are listed again periodically.
        """
        self._is_forgetting = True

    def found_files(self) -> Iterator[LandedFile]:
        """List files that are not known to be registered; a part of them, if there are many.

        Raises:
            LandingUnavailableError: the landing cannot be listed.
        """
        self._poll = None
        poll = _Poll(self._highest)
        if self._events is not None:
            yield from self._events.found_files()
        if self._is_ascending and self._last_began is not None:
            yield from self._behind_highest(poll)
        if self._is_due():
            yield from self._part_of_pass(poll)
        self._poll = poll

    def settled(self, registered: Registered) -> Registered:
        """Record what was registered; return `registered` with all known files as `found`.

        A file that differs from its row, or was postponed, is returned again by every pass.
        """
        poll, self._poll = self._poll, None
        if poll is None:
            return registered
        self._behind = "" if registered.postponed else poll.behind
        if not registered.postponed:  # else these keys are listed again
            self._highest = poll.highest
        self._trouble = self._trouble or poll.trouble
        self._files += registered.new_items
        for location in registered.postponed:
            poll.files -= poll.returned.pop(location, None) is not None
        if poll.position or poll.is_at_end:
            self._advance(poll, {*registered.changed})
        begun = 0 if self._pass is None else self._pass.files
        if self._events is not None:
            self._events.settled(registered.postponed)
        return replace(registered, found=max(self._files, begun))

    def _is_due(self) -> bool:
        if self._pass is not None or self._relist_every is None or self._last_began is None:
            return True
        return self._now() - self._last_began >= self._relist_every.total_seconds()

    def _behind_highest(self, poll: _Poll) -> Iterator[LandedFile]:
        with closing(self._landing.examined(self._behind or self._highest)) as names:
            for number, (name, examined) in enumerate(names, start=1):
                if isinstance(examined, FileFacts):
                    poll.highest = max(poll.highest, name)
                    yield self._landing.found(name, examined)
                elif examined is not None:
                    poll.trouble = poll.trouble or examined
                if number == self._limit:
                    poll.behind = name
                    return

    def _part_of_pass(self, poll: _Poll) -> Iterator[LandedFile]:
        """List the next names of the pass in progress, or of a new pass."""
        if self._pass is None or not self._pass.position:
            self._pass = _Pass(self._now())
            if self._is_forgetting:
                self._seen, self._is_forgetting = SeenFiles(), False
        poll.position = self._pass.position
        is_known = None if self._relist_every is not None else self._recognizer(poll)
        # With a limit, names that are left out would not count; with no file seen, none are.
        spared = is_known if self._limit is None and len(self._seen) else None
        with closing(self._landing.examined(poll.position, spared)) as names:
            for number, (name, examined) in enumerate(names):
                if number == self._limit:
                    return
                poll.position = name
                if not isinstance(examined, FileFacts):
                    poll.trouble = poll.trouble or examined
                    continue
                poll.highest = max(poll.highest, name)
                if is_known is not None and is_known(name, examined.size_bytes, examined.state):
                    continue
                poll.files += 1
                found = self._landing.found(name, examined)
                if is_known is not None:
                    stamp = fingerprint(name, examined.size_bytes, examined.state)
                    poll.returned[found.location] = stamp
                yield found
        poll.is_at_end = True

    def _recognizer(self, poll: _Poll) -> IsKnown:
        """Return a function that recognizes and counts files that this pass need not return.

        It saves a listing most of its work. Periodic passes have none: their purpose is to compare
        all files.
        """
        seen, record = self._seen, poll.known.append

        def is_known(name: str, size_bytes: int, state: State) -> bool:
            one = fingerprint(name, size_bytes, state)
            if one not in seen:
                return False
            record(one)
            poll.files += 1
            return True

        return is_known

    def _advance(self, poll: _Poll, changed: set[str]) -> None:
        """Record the progress of the pass, and its end."""
        begun = self._pass
        if begun is None:
            return
        begun.position, begun.files = poll.position, begun.files + poll.files
        begun.trouble = begun.trouble or poll.trouble
        new = [one for location, one in poll.returned.items() if location not in changed]
        begun.is_new = begun.is_new or bool(new)
        begun.fingerprints.extend(poll.known)
        begun.fingerprints.extend(new)
        if poll.is_at_end:
            if begun.is_new or len(begun.fingerprints) != len(self._seen):
                self._seen = SeenFiles(begun.fingerprints)
            self._files, self._trouble = begun.files, begun.trouble
            self._pass, self._last_began = None, begun.began
