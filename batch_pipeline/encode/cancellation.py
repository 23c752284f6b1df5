"""Cancellation of running tasks on any machine, by a hidden file beside the part files.

When Spark cancels a job it stops waiting for its Python tasks and kills them some seconds later;
nothing would delete the files that they write in the meantime.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from batch_pipeline.model.location import join_uri
from batch_pipeline.model.stream import Storage
from batch_pipeline.storage.filesystem import FileSystem, filesystem_of


@dataclass(frozen=True, slots=True)
class CancellationFlag:
    """The hidden file that cancels one encode, with the name prefix of its part files."""

    root: str
    name: str

    @classmethod
    def of(cls, storage: Storage, stem: str, encode: str) -> "CancellationFlag":
        """Return the flag of the encode named `encode`."""
        return cls(storage.root, f".{storage.prefix}{stem}-{encode}.stop")

    @property
    def poll_seconds(self) -> float:
        """The interval between two checks."""
        return self._files.poll_seconds

    def set(self) -> bool:
        """Cancel all tasks and return whether the flag could be written."""
        with suppress(OSError):
            self._files.put(self._uri, b"")
            return True
        return False

    def clear(self) -> None:
        """Delete the flag, once no task is running."""
        with suppress(OSError):
            self._files.delete(self._uri)

    def is_set(self) -> bool:
        """Return whether tasks must stop."""
        with suppress(OSError):  # an unreachable store does not cancel the task
            self._files.head(self._uri)
            return True
        return False

    @property
    def _files(self) -> FileSystem:
        return filesystem_of(self.root)

    @property
    def _uri(self) -> str:
        return join_uri(self.root, self.name)


class TaskCancelledError(Exception):
    """The encode was cancelled while the task ran."""


class CancellationCheck:
    """Checks of the flag, at the start of a task and then at most every `poll_seconds`."""

    def __init__(
        self, flag: CancellationFlag | None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._flag = flag
        self._now = now
        self._next_check = float("-inf")

    def check(self) -> None:
        """Raise an error if the task must stop.

        Raises:
            TaskCancelledError: the encode was cancelled.
        """
        if self._flag is not None and self._now() >= self._next_check:
            self._next_check = self._now() + self._flag.poll_seconds
            if self._flag.is_set():
                raise TaskCancelledError
