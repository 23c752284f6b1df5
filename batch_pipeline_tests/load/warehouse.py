"""A Postgres warehouse and published batches to load into it.

Part files, loader and server are real.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import orc, parquet

from batch_pipeline.load.postgres import PostgresLoader
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.load import Loaded, Loading, PostgresTarget, WriteMode
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.record_rules import LineageColumn
from batch_pipeline.model.schema import Column, RecordSchema
from batch_pipeline_tests import factories
from batch_pipeline_tests.published_files import described

ID = ("id", "integer")
NAME = ("name", "string")
LINES = Encoding(format=Format.JSONL, compression=Compression.GZIP)
APPEND = PostgresTarget(name="warehouse", conn="$WAREHOUSE")
UPSERT = replace(APPEND, mode=WriteMode.UPSERT)


def schema_of(*columns: tuple[str, str]) -> RecordSchema:
    """Return a schema of columns, given by name and type."""
    return RecordSchema(tuple(Column.from_text(name, kind) for name, kind in columns))


def write_part(path: Path, octets: bytes, records: int) -> PartFile:
    """Write a part file and describe it as an encoding task would."""
    path.write_bytes(octets)
    return described(path, records)


def compress(lines: bytes, encoding: Encoding) -> bytes:
    """Compress JSON lines as in a part file."""
    if encoding.compression is Compression.GZIP:
        return gzip.compress(lines, mtime=0)
    if encoding.compression is Compression.ZSTD:
        return bytes(pa.compress(lines, codec="zstd", asbytes=True))
    return lines


@dataclass(slots=True, kw_only=True)
class Warehouse:
    """A database with one target, and a folder of part files."""

    url: str
    folder: Path
    target: PostgresTarget
    lineage: Sequence[LineageColumn] = (LineageColumn.ITEM_ID,)

    def loading(
        self,
        *files: Sequence[dict[str, Any]],
        schema: RecordSchema,
        first_id: int = 1,
        generation: int = 1,
        **overrides: Any,
    ) -> Loading:
        """Publish a generation of the batch of ten ids that starts with `first_id`."""
        encoding = overrides.pop("encoding", LINES)
        attributes = {
            name: overrides.pop(name)
            for name in ("stream", "item_ids", "is_backfill", "label", "again")
            if name in overrides
        }
        parts = [
            write_part(
                self.folder / f"{uuid4().hex}.{encoding.suffix}",
                compress(b"".join(json.dumps(one).encode() + b"\n" for one in records), encoding),
                len(records),
            )
            for records in files
        ]
        defaults: dict[str, Any] = {
            "batch": factories.batch(first_id, first_id + 9),
            "generation": generation,
            "token": UUID(int=first_id * 1000 + generation),
            "schema": schema,
            "encoding": encoding,
            "key_properties": ("id",),
            "part_files": tuple(parts),
        }
        manifest = factories.manifest(**(defaults | overrides))
        defaults = {
            "stream": "orders",
            "publish_number": first_id,
            "label": manifest.batch.label,
            "manifest": manifest,
            "message_name": "orders",
        }
        return Loading(**(defaults | attributes))

    def load(self, loading: Loading, target: PostgresTarget | None = None) -> Loaded:
        """Load with a new loader."""
        timeout = timedelta(milliseconds=200)
        loader = PostgresLoader(
            target or self.target, self.url, lineage=self.lineage, lock_timeout=timeout
        )
        with closing(loader):
            return loader.load(loading)

    def publish_and_load(
        self,
        *files: Sequence[dict[str, Any]],
        target: PostgresTarget | None = None,
        **attributes: Any,
    ) -> Loaded:
        """Publish a generation and load it."""
        return self.load(self.loading(*files, **attributes), target)

    def rows(self, *columns: str, table: str = "orders") -> list[tuple[Any, ...]]:
        """Return the given columns of all rows, ordered by the first one."""
        query = sql.SQL("SELECT {} FROM {} ORDER BY 1").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(table)
        )
        with self.connected() as connection:
            return connection.execute(query).fetchall()

    def types(self, table: str = "orders") -> dict[str, str]:
        """Return the columns of a table with their types."""
        query = (
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0"
        )
        with self.connected() as connection:
            return dict(connection.execute(query, [f'"{table}"']).fetchall())

    def execute(self, statement: str) -> None:
        """Execute a statement outside of the loader."""
        with self.connected() as connection:
            connection.execute(statement.encode())

    def drop_tables(self) -> None:
        """Delete all that was loaded."""
        self.execute("DROP TABLE IF EXISTS orders, batch_pipeline_load, batch_pipeline_column")

    @contextmanager
    def connected(self) -> "Iterator[psycopg.Connection[tuple[Any, ...]]]":
        """Open a connection in UTC that commits each statement."""
        options = "-c timezone=UTC"
        with psycopg.connect(self.url, autocommit=True, options=options) as connection:
            yield connection


def written_table(path: Path, table: pa.Table, encoding: Encoding) -> PartFile:
    """Write a part file in a columnar format."""
    if encoding.format is Format.PARQUET:
        parquet.write_table(table, path, compression=encoding.compression.value)
    elif encoding.format is Format.ORC:
        orc.write_table(table, path, compression=encoding.compression.value)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    return described(path, table.num_rows)
