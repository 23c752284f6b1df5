"""Tables that batches are loaded into, and the translation of errors that the server reports.

`layout_of` derives the columns from the schema of a stream; `Table` creates, widens and inspects
the table. `load_error` and `bad_value` build the errors of a failed load. Columns that the user
has added to a table are never changed or dropped.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql

from batch_pipeline.load.types import PgType, can_hold, conversion, known_type, type_for, wider_type
from batch_pipeline.model.errors import (
    BatchDataError,
    ConfigurationError,
    PipelineError,
    RetryableError,
    Unloaded,
)
from batch_pipeline.model.load import Loading
from batch_pipeline.model.record_rules import LineageColumn
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema

BATCH = LineageColumn.BATCH_ID.value
ITEM = LineageColumn.ITEM_ID.value
ORDER = "_batch_order"
POSITION = "_load_position"  # of a record in its batch; only in the staging table
MAX_NAME_BYTES = 63
_DIGEST_CHARACTERS = 8
_SINGER_COLUMNS = (
    LineageColumn.EXTRACTED_AT,
    LineageColumn.RECEIVED_AT,
    LineageColumn.BATCHED_AT,
    LineageColumn.DELETED_AT,
    LineageColumn.SEQUENCE,
    LineageColumn.TABLE_VERSION,
)
_BATCH_COLUMN = LineageColumn.BATCH_ID.column
_ORDER_COLUMN = Column(name=ORDER, type=ColumnType.INTEGER)


class IncompatibleTableError(Exception):
    """A table that cannot hold the records, or an invalid name; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns that a load needs, by their names in the table.

    `records` are the columns of the stream, `added` those that the loader adds. `keys` are the
    names of the columns that records are merged by. Columns that have held only nulls so far are
    omitted, because their type is unknown. With `has_item_ids`, each record has the id of its item.
    """

    records: dict[str, Column]
    added: dict[str, Column]
    keys: tuple[str, ...]
    has_item_ids: bool

    @property
    def columns(self) -> dict[str, Column]:
        """Columns of records, then added columns."""
        return self.records | self.added


def layout_of(
    schema: RecordSchema, key_properties: tuple[str, ...], lineage: Collection[LineageColumn]
) -> Layout:
    """Return the columns that a table needs for records of a schema.

    A column with the name of a lineage column that is not in `lineage` belongs to the source.

    Raises:
        IncompatibleTableError: a column's name is invalid or ambiguous, or a key is not a column.
    """
    records: dict[str, Column] = {}
    for column in schema.columns:
        if column.type is ColumnType.UNKNOWN:
            continue
        is_label = LineageColumn.BATCH_ID in lineage or column.type is ColumnType.STRING
        if column.name == BATCH and is_label:  # as of the stream's former lineage
            continue  # the loader writes the batch's label instead
        name = short_name(column.name)
        if name in records or name in {BATCH, ORDER, POSITION}:
            raise IncompatibleTableError(f"the column {column.name!r} has the name of another one")
        records[name] = column
    for key in key_properties:
        if short_name(key) not in records:
            raise IncompatibleTableError(f"the key {key!r} is not a column that has held a value")
    candidates = [_BATCH_COLUMN, _ORDER_COLUMN, *(added.column for added in _SINGER_COLUMNS)]
    added = {column.name: column for column in candidates if column.name not in records}
    return Layout(
        records=records,
        added=added,
        keys=tuple(map(short_name, key_properties)),
        has_item_ids=LineageColumn.ITEM_ID in lineage and ITEM in records,
    )


def short_name(name: str) -> str:
    """Return a name that Postgres accepts; a longer name is truncated and gets a digest suffix.

    Raises:
        IncompatibleTableError: the name is empty or contains a NUL character.
    """
    if not name or "\0" in name:
        raise IncompatibleTableError(f"the name {name!r} is empty or holds a NUL character")
    octets = name.encode()
    if len(octets) <= MAX_NAME_BYTES:
        return name
    digest = hashlib.sha256(octets).hexdigest()[:_DIGEST_CHARACTERS]
    prefix = octets[: MAX_NAME_BYTES - _DIGEST_CHARACTERS - 1].decode(errors="ignore")
    return f"{prefix}_{digest}"


def escaped(*names: str) -> sql.Identifier:
    """Return an identifier for a statement with parameters, where psycopg reads `%%` as `%`."""
    return sql.Identifier(*(name.replace("%", "%%") for name in names))


def added_values(
    layout: Layout, loading: Loading, now: datetime
) -> dict[str, str | int | datetime | None]:
    """Return the values of the added columns, which are the same for all rows of a load.

    As in the Singer SDK's targets, times are the time of the load, and the sequence is that time
    in milliseconds.
    """
    values: dict[str, str | int | datetime | None] = {
        BATCH: loading.label,
        ORDER: loading.manifest.batch.id_range.first_id,
        LineageColumn.EXTRACTED_AT: now,
        LineageColumn.RECEIVED_AT: now,
        LineageColumn.BATCHED_AT: now,
        LineageColumn.SEQUENCE: int(now.timestamp() * 1000),
    }
    return {name: values.get(name) for name in layout.added}


_SELECT_KIND = """
SELECT c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_SELECT_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
# The columns, in order, of each valid index that is neither partial nor on expressions.
_SELECT_INDEXES = """
SELECT i.indisunique AND i.indimmediate, array_agg(a.attname::text ORDER BY k.place)
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
WHERE n.nspname = %s AND c.relname = %s
    AND i.indpred IS NULL AND i.indisvalid AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid, i.indisunique, i.indimmediate, i.indnkeyatts
HAVING count(*) = i.indnkeyatts
"""
# By default Postgres moves values of rows above 2 KB into the TOAST table, one value at a time. For
# 150 columns of short texts this took four times as long as the rest of a load. With this setting
# rows of up to half a page stay in the main table.
TOAST_SETTING = sql.SQL("WITH (toast_tuple_target = 4080)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the target's schema."""

    connection: "psycopg.Connection[tuple[Any, ...]]"
    schema: str
    name: str

    @property
    def identifier(self) -> sql.Identifier:
        """Qualified name for SQL statements."""
        return sql.Identifier(self.schema, self.name)

    def lock(self) -> None:
        """Lock out other loaders of the table until the end of the transaction."""
        statement = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
        self.connection.execute(statement, [f"batch-pipeline {self.schema}.{self.name}"])

    def create_schema(self) -> None:
        """Create the schema if it does not exist.

        The check comes first because CREATE SCHEMA IF NOT EXISTS needs the CREATE privilege even
        if the schema exists.
        """
        row = self.connection.execute(
            "SELECT 1 FROM pg_namespace WHERE nspname = %s", [self.schema]
        ).fetchone()
        if row is None:
            create = sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema))
            self.connection.execute(create)

    def columns(self) -> dict[str, str]:
        """Return the columns of the table with the server's names of their types."""
        return dict(self._read(_SELECT_COLUMNS))

    def prepare(self, layout: Layout) -> None:
        """Create the table, or widen it for a layout, and create the indexes that loads use.

        Raises:
            IncompatibleTableError: a column type is incompatible, or the relation is not a table.
        """
        kinds = [kind for (kind,) in self._read(_SELECT_KIND)]
        if not kinds:
            self._create(layout)
        elif kinds[0] not in {"r", "p"}:
            raise IncompatibleTableError("it exists and is not a table")
        else:
            self._widen(layout)
        self._create_index([BATCH])
        if layout.has_item_ids:
            self._create_index([ITEM])
        if layout.keys:
            self._create_index(list(layout.keys), unique=True)

    def has_rows_without_item(self, label: str) -> bool:
        """Return whether rows of batches other than the labelled one have no item id."""
        query = "SELECT EXISTS (SELECT FROM {} WHERE {} IS NULL AND {} IS DISTINCT FROM %s)"
        names = escaped(self.schema, self.name), sql.Identifier(ITEM), sql.Identifier(BATCH)
        return self.connection.execute(sql.SQL(query).format(*names), [label]).fetchone() == (True,)

    def drop_other_keys(self, keys: Collection[str]) -> None:
        """Drop our unique indexes of other keys: a load may repeat the values of former keys."""
        for is_unique, names in self._read(_SELECT_INDEXES):
            if is_unique and set(names) != set(keys):
                name = sql.Identifier(self.schema, self._index_name(names, unique=True))
                self.connection.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(name))

    def types(self, layout: Layout) -> dict[str, PgType]:
        """Return the types of a layout's columns in the table.

        Raises:
            IncompatibleTableError: a column is missing or has an incompatible type.
        """
        present, types = self.columns(), {}
        for name, column in layout.columns.items():
            kind = known_type(present[name]) if name in present else None
            if kind is None or not can_hold(present[name], column):
                raise self._incompatible(
                    name, present.get(name, "no type: it does not exist"), column
                )
            types[name] = kind
        return types

    def _create(self, layout: Layout) -> None:
        columns = [_column_definition(name, column) for name, column in layout.columns.items()]
        create = sql.SQL("CREATE TABLE {} ({}) {}").format(
            self.identifier, sql.SQL(", ").join(columns), TOAST_SETTING
        )
        self.connection.execute(create)

    def _widen(self, layout: Layout) -> None:
        present = self.columns()
        is_ours = {BATCH, ORDER} <= present.keys()
        changes: list[sql.Composed] = []
        for name, column in layout.columns.items():
            if name not in present:
                changes.append(sql.SQL("ADD COLUMN {}").format(_column_definition(name, column)))
                continue
            if can_hold(present[name], column):
                continue
            kind = known_type(present[name])
            if kind is None or not is_ours or "(" in present[name]:
                raise self._incompatible(name, present[name], column)
            changes.append(_type_change(name, kind, wider_type(kind, column)))
        if changes:
            alter = sql.SQL("ALTER TABLE {} {}").format(
                self.identifier, sql.SQL(", ").join(changes)
            )
            self.connection.execute(alter)

    def _incompatible(self, name: str, present: str, column: Column) -> IncompatibleTableError:
        needs = f"{column.type_text} of the stream needs {type_for(column)}"
        return IncompatibleTableError(f"its column {name!r} has {present}, and {needs}")

    def _create_index(self, columns: list[str], *, unique: bool = False) -> None:
        """Create an index unless an existing one serves the purpose.

        A unique index serves if it has exactly these columns, another index if it begins with them.
        """
        for is_unique, names in self._read(_SELECT_INDEXES):
            if (is_unique and set(names) == set(columns)) if unique else names[0] == columns[0]:
                return
        create = sql.SQL("CREATE {} INDEX {} ON {} ({})").format(
            sql.SQL("UNIQUE" if unique else ""),
            sql.Identifier(self._index_name(columns, unique=unique)),
            self.identifier,
            sql.SQL(", ").join(map(sql.Identifier, columns)),
        )
        try:
            self.connection.execute(create)
        except psycopg.errors.UniqueViolation as error:
            raise IncompatibleTableError(server_message(error)) from error

    def _index_name(self, columns: Sequence[str], *, unique: bool) -> str:
        text = "\0".join([self.schema, self.name, str(unique), *columns])
        return f"batch_pipeline_{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def _read(self, statement: str) -> Sequence[tuple[Any, ...]]:
        return self.connection.execute(statement.encode(), [self.schema, self.name]).fetchall()


