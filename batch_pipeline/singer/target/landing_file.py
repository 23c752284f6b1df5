"""One file on its way into a landing folder: hidden while it grows, whole once it has its name.

What is in it the writers know; nothing is registered here.
"""

import errno
import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import IO

from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.item import FoundFile, modified_at
from batch_pipeline.domain.location import to_uri
from batch_pipeline.singer.target.refusals import LandingFailedError
from batch_pipeline.stores.durable import sync_folder
from batch_pipeline.stores.failures import reason_of

_OURS = re.compile(r"\..*-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}-[0-9]{6,}\.[a-z.]+\.tmp")


class LandingFile:
    """A file below a hidden name in the folder that it lands in.

    The file is locked while it is open, which tells it from what a dead process left.

    Raises:
        LandingFailedError: it cannot be made.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._final = folder / name
        self._hidden = folder / f".{name}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.file: IO[bytes] = self._hidden.open("xb")
            fcntl.flock(self.file, fcntl.LOCK_EX)
            if not os.fstat(self.file.fileno()).st_nlink:  # swept before it was locked
                self.file = self._hidden.open("xb")
                fcntl.flock(self.file, fcntl.LOCK_EX)
        except OSError as error:
            raise self.failed(error) from error

    def land(self) -> FoundFile:
        """Make the file durable, give it its name, and tell what has landed.

        Raises:
            LandingFailedError: the disk refuses; the file is gone.
        """
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
            failpoint("target.before_rename")
            if self._final.exists():
                raise FileExistsError(errno.EEXIST, "a file of this name is there")
            self._hidden.rename(self._final)
        except OSError as error:
            raise self.failed(error) from error
        try:
            self.file.close()
            sync_folder(self._final.parent)
            stat = self._final.stat()
        except OSError as error:
            with suppress(OSError):  # what is there without being registered would come twice
                self._final.unlink()
            raise self.failed(error) from error
        failpoint("target.after_rename")
        return FoundFile(
            location=to_uri(self._final),
            size_bytes=stat.st_size,
            modified_at=modified_at(stat),
        )

    def abandon(self) -> None:
        """Remove the file, as if nothing had come."""
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            self._hidden.unlink()

    def failed(self, error: OSError) -> LandingFailedError:
        """Remove the file and say why it cannot land."""
        if hasattr(self, "file"):
            self.abandon()
        return LandingFailedError(str(self._final.parent), reason_of(error))


def sweep(folder: Path) -> int:
    """Remove the hidden files that processes left which are gone; gives their number."""
    removed = 0
    for path in folder.glob(".*.tmp"):
        if not _OURS.fullmatch(path.name):
            continue
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while it is written
            path.unlink()
            removed += 1
    return removed
