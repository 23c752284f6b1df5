"""Temporary folders that nobody else can enter, and that no killed process leaves for good.

What is written there belongs to whoever asked for one.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_PREFIX = "batch-pipeline-"
_LOCK = ".locked"


class PrivateFolder:
    """A new folder with mode 0700, gone when it is closed; a context manager.

    `purpose` is a part of its name. It is locked for as long as this process lives. Folders, for
    whatever purpose, whose process was killed are removed first; a folder without a lock file is
    somebody's own and stays.
    """

    def __init__(self, purpose: str) -> None:
        _remove_left()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
            with suppress(FileNotFoundError):  # somebody was quick to take it for one that is left
                lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if (self.path / _LOCK).exists():
                    self._lock = lock
                    return
                os.close(lock)

    def close(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
