"""Name part files of limited size, and write records into them one after the other.

A part file is hashed while it is written, and becomes visible when the task has finished.
"""

import hashlib
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from batch_pipeline.encode.chunks import Offsets
from batch_pipeline.model.errors import StorageUnavailableError
from batch_pipeline.model.location import join_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.stream import PartLimits, Stream
from batch_pipeline.storage.filesystem import FileWriter, filesystem_of, raise_as


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
            StorageUnavailableError: the bytes cannot be written.
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
            StorageUnavailableError: the end cannot be written.
        """
        self._records = records
        with storage_errors(self._root):
            self._file.finish()
        self.closed = True

    def complete(self) -> PartFile:
        """Make the finished file visible and return its manifest entry.

        Raises:
            StorageUnavailableError: the file cannot be made visible.
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


def storage_errors(root: str) -> AbstractContextManager[None]:
    """Convert an `OSError` of the block to a `StorageUnavailableError`."""
    return raise_as(partial(StorageUnavailableError, root))


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

    @classmethod
    def of(cls, stream: Stream, stem: str, task: int, execution: str) -> Self:
        """Return the names of a task's part files."""
        return cls(
            root=stream.storage.root,
            stem=f"{stream.storage.prefix}{stem}",
            task=task,
            execution=execution,
            suffix=stream.encoding.suffix,
        )

    def name(self, part: int) -> str:
        """Return the name of part number `part`."""
        return f"{self.stem}-{self.task:04d}{part:04d}-{self.execution}.{self.suffix}"

    def open(self, part: int) -> OpenPart:
        """Open part number `part` for writing, in a folder that may not exist yet.

        Raises:
            StorageUnavailableError: the file cannot be created.
        """
        files = filesystem_of(self.root)
        with storage_errors(self.root):
            if self.folder:
                files.make_folder(self.uri)
            return OpenPart(files.create(files.join(self.uri, self.name(part))), self.root)

    @property
    def uri(self) -> str:
        """The URI of the folder of the files."""
        return join_uri(self.root, self.folder)


def remove(part: PartFile) -> None:
    """Delete a part file, if it exists."""
    with suppress(OSError):
        filesystem_of(part.uri).delete(part.uri)


@dataclass(slots=True, kw_only=True)
class SizeLimit:
    """Limits on records and bytes, and the amounts used; a single record always fits."""

    max_records: int
    max_bytes: int
    records: int = 0
    size_bytes: int = 0

    def admit(self, ends: Offsets, first: int) -> int:
        """Count the records from `first` on that still fit, and return the position after them."""
        start = start_of(ends, first)
        room = start + self.max_bytes - self.size_bytes
        last = first + self.max_records - self.records
        stop = min(last, int(np.searchsorted(ends, room, side="right")))
        if stop <= first:
            if self.records:
                return first
            stop = first + 1
        self.records += stop - first
        self.size_bytes += int(ends[stop - 1]) - start
        return stop


def start_of(ends: Offsets, record: int) -> int:
    """Return the position at which a record starts."""
    return int(ends[record - 1]) if record else 0


class Piece(Protocol):
    """Consecutive records; `ends` holds the end of each record in the uncompressed bytes."""

    @property
    def ends(self) -> Offsets:
        """Bytes from the start of the first record to the end of each."""
        ...

    def between(self, first: int, stop: int) -> Self:
        """Return the records from `first` up to, not including, `stop`."""
        ...


PieceT = TypeVar("PieceT", bound=Piece)


class PartWriter(ABC, Generic[PieceT]):
    """A writer of consecutive part files, whose boundaries depend only on the records.

    Subclasses write the content of the open file.
    """

    def __init__(self, names: PartNames, limits: PartLimits) -> None:
        self._names = names
        self._limits = limits
        self._open: OpenPart | None = None
        self._finished: list[OpenPart] = []
        self._size = self._empty()

    @abstractmethod
    def _start(self, file: OpenPart) -> None:
        """Begin the content of a part file."""

    @abstractmethod
    def _add(self, piece: PieceT) -> None:
        """Write or buffer records, in order."""

    @abstractmethod
    def _finish(self) -> None:
        """Write all buffered records and the end of the content."""

    def _drop(self) -> None:
        """Release the content of an aborted file; raises nothing."""

    def append(self, piece: PieceT) -> None:
        """Write records in order.

        Raises:
            StorageUnavailableError: the records cannot be written.
        """
        ends, first = piece.ends, 0
        while first < len(ends):
            stop = self._size.admit(ends, first)
            if stop > first:
                if self._open is None:
                    self._open = self._names.open(len(self._finished))
                    self._start(self._open)
                self._add(piece.between(first, stop))
                first = stop
            if first < len(ends):
                self._finish_part()

    def close(self) -> tuple[PartFile, ...]:
        """Finish the last part file, make all durable and visible, and return them in order.

        Raises:
            StorageUnavailableError: the storage cannot be written.
        """
        self._finish_part()
        parts = tuple(part.complete() for part in self._finished)
        if parts:
            with storage_errors(self._names.root):
                filesystem_of(self._names.root).sync_folder(self._names.uri)
        return parts

    def abort(self) -> None:
        """Delete all files; raises nothing."""
        for part in (*self._finished, *([] if self._open is None else [self._open])):
            part.abort()
        self._finished.clear()
        if self._open is not None:
            self._open = None
            self._drop()

    def _empty(self) -> SizeLimit:
        return SizeLimit(max_records=self._limits.max_records, max_bytes=self._limits.max_bytes)

    def _finish_part(self) -> None:
        if self._open is not None:
            self._finish()
            self._open.finish(self._size.records)
            self._finished.append(self._open)
            self._open = None
        self._size = self._empty()
