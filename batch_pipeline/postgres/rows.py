"""Blocks of records as rows of a binary COPY, decoded and written by threads side by side."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from threading import Lock

import pyarrow as pa

from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.postgres import copy_fields
from batch_pipeline.postgres.cells import UnfitCellError, arrow_type_of, pieces_of
from batch_pipeline.postgres.layout import ITEM, ORDER, POSITION, Layout
from batch_pipeline.postgres.parts import Block
from batch_pipeline.postgres.type_names import PgType, type_for

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
_THREADS = 2
_FAR = 2**32  # more than a block has records: positions say the order, no more
_AHEAD = 4  # blocks that are under way or wait for the server
_POSITION_COLUMN = Column(name=POSITION, type=ColumnType.INTEGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of a COPY, and where their records are; `first` counts from 1."""

    location: str
    first: int
    count: int
    octets: memoryview


class BadCellError(Exception):
    """A record has a value that does not fit; it counts from 1 in its file."""

    def __init__(self, location: str, record: int, column: str, problem: str) -> None:
        super().__init__(problem)
        self.location = location
        self.record = record
        self.column = column
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWriter:
    """Writes the columns of a layout, each as the type that the table has for it.

    Columns of `constants` have one value for all. With `positions`, a last column numbers the rows
    in the order of the batch.
    """

    layout: Layout
    types: Mapping[str, PgType]
    constants: Mapping[str, str | int | datetime | None]
    positions: bool

    @property
    def names(self) -> list[str]:
        """The columns in the order in which they are written; those that are all null are not."""
        given = [name for name, value in self.constants.items() if value is not None]
        return [*self.layout.records, *given, *([POSITION] if self.positions else [])]

    def write(self, block: Block, position: int) -> Rows:
        """Write a block whose first record is so many records into the batch.

        Raises:
            BadCellError: a value does not fit.
        """
        try:
            batch = block.read()
            octets = self._octets(batch, position) if batch.num_rows else memoryview(b"")
        except UnfitCellError as error:
            record = block.first + error.row
            raise BadCellError(block.location, record, error.column, error.problem) from error
        return Rows(location=block.location, first=block.first, count=batch.num_rows, octets=octets)

    def _octets(self, batch: pa.RecordBatch, position: int) -> memoryview:
        pieces: copy_fields.Pieces = [
            pa.scalar(len(self.names).to_bytes(2), pa.binary()),
        ]
        for name, column in self.layout.records.items():
            array = batch.column(column.name)
            if name in self.layout.keys and array.null_count:
                row = array.is_null().index(True).as_py()
                raise UnfitCellError(row, column.name, "a key must not be null")
            pieces += pieces_of(array, column, self.types[name])
        for name, value in self.constants.items():
            if value is not None:
                pieces += self._added(name, value, batch)
        if self.positions:
            numbers = pa.array(range(position, position + batch.num_rows), pa.int64())
            pieces += pieces_of(numbers, _POSITION_COLUMN, PgType.BIGINT)
        return copy_fields.rows_of(pieces)

    def _added(
        self, name: str, value: str | int | datetime, batch: pa.RecordBatch
    ) -> copy_fields.Pieces:
        column, kind = self.layout.added[name], self.types[name]
        if name == ORDER and self.layout.knows_items:
            items = batch.column(self.layout.records[ITEM].name)
            return pieces_of(items.fill_null(value), column, kind)
        one = pa.array([value], arrow_type_of(column))
        return [pa.scalar(bytes(copy_fields.rows_of(pieces_of(one, column, kind))), pa.binary())]


def staging_types(writer: RowWriter) -> dict[str, PgType]:
    """Give the types of the columns that a writer writes."""
    types = {**writer.types, POSITION: type_for(_POSITION_COLUMN)}
    return {name: types[name] for name in writer.names}


def written(blocks: Iterator[Block], writer: RowWriter) -> Generator[Rows, None, None]:
    """Write blocks side by side, at most a few ahead of who takes them, in any order.

    Raises:
        BadCellError: a value does not fit.
        UnusablePartError: a file is gone or its bytes are others.
    """
    turns = _Turns(blocks)
    with ThreadPoolExecutor(_THREADS) as executor:
        pending = deque(executor.submit(turns.take, writer.write) for _ in range(_AHEAD))
        try:
            while pending:
                rows = pending.popleft().result()
                if rows is not None:
                    pending.append(executor.submit(turns.take, writer.write))
                    yield rows
        finally:
            for future in pending:
                future.cancel()


class _Turns:
    """Lets threads take blocks in turns: one reads a file while others decode."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = zip(blocks, count(step=_FAR), strict=False)
        self._lock = Lock()

    def take(self, write: Callable[[Block, int], Rows]) -> Rows | None:
        """Read the next block, in turn, and write it; None when there is none."""
        with self._lock:
            found = next(self._blocks, None)
        return None if found is None else write(*found)
