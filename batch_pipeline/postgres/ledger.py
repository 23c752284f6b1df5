"""The bookkeeping beside loaded tables: which generation of a batch each holds, in which columns.

It is written in the transaction that writes the rows, so it is right whatever crashes.
"""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

import psycopg
from psycopg import sql

from batch_pipeline.domain.load import Loading

NAME = "batch_pipeline_load"
COLUMNS = "batch_pipeline_column"  # a row for each column that batches have brought
_CREATE = """
CREATE TABLE IF NOT EXISTS {} (
    table_name text NOT NULL,
    stream text NOT NULL,
    batch text NOT NULL,
    generation integer NOT NULL,
    token uuid NOT NULL,
    publish_number bigint NOT NULL,
    records bigint NOT NULL,
    loaded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (table_name, batch)
)
"""
_CREATE_COLUMNS = """
CREATE TABLE IF NOT EXISTS {} (
    table_name text NOT NULL,
    column_name text NOT NULL,
    PRIMARY KEY (table_name, column_name)
)
"""
_BROUGHT = "SELECT column_name FROM {} WHERE table_name = %s"
_BRING = """
INSERT INTO {} (table_name, column_name) SELECT %s, unnest(%s::text[]) ON CONFLICT DO NOTHING
"""
_FIND = "SELECT generation, token, records FROM {} WHERE table_name = %s AND batch = %s"
_RIVAL = "SELECT stream FROM {} WHERE table_name = %s AND stream <> %s LIMIT 1"
_RECUT = "SELECT EXISTS (SELECT FROM {} WHERE table_name = %s AND strpos(batch, ':') > 0)"
_KEEP = """
INSERT INTO {} AS kept
    (table_name, stream, batch, generation, token, publish_number, records)
VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (table_name, batch) DO UPDATE SET
    stream = excluded.stream, generation = excluded.generation, token = excluded.token,
    publish_number = excluded.publish_number, records = excluded.records, loaded_at = now()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a table has of a batch."""

    generation: int
    token: UUID
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The rows of one table in the bookkeeping of its schema; calls belong to a transaction."""

    connection: "psycopg.Connection[tuple[object, ...]]"
    schema: str
    table: str

    def create(self) -> None:
        """Make the bookkeeping tables unless they are there."""
        self.connection.execute(self._named(_CREATE))
        self.connection.execute(self._named(_CREATE_COLUMNS, COLUMNS))

    def kept(self, batch: str) -> Kept | None:
        """Find what the table has of a batch."""
        cursor = self.connection.cursor(row_factory=psycopg.rows.class_row(Kept))
        return cursor.execute(self._named(_FIND), [self.table, batch]).fetchone()

    def other_stream(self, stream: str) -> str | None:
        """Give the name of another stream that was loaded into the table."""
        row = self.connection.execute(self._named(_RIVAL), [self.table, stream]).fetchone()
        return None if row is None else str(row[0])

    def brought(self) -> frozenset[str]:
        """Give the columns of the table that batches have brought; the rest is the user's."""
        rows = self.connection.execute(self._named(_BROUGHT, COLUMNS), [self.table])
        return frozenset(str(name) for (name,) in rows)

    def has_backfills(self) -> bool:
        """Tell whether the table has batches of backfills; no other name holds a colon."""
        return self.connection.execute(self._named(_RECUT), [self.table]).fetchone() == (True,)

    def keep(self, loading: Loading, columns: Collection[str]) -> None:
        """Remember a generation in the place of the one before, and the columns that it brings."""
        manifest = loading.manifest
        values = [
            self.table,
            loading.stream,
            loading.label,
            manifest.generation,
            manifest.token,
            loading.publish_number,
            manifest.records,
        ]
        self.connection.execute(self._named(_KEEP), values)
        self.connection.execute(self._named(_BRING, COLUMNS), [self.table, [*columns]])

    def _named(self, statement: str, table: str = NAME) -> sql.Composed:
        return sql.SQL(statement).format(sql.Identifier(self.schema, table))
