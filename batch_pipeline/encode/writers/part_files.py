"""Names and files of a task's output: a part file is hashed while it is written."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from batch_pipeline.model.errors import StorageUnavailableError
from batch_pipeline.model.location import join_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.storage.filesystem import FileWriter, filesystem_of


class OpenPart:
    """A part file that is being written; also the file object of an Arrow writer."""

    def __init__(self, file: FileWriter, root: str) -> None:
        self._file = file
        self._root = root
        self._sha256 = hashlib.sha256()
        self._size_bytes = 0
        self._records = 0
        self._dropped = False
        self.closed = False

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
            self._file.write(left)
        return size_bytes

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size_bytes

    def flush(self) -> None:
        """Do nothing: the file is not visible before it is finished."""

    def close(self) -> None:
        """Do nothing: `finish` and `abort` close the file, an Arrow writer does not."""

    def finish(self, records: int) -> None:
        """Write the end of the file.

        Raises:
            StorageUnavailableError: that fails.
        """
        self._records = records
        with storage_errors(self._root):
            self._file.finish()
        self.closed = True

    def complete(self) -> PartFile:
        """Make the finished file visible and return its manifest entry.

        Raises:
            StorageUnavailableError: that fails.
        """
        with storage_errors(self._root):
            self._file.commit()
        return PartFile(
            uri=self._file.uri,
            records=self._records,
            size_bytes=self._size_bytes,
            sha256=self._sha256.hexdigest(),
        )

    def abort(self) -> None:
        """Delete the file, finished or not; later writes are ignored. Raises nothing."""
        self._dropped = True
        self._file.abort()
        self.closed = True


@contextmanager
def storage_errors(root: str) -> Iterator[None]:
    """Translate operating system errors: the storage cannot be written.

    Raises:
        StorageUnavailableError: an operating system error occurred.
    """
    try:
        yield
    except OSError as error:
        raise StorageUnavailableError(root, error.strerror or str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNames:
    """Names of the files of one execution of a task, without folders below `root`.

    `execution` differs between two executions of a task, so that neither overwrites the other's
    files.
    """

    root: str
    stem: str
    task: int
    execution: str
    suffix: str
    folder: str = ""

    def name(self, part: int) -> str:
        """Return the name of part number `part`."""
        return f"{self.stem}-{self.task:04d}{part:04d}-{self.execution}.{self.suffix}"

    def open(self, part: int) -> OpenPart:
        """Open part number `part` for writing.

        Raises:
            StorageUnavailableError: it cannot be created.
        """
        files = filesystem_of(self.root)
        with storage_errors(self.root):
            return OpenPart(files.create(files.join(self.uri, self.name(part))), self.root)

    @property
    def uri(self) -> str:
        """The URI of the folder of the files."""
        return join_uri(self.root, self.folder)

    def make_folder(self) -> None:
        """Create the folder below the root, in stores that have folders.

        Raises:
            StorageUnavailableError: it cannot be made.
        """
        if self.folder:
            with storage_errors(self.root):
                filesystem_of(self.root).make_folder(self.uri)


class PartFiles:
    """The part files of one execution of a task: finished ones, and at most one that is open."""

    def __init__(self, names: PartNames) -> None:
        self._names = names
        self._open: OpenPart | None = None
        self._finished: list[OpenPart] = []

    def start(self) -> OpenPart:
        """Open the next part file, which is not visible yet.

        Raises:
            StorageUnavailableError: it cannot be created.
        """
        self._open = self._names.open(len(self._finished))
        return self._open

    def finish(self, records: int) -> None:
        """Write the end of the open part file.

        Raises:
            StorageUnavailableError: it cannot be written.
        """
        if self._open is not None:
            self._open.finish(records)
            self._finished.append(self._open)
            self._open = None

    def close(self) -> tuple[PartFile, ...]:
        """Make the finished files durable and visible, and return them in order.

        Raises:
            StorageUnavailableError: the storage cannot be written.
        """
        parts = tuple(part.complete() for part in self._finished)
        if parts:
            with storage_errors(self._names.root):
                filesystem_of(self._names.root).sync_folder(self._names.uri)
        return parts

    def abort(self) -> None:
        """Delete all files."""
        if self._open is not None:
            self._open.abort()
            self._open = None
        for part in self._finished:
            part.abort()
        self._finished.clear()


def remove(part: PartFile) -> None:
    """Delete a part file, if it exists."""
    with suppress(OSError):
        filesystem_of(part.uri).delete(part.uri)
