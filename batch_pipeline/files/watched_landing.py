"""A landing that one process looks at again and again: it lists what it has not seen registered.

What it remembers is how each file stood when the meta table had it so; whoever forgets it asks for
all files once more. A file is never left out for its name, or for its folder, alone: one that is
written in place changes neither. Nothing is kept outside the process.
"""

import os
from collections.abc import Iterator
from dataclasses import replace

from batch_pipeline.domain.errors import PipelineError
from batch_pipeline.domain.item import FoundFile, Registered
from batch_pipeline.files.landing import FolderLanding


class WatchedLanding:
    """A landing folder and what is known of its files; not for two threads at once."""

    def __init__(self, landing: FolderLanding) -> None:
        self._landing = landing
        self._known: dict[str, int] = {}
        self._asked: dict[str, tuple[str, int]] = {}

    @property
    def troubles(self) -> tuple[PipelineError, ...]:
        """What kept the last listing from some files."""
        return tuple(self._landing.troubles)

    def found_files(self) -> Iterator[FoundFile]:
        """List complete files in location order, without those that stand as they are known.

        Raises:
            LandingUnavailableError: the folder is not there or cannot be read.
        """
        still: dict[str, int] = {}
        self._asked = {}
        others = self._landing.paths(lambda entry: self._is_known(entry, still))
        self._known = still  # what was deleted meanwhile is forgotten
        for path in others:
            stamped = self._landing.rested(path)
            if stamped is not None:
                stat, file = stamped
                self._asked[file.location] = path, _stamp(stat)
                yield file

    def settled(self, registered: Registered) -> Registered:
        """Remember what the meta table has, now that it has been asked; gives all files as found.

        A file that differs from its row is asked for again every time.
        """
        known_before = len(self._known)
        changed = {*registered.changed}
        for location, (path, stamp) in self._asked.items():
            if location not in changed:
                self._known[path] = stamp
        self._asked = {}
        return replace(registered, found=registered.found + known_before)

    def forget(self) -> None:
        """Forget everything; the next listing has all files."""
        self._known, self._asked = {}, {}

    def _is_known(self, entry: os.DirEntry[str], still: dict[str, int]) -> bool:
        before = self._known.get(entry.path)
        if before is None:
            return False
        try:
            now = _stamp(entry.stat())
        except OSError:
            return False  # gone, or out of reach: the listing says what becomes of it
        if now == before:
            still[entry.path] = now
        return now == before


def _stamp(stat: os.stat_result) -> int:
    """Give size and modification time as one number, which takes a third of the memory of two."""
    return stat.st_mtime_ns << 64 | stat.st_size
