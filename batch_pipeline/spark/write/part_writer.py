"""Writes part files: a hidden name while written, the final one when whole, hashed on the way.

Knows names, bytes and bounds; what a record looks like is the business of others.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from batch_pipeline.domain.encoding import Compression
from batch_pipeline.domain.errors import StorageUnavailableError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.location import to_path, to_uri
from batch_pipeline.domain.manifest import PartFile
from batch_pipeline.domain.stream import PartLimits
from batch_pipeline.spark.gzip_codec import new_compressor
from batch_pipeline.spark.write.json_lines import Lines

_PIECE_BYTES = 2**20


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


class LinePartWriter:
    """Writes JSON lines to part files, each within the limits unless one record exceeds them."""

    def __init__(self, names: PartNames, compression: Compression, limits: PartLimits) -> None:
        self._files = PartFiles(names)
        self._compression = compression
        self._limits = limits
        self._part: _LinePart | None = None

    def append(self, lines: Lines) -> None:
        """Write lines in order.

        Raises:
            StorageUnavailableError: they cannot be written.
        """
        text, ends = memoryview(lines.text), lines.ends
        first, start = 0, 0
        while first < len(ends):
            part = self._part or self._new_part()
            last = first + self._limits.max_records - part.records
            room = start + self._limits.max_bytes - part.size_bytes
            stop = min(last, int(np.searchsorted(ends, room, side="right")))
            if stop == first and not part.records:
                stop = first + 1
            if stop > first:
                end = int(ends[stop - 1])
                part.write(text[start:end], stop - first)
                first, start = stop, end
            if first < len(ends):
                self._finish_part()

    def close(self) -> tuple[PartFile, ...]:
        """Finish the last part file and give all of them in order.

        Raises:
            StorageUnavailableError: it cannot be written.
        """
        self._finish_part()
        return self._files.close()

    def abort(self) -> None:
        """Remove all files."""
        self._part = None
        self._files.abort()

    def _new_part(self) -> "_LinePart":
        self._part = _LinePart(self._files.start(), self._compression)
        return self._part

    def _finish_part(self) -> None:
        if self._part is not None:
            self._part.flush()
            self._files.finish(self._part.records)
            self._part = None


class _LinePart:
    """An open part file of lines; the compressor gets pieces of one size, however lines arrive."""

    def __init__(self, file: OpenPart, compression: Compression) -> None:
        self.records = 0
        self.size_bytes = 0
        self._file = file
        self._compressor = new_compressor() if compression is Compression.GZIP else None
        self._held = bytearray()

    def write(self, text: memoryview, records: int) -> None:
        self.records += records
        self.size_bytes += len(text)
        while len(self._held) + len(text) >= _PIECE_BYTES:
            taken = _PIECE_BYTES - len(self._held)
            if self._held:
                self._held += text[:taken]
                self._pass_on(bytes(self._held))
                self._held.clear()
            else:
                self._pass_on(text[:taken])
            text = text[taken:]
        self._held += text

    def flush(self) -> None:
        self._pass_on(bytes(self._held))
        self._held.clear()
        if self._compressor is not None:
            self._file.write(self._compressor.flush())

    def _pass_on(self, piece: bytes | memoryview) -> None:
        self._file.write(piece if self._compressor is None else self._compressor.compress(piece))


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
