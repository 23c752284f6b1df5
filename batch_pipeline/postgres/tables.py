"""The table that records go into: made from the schema, widened with it, never narrowed.

Rows are written elsewhere. Calls belong to a transaction that holds the table's lock.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from batch_pipeline.domain.schema import Column
from batch_pipeline.postgres.layout import BATCH, ITEM, ORDER, Layout, missing
from batch_pipeline.postgres.type_names import (
    PgType,
    conversion,
    holds,
    known_type,
    type_for,
    widened,
)

_KIND = """
SELECT c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
# The columns of each index that all rows are in, in order.
_INDEXES = """
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
# Postgres moves texts of rows above 2 KB into a table beside, one by one: of 150 columns of short
# texts that took four times as long as all else of a load. So rows stay whole up to half a page.
KEPT_WHOLE = sql.SQL("WITH (toast_tuple_target = 4080)")


class UnfitTableError(Exception):
    """An existing table cannot take the records; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the target's schema."""

    connection: "psycopg.Connection[tuple[Any, ...]]"
    schema: str
    name: str

    @property
    def identifier(self) -> sql.Identifier:
        """The quoted name."""
        return sql.Identifier(self.schema, self.name)

    def lock(self) -> None:
        """Keep other loaders off the table until the end of the transaction."""
        statement = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
        self.connection.execute(statement, [f"batch-pipeline {self.schema}.{self.name}"])

    def make_schema(self) -> None:
        """Make the schema unless it is there; whether it may be made is asked only then."""
        found = self.connection.execute(
            "SELECT 1 FROM pg_namespace WHERE nspname = %s", [self.schema]
        ).fetchone()
        if found is None:
            create = sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema))
            self.connection.execute(create)

    def columns(self) -> dict[str, str]:
        """Read the columns of the table by name, with the types as the server names them."""
        return dict(self._read(_COLUMNS))

    def prepare(self, layout: Layout) -> None:
        """Make the table, or widen it to what a layout needs, with the indexes that loads use.

        Raises:
            UnfitTableError: it has a column of a type that does not fit, or is no table.
        """
        kinds = [kind for (kind,) in self._read(_KIND)]
        if not kinds:
            self._create(layout)
        elif kinds[0] not in {"r", "p"}:
            raise UnfitTableError("it exists and is no table")
        else:
            self._widen(layout)
        self._index([BATCH])
        if layout.knows_items:
            self._index([ITEM])
        if layout.keys:
            self._index(list(layout.keys), unique=True)

    def types(self, layout: Layout) -> dict[str, PgType]:
        """Read the types that the columns of a layout have.

        Raises:
            UnfitTableError: a column is not there or does not fit.
        """
        present, types = self.columns(), {}
        for name, column in layout.columns.items():
            kind = known_type(present[name]) if name in present else None
            if kind is None or not holds(present[name], column):
                raise self._unfit(name, present.get(name, "no type: it is not there"), column)
            types[name] = kind
        return types

    def _create(self, layout: Layout) -> None:
        columns = [_definition(name, one) for name, one in layout.columns.items()]
        create = sql.SQL("CREATE TABLE {} ({}) {}").format(
            self.identifier, sql.SQL(", ").join(columns), KEPT_WHOLE
        )
        self.connection.execute(create)

    def _widen(self, layout: Layout) -> None:
        present = self.columns()
        is_ours = {BATCH, ORDER} <= present.keys()
        changes: list[sql.Composed] = []
        for name, column in layout.columns.items():
            if name not in present or holds(present[name], column):
                continue
            kind = known_type(present[name])
            if kind is None or not is_ours or "(" in present[name]:
                raise self._unfit(name, present[name], column)
            changes.append(_change(name, kind, widened(kind, column)))
        for name, column in missing(layout, present).items():
            changes.append(sql.SQL("ADD COLUMN {}").format(_definition(name, column)))
        if changes:
            alter = sql.SQL("ALTER TABLE {} {}").format(
                self.identifier, sql.SQL(", ").join(changes)
            )
            self.connection.execute(alter)

    def _unfit(self, name: str, present: str, column: Column) -> UnfitTableError:
        needs = f"{column.type_text} of the stream needs {type_for(column)}"
        return UnfitTableError(f"its column {name!r} has {present}, and {needs}")

    def _index(self, columns: list[str], *, unique: bool = False) -> None:
        """Make an index unless one begins with the columns, or has exactly them if unique."""
        for is_unique, names in self._read(_INDEXES):
            if (is_unique and set(names) == set(columns)) if unique else names[0] == columns[0]:
                return
        text = "\0".join([self.schema, self.name, str(unique), *columns])
        name = f"batch_pipeline_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        create = sql.SQL("CREATE {} INDEX {} ON {} ({})").format(
            sql.SQL("UNIQUE" if unique else ""),
            sql.Identifier(name),
            self.identifier,
            sql.SQL(", ").join(map(sql.Identifier, columns)),
        )
        self.connection.execute(create)

    def _read(self, statement: str) -> Sequence[tuple[Any, ...]]:
        return self.connection.execute(statement.encode(), [self.schema, self.name]).fetchall()


def _definition(name: str, column: Column) -> sql.Composed:
    return sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_for(column).value))


def _change(name: str, kind: PgType, wider: PgType) -> sql.Composed:
    expression = sql.SQL(conversion(kind, wider)).format(sql.Identifier(name))
    return sql.SQL("ALTER COLUMN {} TYPE {} USING {}").format(
        sql.Identifier(name), sql.SQL(wider.value), expression
    )
