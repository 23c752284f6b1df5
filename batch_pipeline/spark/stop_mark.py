"""Tells running tasks to end, wherever they run: by a hidden file beside the part files.

Spark itself only stops to wait for a Python task and kills it seconds later; what it writes in the
meantime nobody would remove.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from batch_pipeline.domain.location import to_path
from batch_pipeline.domain.stream import Storage

LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class StopMark:
    """The file of one encode; its name starts like those of the attempt's part files."""

    root: str
    name: str

    @classmethod
    def of(cls, storage: Storage, stem: str, encode: str) -> "StopMark":
        """Give the mark of the encode named `encode`."""
        return cls(storage.root, f".{storage.prefix}{stem}-{encode}.stop")

    @property
    def _path(self) -> Path:
        return Path(to_path(self.root), self.name)

    def set(self) -> bool:
        """Tell all tasks to end; gives whether that could be said."""
        with suppress(OSError):
            self._path.touch()
            return True
        return False

    def clear(self) -> None:
        """Remove the mark, once no task is left."""
        with suppress(OSError):
            self._path.unlink()

    def is_set(self) -> bool:
        """Look whether tasks must end."""
        return self._path.exists()


class StoppedError(Exception):
    """The encode was called off while the task ran."""


class StopCheck:
    """Looks at the mark when a task starts and then twice a second at most."""

    def __init__(self, mark: StopMark | None, now: Callable[[], float] = time.monotonic) -> None:
        self._mark = mark
        self._now = now
        self._next_look = float("-inf")

    def check(self) -> None:
        """Go on, or raise when the task must end.

        Raises:
            StoppedError: it must.
        """
        if self._mark is not None and self._now() >= self._next_look:
            self._next_look = self._now() + LOOK_SECONDS
            if self._mark.is_set():
                raise StoppedError