def _column_definition(name: str, column: Column) -> sql.Composed:
    return sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_for(column).value))


def _type_change(name: str, kind: PgType, wider: PgType) -> sql.Composed:
    expression = sql.SQL(conversion(kind, wider)).format(sql.Identifier(name))
    return sql.SQL("ALTER COLUMN {} TYPE {} USING {}").format(
        sql.Identifier(name), sql.SQL(wider.value), expression
    )


_NOTHING_LOADED = "Nothing of this attempt is in the table."
_LOAD_AGAIN = "then run `batch-pipeline load` again."
_UNREACHABLE_CODES = ("08", "57P")
_BUSY_CODES = {"55P03", "40P01", "40001"}
RECORD_ERRORS = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.errors.ProgramLimitExceeded,  # such as a key too long for an index
    psycopg.errors.RaiseException,  # of a trigger
)


def load_error(
    error: psycopg.Error, unloaded: Unloaded, *, table: str, server: str
) -> PipelineError:
    """Return the model error for an error of the server or the connection.

    `server` is the host and database, without credentials.
    """
    code, reason = error.sqlstate or "", server_message(error)
    if code in _BUSY_CODES:
        problem = f"another session holds {table} ({reason})"
        step = "Run `batch-pipeline load` again; if it persists, look into pg_stat_activity."
        return RetryableError(unloaded.text(problem, _NOTHING_LOADED, step))
    lost = not code and isinstance(error, psycopg.OperationalError)
    if lost or code.startswith(_UNREACHABLE_CODES):
        left = (
            "Nothing of this attempt is in the table, unless the answer to a commit was lost: the "
            "next attempt detects it."
        )
        step = f"Start the server or correct `conn` of the target, {_LOAD_AGAIN}"
        return RetryableError(unloaded.text(f"{server} cannot be reached ({reason})", left, step))
    problem = f"the server refuses it for {table} ({reason})"
    step = f"Correct the cause, {_LOAD_AGAIN}"
    return ConfigurationError(unloaded.text(problem, _NOTHING_LOADED, step))


def bad_value(unloaded: Unloaded, record: str, column: str, problem: str) -> BatchDataError:
    """Return the error for a record with a value that the table cannot hold exactly.

    `record` names the record and its file; `column` is empty if the whole record is invalid.
    """
    where = f", column {column!r}" if column else ""
    step = (
        "Correct the source or the stream's schema and materialize the partition again, or "
        f"change the type or the constraint in the table; {_LOAD_AGAIN}"
    )
    return BatchDataError(unloaded.text(f"{record}{where}: {problem}", _NOTHING_LOADED, step))


def server_message(error: psycopg.Error) -> str:
    """Return the server's message and detail, without the statement."""
    text = (error.diag.message_primary or str(error)).strip()
    detail = error.diag.message_detail
    first = text.splitlines()[0] if text else "no reason given"
    return f"{first}: {detail}" if detail else first
