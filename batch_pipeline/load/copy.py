"""Writing the records of a batch into a table by binary COPY.

`BatchWriter.write` replaces the rows of a batch. Threads decode blocks of records and convert them
to COPY rows (`RowWriter`) while the main thread sends rows to the server.
"""

import re
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from threading import Lock

import psycopg
import pyarrow as pa
from psycopg import sql

from batch_pipeline.load.part_blocks import Block, read_blocks
from batch_pipeline.load.tables import (
    BATCH,
    ITEM,
    ORDER,
    POSITION,
    RECORD_ERRORS,
    TOAST_SETTING,
    Layout,
    Table,
    added_values,
    escaped,
    server_message,
)
from batch_pipeline.load.types import (
    IncompatibleValueError,
    PgType,
    Pieces,
    arrow_type_of,
    pieces_of,
    rows_of,
    type_for,
)
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.load import Loading, WriteMode
from batch_pipeline.model.record_rules import LineageColumn
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline.storage.verification import UnusablePartError

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
_THREADS = 2
_POSITIONS_PER_BLOCK = 2**32  # more than the records of a block; positions only define the order
_MAX_PENDING = 4  # blocks in conversion or waiting for the server
_POSITION_COLUMN = Column(name=POSITION, type=ColumnType.INTEGER)
_STAGING = sql.Identifier("pg_temp", "batch_pipeline_staging")
_EMPTY = memoryview(b"")
_COPY_CONTEXT = re.compile(r"^COPY .*?, \S+ (\d+)(?:, \S+ (.*?))?(?:: .*)?$", re.MULTILINE)
# Few keys are duplicates: finding only these takes far less time than sorting all records.
_DELETE_OLDER = """
DELETE FROM {staging} AS older USING (
    SELECT {keys}, max({position}) AS {position} FROM {staging}
    GROUP BY {keys} HAVING count(*) > 1
) AS twice
WHERE {same} AND older.{position} < twice.{position}
"""
_MERGE = """
INSERT INTO {table} AS there ({names}) SELECT {names} FROM {staging}
ON CONFLICT ({keys}) DO UPDATE SET {changes}
WHERE there.{order} IS NULL OR there.{order} <= excluded.{order}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWriter:
    """The write of one batch; `loaded_columns` are the columns that earlier batches have loaded."""

    table: Table
    layout: Layout
    loading: Loading
    mode: WriteMode
    loaded_columns: frozenset[str]

    def write(self) -> None:
        """Replace the rows of the batch in the table.

        Raises:
            RecordValueError: a record has a value that the table cannot hold.
            IncompatibleTableError: the table does not fit.
            UnusablePartError: a part file is missing or differs from what was published.
        """
        is_upsert = self.mode is WriteMode.UPSERT
        writer = RowWriter(
            layout=self.layout,
            types=self.table.types(self.layout),
            constants=added_values(self.layout, self.loading, datetime.now(UTC)),
            positions=is_upsert,
        )
        self._delete_replaced()
        if not is_upsert:
            self._copy(self.table.identifier, writer)
        else:
            self._make_staging(writer)
            self._copy(_STAGING, writer)
            self._merge(writer)
        failpoint("warehouse.before_commit")

    def _delete_replaced(self) -> None:
        """Delete the rows of the previous generation and, for backfills, of the same items."""
        self._execute("DELETE FROM {} WHERE {} = %s", sql.Identifier(BATCH), [self.loading.label])
        if self.loading.item_ids:
            items = [list(self.loading.item_ids)]
            self._execute("DELETE FROM {} WHERE {} = ANY(%s)", sql.Identifier(ITEM), items)

    def _execute(self, statement: str, column: sql.Identifier, values: Sequence[object]) -> None:
        table = escaped(self.table.schema, self.table.name)
        self.table.connection.execute(sql.SQL(statement).format(table, column), values)

    def _copy(self, into: sql.Identifier, writer: "RowWriter") -> None:
        copy_in = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
            into, _identifiers(writer.names)
        )
        sent: list[Rows] = []
        try:
            with (
                self.table.connection.cursor() as cursor,
                closing(read_blocks(self.loading.manifest)) as all_blocks,
                closing(write_blocks(all_blocks, writer)) as all_rows,
                cursor.copy(copy_in) as copy,
            ):
                copy.write(HEADER)
                for rows in all_rows:
                    sent.append(replace(rows, octets=_EMPTY))
                    copy.write(rows.octets)
                    failpoint("warehouse.in_copy")
                copy.write(TRAILER)
        except RECORD_ERRORS as error:
            raise _find_record(error, sent) or error from error
        self._check_counts(sent)

    def _check_counts(self, sent: "Sequence[Rows]") -> None:
        for part in self.loading.manifest.part_files:
            records = sum(rows.count for rows in sent if rows.location == part.uri)
            if records != part.records:
                raise UnusablePartError(
                    f"{part.uri} has a record count of {records}, published: {part.records}"
                )

    def _make_staging(self, writer: "RowWriter") -> None:
        types = {**writer.types, POSITION: type_for(_POSITION_COLUMN)}
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(types[name].value))
            for name in writer.names
        ]
        create = sql.SQL("CREATE TEMPORARY TABLE {} ({}) {} ON COMMIT DROP").format(
            _STAGING, sql.SQL(", ").join(columns), TOAST_SETTING
        )
        self.table.connection.execute(create)

    def _merge(self, writer: "RowWriter") -> None:
        keys = self.layout.keys
        same = [sql.SQL("older.{0} = twice.{0}").format(sql.Identifier(key)) for key in keys]
        delete_older = sql.SQL(_DELETE_OLDER).format(
            staging=_STAGING,
            keys=_identifiers(keys),
            position=sql.Identifier(POSITION),
            same=sql.SQL(" AND ").join(same),
        )
        self.table.connection.execute(delete_older)
        names = [name for name in writer.names if name != POSITION]
        changes = [
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name))
            for name in names
            if name not in keys
        ]
        merge = sql.SQL(_MERGE).format(
            table=self.table.identifier,
            names=_identifiers(names),
            keys=_identifiers(keys),
            staging=_STAGING,
            changes=sql.SQL(", ").join([*changes, *self._clear_assignments()]),
            order=sql.Identifier(ORDER),
        )
        self.table.connection.execute(merge)

    def _clear_assignments(self) -> list[sql.Composed]:
        """Return assignments of NULL to columns that only an older record has values for.

        These are the columns that this batch lacks, and those of a soft delete.
        """
        deletion_columns = {LineageColumn.DELETED_AT.value, LineageColumn.TABLE_VERSION.value}
        absent = (self.loaded_columns & self.table.columns().keys()) - self.layout.columns.keys()
        names = sorted(absent | (deletion_columns & self.layout.added.keys()))
        return [sql.SQL("{} = NULL").format(sql.Identifier(name)) for name in names]


def _identifiers(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _find_record(error: psycopg.Error, sent: "Sequence[Rows]") -> "RecordValueError | None":
    """Return the error for the record whose row the server rejects, if the server names it."""
    match = _COPY_CONTEXT.search(error.diag.context or "")
    if match is None:
        return None
    line = int(match[1])  # counted from 1 in all rows
    for rows in sent:
        if line <= rows.count:
            record, column = rows.first + line - 1, match[2] or error.diag.column_name or ""
            return RecordValueError(rows.location, record, column, server_message(error))
        line -= rows.count
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of a COPY with the location of their records; `first` counts from 1."""

    location: str
    first: int
    count: int
    octets: memoryview


