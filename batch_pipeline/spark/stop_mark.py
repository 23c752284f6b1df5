"""Tells running tasks to end, wherever they run: by a hidden name beside the part files.

Spark itself only stops to wait for a Python task and kills it seconds later; what it writes in the
meantime nobody would remove.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from batch_pipeline.domain.location import is_object, join_uri, to_path
from batch_pipeline.domain.stream import Storage
from batch_pipeline.stores import upload
from batch_pipeline.stores.facts import look

LOOK_SECONDS = 0.5
OBJECT_LOOK_SECONDS = 1.0  # each look is a request


@dataclass(frozen=True, slots=True)
class StopMark:
    """The file or object of one encode, named at its start like the attempt's part files."""

    root: str
    name: str

    @classmethod
    def of(cls, storage: Storage, stem: str, encode: str) -> "StopMark":
        """Give the mark of the encode named `encode`."""
        return cls(storage.root, f".{storage.prefix}{stem}-{encode}.stop")

    @property
    def look_seconds(self) -> float:
        """How long to wait from one look to the next."""
        return OBJECT_LOOK_SECONDS if is_object(self.root) else LOOK_SECONDS

    def set(self) -> bool:
        """Tell all tasks to end; gives whether that could be said."""
        with suppress(OSError):
            if is_object(self.root):
                upload.put(self._uri, b"")
            else:
                self._path.touch()
            return True
        return False

    def clear(self) -> None:
        """Remove the mark, once no task is left."""
        with suppress(OSError):
            if is_object(self.root):
                upload.remove(self._uri)
            else:
                self._path.unlink()

    def is_set(self) -> bool:
        """Look whether tasks must end."""
        if not is_object(self.root):
            return self._path.exists()
        with suppress(OSError):  # a store that does not answer has not told us to end
            look(self._uri)
            return True
        return False

    @property
    def _path(self) -> Path:
        return Path(to_path(self.root), self.name)

    @property
    def _uri(self) -> str:
        return join_uri(self.root, self.name)


class StoppedError(Exception):
    """The encode was called off while the task ran."""


class StopCheck:
    """Looks at the mark when a task starts and then twice a second at most, in a store once."""

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
            self._next_look = self._now() + self._mark.look_seconds
            if self._mark.is_set():
                raise StoppedError
