"""Writing of records into part files of limited size, whatever the files contain."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.writers.part_files import OpenPart, PartFiles, PartNames
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.stream import PartLimits

Ends = npt.NDArray[np.int64]  # where each of some records ends, in bytes from the first one's start


@dataclass(slots=True, kw_only=True)
class SizeLimit:
    """Limits of records and bytes, and what is used of them; one record always fits."""

    max_records: int
    max_bytes: int
    records: int = 0
    size_bytes: int = 0

    def admit(self, ends: Ends, first: int) -> int:
        """Count the records from `first` on that still fit, and return the end of these."""
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


def start_of(ends: Ends, record: int) -> int:
    """Return the position at which a record starts."""
    return int(ends[record - 1]) if record else 0


class Piece(Protocol):
    """Consecutive records; `ends` has the end of each one in their uncompressed bytes."""

    @property
    def ends(self) -> Ends:
        """Bytes from the start of the first record to the end of each."""
        ...

    def between(self, first: int, stop: int) -> Self:
        """Return the records from `first` up to, not including, `stop`."""
        ...


PieceT = TypeVar("PieceT", bound=Piece)
PieceT_contra = TypeVar("PieceT_contra", bound=Piece, contravariant=True)


class PartBody(Protocol[PieceT_contra]):
    """The content of one part file."""

    def add(self, piece: PieceT_contra) -> None:
        """Write records in order, now or later."""
        ...

    def finish(self) -> None:
        """Write everything that is buffered."""
        ...

    def drop(self) -> None:
        """Release a file that was aborted; raises nothing."""
        ...


class PartWriter(Generic[PieceT]):
    """A writer of consecutive part files; where they are cut depends on the records alone."""

    def __init__(
        self,
        names: PartNames,
        limits: PartLimits,
        open_body: Callable[[OpenPart], PartBody[PieceT]],
    ) -> None:
        self._files = PartFiles(names)
        self._limits = limits
        self._open_body = open_body
        self._body: PartBody[PieceT] | None = None
        self._size = self._empty()

    def append(self, piece: PieceT) -> None:
        """Write records in order.

        Raises:
            StorageUnavailableError: they cannot be written.
        """
        ends, first = piece.ends, 0
        while first < len(ends):
            stop = self._size.admit(ends, first)
            if stop > first:
                self._opened().add(piece.between(first, stop))
                first = stop
            if first < len(ends):
                self._finish_part()

    def close(self) -> tuple[PartFile, ...]:
        """Finish the last part file and return all of them in order.

        Raises:
            StorageUnavailableError: it cannot be written.
        """
        self._finish_part()
        return self._files.close()

    def abort(self) -> None:
        """Delete all files."""
        self._files.abort()
        if self._body is not None:
            self._body.drop()
            self._body = None

    def _empty(self) -> SizeLimit:
        return SizeLimit(max_records=self._limits.max_records, max_bytes=self._limits.max_bytes)

    def _opened(self) -> PartBody[PieceT]:
        if self._body is None:
            self._body = self._open_body(self._files.start())
        return self._body

    def _finish_part(self) -> None:
        if self._body is not None:
            self._body.finish()
            self._files.finish(self._size.records)
            self._body = None
        self._size = self._empty()


_MANY_ROWS = 256
_HELD_BYTES = 2**20


class TableBuffer:
    """A buffer of small tables: work per column takes as long for few rows as for many."""

    def __init__(self) -> None:
        self._held: list[Table] = []
        self._rows = 0
        self._size_bytes = 0

    def add(self, table: Table) -> Iterator[Table]:
        """Add a table and yield the tables to write now; `flush` yields the others.

        Concatenated tables have no places and numbers of their records.
        """
        size_bytes = table.batch.get_total_buffer_size()
        is_small = table.good < _MANY_ROWS and size_bytes < _HELD_BYTES
        if self._held and not (is_small and _have_same_columns(self._held[0], table)):
            yield from self.flush()
        if not is_small:
            yield table
            return
        self._held.append(table)
        self._rows += table.good
        self._size_bytes += size_bytes
        if self._rows >= _MANY_ROWS or self._size_bytes >= _HELD_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[Table]:
        """Yield what is buffered as one table, if there is any."""
        held, self._held, self._rows, self._size_bytes = self._held, [], 0, 0
        if len(held) < 2:
            yield from held
            return
        batch = pa.concat_batches([table.batch for table in held])
        yield replace(held[0], batch=batch, line_numbers=(), record_numbers=())


def _have_same_columns(one: Table, other: Table) -> bool:
    same_kinds = one.text == other.text and one.json == other.json
    return same_kinds and one.batch.schema.equals(other.batch.schema)
