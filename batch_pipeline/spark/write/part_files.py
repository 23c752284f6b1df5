"""Part files on disk: a hidden name while written, the final one when whole, hashed on the way.

Knows names and bytes; what goes in and where it is cut is the business of others.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from batch_pipeline.domain.errors import StorageUnavailableError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.location import to_path, to_uri
from batch_pipeline.domain.manifest import PartFile


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNames:
    """How the files of one run of one task are called, flat below `root`.

    `execution` differs between two runs of the same task, so neither touches the other's files.
    """

    root: str
    stem: str
    task: int
    execution: str
    suffix: str
    folder: str = ""

    def path(self, part: int) -> Path:
        """Give the final path of part number `part`."""
        name = f"{self.stem}-{self.task:04d}{part:04d}-{self.execution}.{self.suffix}"
        return Path(to_path(self.root), self.folder, name)


class PartFiles:
    """The part files of one run of one task: finished ones, and at most one that is open."""

    def __init__(self, names: PartNames) -> None:
        self._names = names
        self._open: OpenPart | None = None
        self._finished: list[PartFile] = []

    def start(self) -> "OpenPart":
        """Open the next part file under its hidden name.

        Raises:
            StorageUnavailableError: it cannot be created.
        """
        self._open = OpenPart(self._names.path(len(self._finished)), self._names.root)
        return self._open

    def finish(self, records: int) -> None:
        """Give the open part file its final name.

        Raises:
            StorageUnavailableError: it cannot be written to the end.
        """
        if self._open is not None:
            self._finished.append(self._open.finish(records))
            self._open = None

    def close(self) -> tuple[PartFile, ...]:
        """Make the names durable and give the finished files in order.

        Raises:
            StorageUnavailableError: the folder cannot be written.
        """
        if self._finished:
            with storage_errors(self._names.root):
                _sync(self._names.path(0).parent)
        return tuple(self._finished)

    def abort(self) -> None:
        """Remove all files."""
        if self._open is not None:
            self._open.abort()
            self._open = None
        for part in self._finished:
            remove(part)
        self._finished.clear()


class OpenPart:
    """A part file while it is written; what goes in is hashed and counted.

    Also serves as the file object of an Arrow writer.
    """

    def __init__(self, path: Path, root: str) -> None:
        self._path = path
        self._root = root
        self._hidden = path.with_name(f".{path.name}.tmp")
        self._sha256 = hashlib.sha256()
        self._size_bytes = 0
        self._dropped = False
        self.closed = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with storage_errors(root):
            self._file = os.open(self._hidden, flags, 0o666)

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes.

        Raises:
            StorageUnavailableError: they cannot be written.
        """
        left = memoryview(data)
        size_bytes = left.nbytes
        if self._dropped:
            return size_bytes
        self._sha256.update(left)
        self._size_bytes += size_bytes
        with storage_errors(self._root):
            while left:
                left = left[os.write(self._file, left) :]
        return size_bytes

    def tell(self) -> int:
        """Give the number of bytes written."""
        return self._size_bytes

    def flush(self) -> None:
        """Do nothing: no byte is held back."""

    def close(self) -> None:
        """Do nothing: `finish` and `abort` close the file, an Arrow writer does not."""

    def finish(self, records: int) -> PartFile:
        """Force the bytes to disk and give the file its final name.

        Raises:
            StorageUnavailableError: that fails.
        """
        with storage_errors(self._root):
            os.fsync(self._file)
            os.close(self._file)
            self.closed = True
            failpoint("encode.before_rename")
            self._hidden.rename(self._path)
        return PartFile(
            uri=to_uri(self._path),
            records=records,
            size_bytes=self._size_bytes,
            sha256=self._sha256.hexdigest(),
        )

    def abort(self) -> None:
        """Remove the file; later writes are dropped."""
        self._dropped = True
        with suppress(OSError):
            if not self.closed:
                self.closed = True
                os.close(self._file)
        with suppress(OSError):
            self._hidden.unlink()


def remove(part: PartFile) -> None:
    """Remove a part file, if it is there."""
    with suppress(OSError):
        Path(to_path(part.uri)).unlink()


@contextmanager
def storage_errors(root: str) -> Iterator[None]:
    """Say of every operating system error in the block that the storage cannot be written.

    Raises:
        StorageUnavailableError: there was one.
    """
    try:
        yield
    except OSError as error:
        raise StorageUnavailableError(root, error.strerror or str(error)) from error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
