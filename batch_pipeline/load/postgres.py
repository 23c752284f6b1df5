"""Exactly-once loads into tables of Postgres.

`PostgresLoader.load` loads one published generation. `Ledger` records which generation of each
batch a table holds, and the columns that batches have added. The ledger is written in the
transaction that writes the rows, so the two agree after any crash.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg import conninfo, sql

from batch_pipeline.inventory.connection import NETWORK_LIMITS
from batch_pipeline.load.copy import BatchWriter, RecordValueError
from batch_pipeline.load.tables import (
    ITEM,
    RECORD_ERRORS,
    IncompatibleTableError,
    Layout,
    Table,
    bad_value,
    escaped,
    layout_of,
    load_error,
    server_message,
    short_name,
)
from batch_pipeline.model.errors import (
    NOTHING_SENT,
    ConfigurationError,
    InvalidValueError,
    ItemIdsMissingError,
    PartFileChangedError,
    Unloaded,
)
from batch_pipeline.model.load import Loaded, Loading, PostgresTarget, WriteMode
from batch_pipeline.model.record_rules import LineageColumn
from batch_pipeline.storage.verification import UnusablePartError

LEDGER_TABLE = "batch_pipeline_load"
COLUMN_TABLE = "batch_pipeline_column"  # a row for each column that batches have loaded


LOCK_TIMEOUT = timedelta(seconds=60)
_CONNECT_SECONDS = 10
_EXPECTED_URL = "postgresql://user:password@host:5432/database, special characters %-encoded"
_ADD_ITEMS = (
    "Add `_item_id` to `lineage` in the stream file, materialize the batches again and load them "
    "before this one."
)
_CORRECT_TABLE = (
    "Name another table in the target, or correct this one; then run `batch-pipeline load` again."
)


class PostgresLoader:
    """A loader for the table of a target; `lineage` is that of the stream.

    Its connection is opened by the first load.
    """

    def __init__(
        self,
        target: PostgresTarget,
        url: str,
        *,
        lineage: Collection[LineageColumn] = (),
        lock_timeout: timedelta = LOCK_TIMEOUT,
    ) -> None:
        self._target = target
        self._lineage = lineage
        self._url, self._server = _parse_url(url, f"targets.{target.name}.postgres.conn")
        self._lock_timeout = lock_timeout
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def load(self, loading: Loading) -> Loaded:
        """Load one published generation into the table, exactly once.

        The first transaction creates or widens the table. The second locks the table, deletes the
        rows of the previous generation, copies the new rows and updates the ledger.

        Raises:
            BatchDataError: a record has a value that the table cannot hold or does not allow.
            ItemIdsMissingError: it is unknown which rows the batch replaces.
            PartFileChangedError: a part file is missing or differs from what was published.
            ConfigurationError: the table or the stream cannot be loaded, or the server rejects a
                statement.
            RetryableError: the server does not answer, or another session locks the table for
                too long.
        """
        name = self._table_name(loading)
        with self._translate_errors(loading, name):
            mode = self._mode(loading)
            keys = loading.manifest.key_properties if mode is WriteMode.UPSERT else ()
            layout = layout_of(loading.manifest.schema, keys, self._lineage)
            if loading.is_backfill:
                self._check_items(layout, loading)
            connection = self._connect()
            table = Table(connection=connection, schema=self._target.schema, name=name)
            ledger = Ledger(connection=connection, schema=self._target.schema, table=name)
            self._prepare_tables(table, ledger, layout, loading)
            with self._locked(table):
                self._check_stream(ledger, loading)
                if self._is_loaded(ledger.loaded_attempt(loading.label), loading):
                    return Loaded(records=loading.manifest.records, already=True)
                BatchWriter(
                    table=table,
                    layout=layout,
                    loading=self._without_unneeded_items(table, ledger, layout, loading),
                    mode=mode,
                    loaded_columns=ledger.loaded_columns(),
                ).write()
                ledger.record(loading, layout.columns)
            return Loaded(records=loading.manifest.records)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _table_name(self, loading: Loading) -> str:
        try:
            name = short_name(self._target.table or loading.message_name)
        except IncompatibleTableError as error:
            raise self._configuration_error(loading, str(error), _CORRECT_TABLE) from error
        if name in {LEDGER_TABLE, COLUMN_TABLE}:
            problem = f"the table {name} records the loads"
            raise self._configuration_error(loading, problem, "Name another table in the target.")
        return name

    def _mode(self, loading: Loading) -> WriteMode:
        manifest = loading.manifest
        if self._target.mode is WriteMode.UPSERT and not manifest.key_properties:
            problem = "`mode: upsert` needs key properties, and the batch was published without"
            step = "Materialize its partition again, or load with `mode: append`."
            raise self._configuration_error(loading, problem, step)
        # The schema of a batch without records may lack the key columns.
        return self._target.mode if manifest.records else WriteMode.APPEND

    def _check_stream(self, ledger: "Ledger", loading: Loading) -> None:
        known = ledger.stream()  # all rows of a table have the same
        if known not in {None, loading.stream}:
            problem = f"{ledger.table} is loaded with the stream {known!r}"
            raise self._configuration_error(loading, problem, "Name a table for each stream.")

    def _without_unneeded_items(
        self, table: Table, ledger: "Ledger", layout: Layout, loading: Loading
    ) -> Loading:
        """Drop the item ids if rows of these items can only be in the table under this label."""
        if not loading.is_backfill and not (loading.item_ids and ledger.has_backfills()):
            return replace(loading, item_ids=())
        self._check_items(layout, loading)
        if loading.item_ids and table.has_rows_without_item(loading.label):
            problem = f"{table.schema}.{table.name} has rows without {ITEM}: they may be replaced"
            step = "Materialize and load the batches of these rows again."
            raise ItemIdsMissingError(self._unloaded(loading).text(problem, NOTHING_SENT, step))
        return loading

    def _check_items(self, layout: Layout, loading: Loading) -> None:
        if loading.item_ids and not layout.has_item_ids:
            problem = "it replaces items of other batches, but its records have no item ids"
            text = self._unloaded(loading).text(problem, NOTHING_SENT, _ADD_ITEMS)
            raise ItemIdsMissingError(text)

    def _connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                prepare_threshold=None,  # a pooler may change the session
                connect_timeout=_CONNECT_SECONDS,
                application_name="batch-pipeline",
                client_encoding="utf8",
                **NETWORK_LIMITS,
            )
        return self._connection

    def _prepare_tables(
        self, table: Table, ledger: "Ledger", layout: Layout, loading: Loading
    ) -> None:
        """Create or widen the tables.

        This is a separate transaction, so that other sessions do not wait for the DDL locks until
        all rows are copied.
        """
        ledger_table, columns = (replace(table, name=name) for name in (LEDGER_TABLE, COLUMN_TABLE))
        with self._locked(ledger_table):
            ledger_table.create_schema()
            if not ledger_table.columns() or not columns.columns():
                ledger.create()
        with self._locked(table):
            self._check_stream(ledger, loading)  # before the table of another stream is changed
            table.prepare(layout)
            if loading.manifest.records:  # else the layout has no keys in any mode
                table.drop_other_keys(layout.keys)

    @contextmanager
    def _locked(self, table: Table) -> Iterator[None]:
        """Run a transaction that holds the lock of a table."""
        with table.connection.transaction():
            milliseconds = int(self._lock_timeout.total_seconds() * 1000)
            settings = {
                "lock_timeout": f"{milliseconds}ms",
                "timezone": "UTC",
                "extra_float_digits": "1",  # otherwise widening a column may round its values
            }
            for name, value in settings.items():
                table.connection.execute("SELECT set_config(%s, %s, true)", [name, value])
            table.lock()
            yield

    def _is_loaded(self, loaded: tuple[int, UUID] | None, loading: Loading) -> bool:
        manifest = loading.manifest
        if loaded is None or loaded[0] < manifest.generation:
            return False
        if loaded == (manifest.generation, manifest.token):
            return not loading.again
        what = f"generation {loaded[0]} of attempt {loaded[1]}"
        problem = f"the table has {what}, which is not older than generation {manifest.generation}"
        step = (
            "If the inventory was created again, empty the table and its rows in "
            f"{self._target.schema}.{LEDGER_TABLE}; otherwise a newer generation was loaded."
        )
        raise self._configuration_error(loading, problem, step)

    def _configuration_error(self, loading: Loading, problem: str, step: str) -> ConfigurationError:
        return ConfigurationError(self._unloaded(loading).text(problem, NOTHING_SENT, step))

    def _unloaded(self, loading: Loading) -> Unloaded:
        return Unloaded(target=self._target.name, stream=loading.stream, batch=loading.label)

    @contextmanager
    def _translate_errors(self, loading: Loading, table: str) -> Iterator[None]:
        """Translate errors of a block to model errors; close the connection if it failed."""
        try:
            yield
        except RecordValueError as error:
            record = f"record {error.record} of {error.location}"
            unloaded = self._unloaded(loading)
            raise bad_value(unloaded, record, error.column, error.problem) from error
        except UnusablePartError as error:
            raise PartFileChangedError(self._unloaded(loading), str(error)) from error
        except IncompatibleTableError as error:
            problem = f"{self._target.schema}.{table}: {error}"
            raise self._configuration_error(loading, problem, _CORRECT_TABLE) from error
        except RECORD_ERRORS as error:
            column, problem = error.diag.column_name or "", server_message(error)
            raise bad_value(self._unloaded(loading), "a record", column, problem) from error
        except psycopg.Error as error:
            self.close()
            full_name = f"{self._target.schema}.{table}"
            raise load_error(
                error, self._unloaded(loading), table=full_name, server=self._server
            ) from error


def _parse_url(url: str, setting: str) -> tuple[str, str]:
    """Return the URL in libpq's form, and its host and database without user and password.

    Raises:
        InvalidValueError: it is not a Postgres URL. The message contains no part of it.
    """
    match = re.fullmatch(r"(?:postgres|postgresql)(?:\+\w+)?(://.+)", url, re.DOTALL)
    plain = f"postgresql{match[1]}" if match else ""
    try:
        parts = conninfo.conninfo_to_dict(plain)
    except psycopg.ProgrammingError:
        parts = {}  # libpq's message may quote a part of the password
    host, name = str(parts.get("host", "the local socket")), str(parts.get("dbname", ""))
    # If a password has an unescaped @ or /, its tail is parsed as the host or the name.
    if not parts or "@" in host + name:
        raise InvalidValueError(setting, "(not shown)", _EXPECTED_URL)
    return plain, f"{host}/{name}"


_CREATE_LEDGER = """
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
_SELECT_COLUMNS = "SELECT column_name FROM {} WHERE table_name = %s"
_INSERT_COLUMNS = """
INSERT INTO {} (table_name, column_name) SELECT %s, unnest(%s::text[]) ON CONFLICT DO NOTHING
"""
_SELECT_BATCH = "SELECT generation, token FROM {} WHERE table_name = %s AND batch = %s"
_SELECT_STREAM = "SELECT stream FROM {} WHERE table_name = %s LIMIT 1"
_HAS_BACKFILLS = "SELECT EXISTS (SELECT FROM {} WHERE table_name = %s AND strpos(batch, ':') > 0)"
_UPSERT_BATCH = """
INSERT INTO {} AS kept
    (table_name, stream, batch, generation, token, publish_number, records)
VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (table_name, batch) DO UPDATE SET
    stream = excluded.stream, generation = excluded.generation, token = excluded.token,
    publish_number = excluded.publish_number, records = excluded.records, loaded_at = now()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The ledger of one table. Call its methods in the transaction that writes the rows."""

    connection: "psycopg.Connection[tuple[object, ...]]"
    schema: str
    table: str

    def create(self) -> None:
        """Create the ledger's tables if they do not exist."""
        self.connection.execute(self._statement(_CREATE_LEDGER), [])
        self.connection.execute(self._statement(_CREATE_COLUMNS, COLUMN_TABLE), [])

    def loaded_attempt(self, batch: str) -> tuple[int, UUID] | None:
        """Return generation and token of the attempt whose records the table holds."""
        connection: psycopg.Connection[Any] = self.connection
        return connection.execute(self._statement(_SELECT_BATCH), [self.table, batch]).fetchone()

    def stream(self) -> str | None:
        """Return the name of the stream whose batches were loaded into the table, if any."""
        row = self.connection.execute(self._statement(_SELECT_STREAM), [self.table]).fetchone()
        return None if row is None else str(row[0])

    def loaded_columns(self) -> frozenset[str]:
        """Return the columns that batches have loaded; all others belong to the user."""
        rows = self.connection.execute(self._statement(_SELECT_COLUMNS, COLUMN_TABLE), [self.table])
        return frozenset(str(name) for (name,) in rows)

    def has_backfills(self) -> bool:
        """Return whether the table holds batches of backfills; only their labels have a colon."""
        statement = self._statement(_HAS_BACKFILLS)
        return self.connection.execute(statement, [self.table]).fetchone() == (True,)

    def record(self, loading: Loading, columns: Collection[str]) -> None:
        """Record a generation, replacing the previous one, and the columns that it loads."""
        manifest = loading.manifest
        batch = [self.table, loading.stream, loading.label, manifest.generation, manifest.token]
        counts = [loading.publish_number, manifest.records]
        self.connection.execute(self._statement(_UPSERT_BATCH), [*batch, *counts])
        insert_columns = self._statement(_INSERT_COLUMNS, COLUMN_TABLE)
        self.connection.execute(insert_columns, [self.table, [*columns]])

    def _statement(self, statement: str, table: str = LEDGER_TABLE) -> sql.Composed:
        return sql.SQL(statement).format(escaped(self.schema, table))