class RecordValueError(Exception):
    """A record with a value that the table cannot hold; `record` counts from 1 in the file."""

    def __init__(self, location: str, record: int, column: str, problem: str) -> None:
        super().__init__(problem)
        self.location = location
        self.record = record
        self.column = column
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWriter:
    """A converter of blocks to COPY rows, in the types of the table's columns.

    `constants` are columns whose value is the same in all rows. With `positions`, a last column
    numbers the rows in the order of the batch.
    """

    layout: Layout
    types: Mapping[str, PgType]
    constants: Mapping[str, str | int | datetime | None]
    positions: bool

    @property
    def names(self) -> list[str]:
        """Columns in the order of the fields of a row; constants that are null are omitted."""
        constants = [name for name, value in self.constants.items() if value is not None]
        return [*self.layout.records, *constants, *([POSITION] if self.positions else [])]

    def write(self, block: Block, position: int) -> Rows:
        """Return the rows of a block; `position` is that of its first record in the batch.

        Raises:
            RecordValueError: the table cannot hold a value.
        """
        try:
            batch = block.read()
            octets = self._octets(batch, position) if batch.num_rows else _EMPTY
        except IncompatibleValueError as error:
            record = block.first + error.row
            raise RecordValueError(block.location, record, error.column, error.problem) from error
        return Rows(location=block.location, first=block.first, count=batch.num_rows, octets=octets)

    def _octets(self, batch: pa.RecordBatch, position: int) -> memoryview:
        header = pa.scalar(len(self.names).to_bytes(2), pa.binary())
        pieces: Pieces = [pa.repeat(header, batch.num_rows)]  # all others may be scalars
        for name, column in self.layout.records.items():
            array = batch.column(column.name)
            if name in self.layout.keys and array.null_count:
                row = array.is_null().index(True).as_py()
                raise IncompatibleValueError(row, column.name, "a key must not be null")
            pieces += pieces_of(array, column, self.types[name])
        for name, value in self.constants.items():
            if value is not None:
                pieces += self._constant_pieces(name, value, batch)
        if self.positions:
            numbers = pa.array(range(position, position + batch.num_rows), pa.int64())
            pieces += pieces_of(numbers, _POSITION_COLUMN, PgType.BIGINT)
        return rows_of(pieces)

    def _constant_pieces(
        self, name: str, value: str | int | datetime, batch: pa.RecordBatch
    ) -> Pieces:
        column, kind = self.layout.added[name], self.types[name]
        if name == ORDER and self.layout.has_item_ids:
            items = batch.column(self.layout.records[ITEM].name)
            return pieces_of(items.fill_null(value), column, kind)
        value_array = pa.array([value], arrow_type_of(column))
        return [pa.scalar(bytes(rows_of(pieces_of(value_array, column, kind))), pa.binary())]


def write_blocks(blocks: Iterator[Block], writer: RowWriter) -> Generator[Rows, None, None]:
    """Yield the rows of blocks, in no particular order; threads convert a few blocks ahead.

    Raises:
        RecordValueError: the table cannot hold a value.
        UnusablePartError: a file is missing or differs from what was published.
    """
    numbered = zip(blocks, count(step=_POSITIONS_PER_BLOCK), strict=False)
    lock = Lock()

    def write_next() -> Rows | None:
        with lock:  # while a thread reads, others convert
            block = next(numbered, None)
        return None if block is None else writer.write(*block)

    with ThreadPoolExecutor(_THREADS) as executor:
        pending = deque(executor.submit(write_next) for _ in range(_MAX_PENDING))
        try:
            while pending:
                rows = pending.popleft().result()
                if rows is not None:
                    pending.append(executor.submit(write_next))
                    yield rows
        finally:
            for future in pending:
                future.cancel()
