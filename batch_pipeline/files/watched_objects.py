"""A landing in a bucket that one process looks at again and again, a bounded part of it each time.

A pass lists all keys, in as many looks as it takes. Without order and events passes follow each
other, and what stands as it is known to be registered is not given again; else a pass comes now and
then, gives everything, and the looks between ask for keys behind the highest one, or for events.
Nothing is kept outside the process: whoever forgets begins with a pass.
"""

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

from batch_pipeline.domain.arrivals import KeyOrder
from batch_pipeline.domain.errors import PipelineError
from batch_pipeline.domain.item import FoundFile, Registered
from batch_pipeline.files.known_files import KnownFiles, stamp_of
from batch_pipeline.files.object_landing import ObjectLanding
from batch_pipeline.files.told_objects import ToldObjects
from batch_pipeline.stores.events import Queue

MOST_KEYS = 100_000  # of a look: a hundred requests, and a few seconds


@dataclass(slots=True)
class _Pass:
    """A pass under way: the key it has come to, what it has seen so far."""

    began: float
    position: str = ""
    files: int = 0
    stamps: "array[int]" = field(default_factory=lambda: array("Q"))
    unfit: PipelineError | None = None


@dataclass(slots=True)
class _Look:
    """What one look has listed, to be taken note of once it is registered."""

    highest: str
    position: str = ""
    is_at_end: bool = False
    known: "array[int]" = field(default_factory=lambda: array("Q"))
    given: dict[str, int] = field(default_factory=dict)
    files: int = 0
    unfit: PipelineError | None = None


class WatchedObjects:
    """A landing in a bucket and what is known of it; not for two threads at once.

    A look lists at most so many keys, all of them with None.
    """

    def __init__(
        self,
        landing: ObjectLanding,
        *,
        most_keys: int | None = MOST_KEYS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        arrivals = landing.source.arrivals
        self._landing = landing
        self._most_keys = most_keys
        self._now = now
        self._every = arrivals.relist_every
        self._is_ascending = arrivals.order is KeyOrder.ASCENDING
        queue = arrivals.queue
        self._told = None if queue is None else ToldObjects(landing, Queue(queue))
        self._known = KnownFiles()
        self._pass: _Pass | None = None
        self._last_began: float | None = None
        self._highest = ""
        self._files = 0
        self._look: _Look | None = None
        self._unfit: PipelineError | None = None
        self._is_to_be_forgotten = False

    @property
    def troubles(self) -> tuple[PipelineError, ...]:
        """What kept the last look from some files, and the first key that none can be of.

        Such a key is told until all keys have been listed without it.
        """
        told = None if self._told is None else self._told.trouble
        return tuple(one for one in (told, self._unfit) if one is not None)

    def forget(self) -> None:
        """Let the next pass give all files; one that is under way goes on.

        Where everything is listed again at times of its own, nothing has to be forgotten.
        """
        self._is_to_be_forgotten = True

    def found_files(self) -> Iterator[FoundFile]:
        """List files that are not known to be registered; a part of them, if there are many.

        Raises:
            LandingUnavailableError: the bucket cannot be listed.
        """
        self._look = None
        look = _Look(self._highest)
        if self._told is not None:
            yield from self._told.found_files()
        if self._is_ascending and self._last_began is not None:
            yield from self._behind_highest(look)
        if self._is_due():
            yield from self._part(look)
        self._look = look

    def settled(self, registered: Registered) -> Registered:
        """Take note that what was listed is registered; gives all files that are known as found.

        A file that differs from its row is given again by every pass.
        """
        look, self._look = self._look, None
        if look is None:
            return registered
        self._highest = look.highest
        self._unfit = self._unfit or look.unfit
        self._files += registered.new_items
        if look.position or look.is_at_end:
            self._advance(look, {*registered.changed})
        under_way = 0 if self._pass is None else self._pass.files
        if self._told is not None:
            self._told.settled()
        return replace(registered, found=max(self._files, under_way))

    def _is_due(self) -> bool:
        if self._pass is not None or self._every is None or self._last_began is None:
            return True
        return self._now() - self._last_began >= self._every.total_seconds()

    def _behind_highest(self, look: _Look) -> Iterator[FoundFile]:
        for key, looked in self._landing.looked_at(self._highest):
            if isinstance(looked, FoundFile):
                look.highest = max(look.highest, key)
                yield looked
            elif looked is not None:
                look.unfit = look.unfit or looked

    def _part(self, look: _Look) -> Iterator[FoundFile]:
        """List some more keys of a pass."""
        if self._pass is None:
            self._pass = _Pass(self._now())
            if self._is_to_be_forgotten:
                self._known, self._is_to_be_forgotten = KnownFiles(), False
        look.position = self._pass.position
        with closing(self._landing.looked_at(look.position)) as keys:
            for number, (key, looked) in enumerate(keys):
                if number == self._most_keys:
                    return
                look.position = key
                if not isinstance(looked, FoundFile):
                    look.unfit = look.unfit or looked
                    continue
                look.files += 1
                look.highest = max(look.highest, key)
                if self._is_to_be_given(looked, look):
                    yield looked
        look.is_at_end = True

    def _is_to_be_given(self, file: FoundFile, look: _Look) -> bool:
        if self._every is not None:  # a pass is there to compare everything
            return True
        stamp = stamp_of(file)
        if stamp in self._known:
            look.known.append(stamp)
            return False
        look.given[file.location] = stamp
        return True

    def _advance(self, look: _Look, changed: set[str]) -> None:
        """Take note of a part of the pass, and of its end."""
        one = self._pass
        if one is None:
            return
        one.position, one.files = look.position, one.files + look.files
        one.unfit = one.unfit or look.unfit
        one.stamps.extend(look.known)
        one.stamps.extend(stamp for place, stamp in look.given.items() if place not in changed)
        if look.is_at_end:
            self._known, self._files = KnownFiles(one.stamps), one.files
            self._unfit = one.unfit
            self._pass, self._last_began = None, one.began
