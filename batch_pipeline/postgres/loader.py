"""Brings one published generation into a table, with its bookkeeping, in one transaction.

The port `Loader` for targets that are tables of a Postgres server. How rows are made, and what the
table looks like, is known elsewhere.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import psycopg
from psycopg import conninfo

from batch_pipeline.domain.errors import (
    InvalidValueError,
    PartFileChangedError,
    TargetRefusedError,
)
from batch_pipeline.domain.load import Loaded, Loading
from batch_pipeline.domain.target import PostgresTarget, WriteMode
from batch_pipeline.postgres.errors import BadValueError, Subject
from batch_pipeline.postgres.layout import Layout, UnusableNameError, layout_of, short_name
from batch_pipeline.postgres.ledger import COLUMNS, NAME, Kept, Ledger
from batch_pipeline.postgres.parts import UnusablePartError
from batch_pipeline.postgres.rows import BadCellError
from batch_pipeline.postgres.tables import Table, UnfitTableError
from batch_pipeline.postgres.writing import Writing

LOCK_TIMEOUT = timedelta(seconds=60)
_CONNECT_SECONDS = 10
_SILENT_MILLISECONDS = 60_000  # a network that lets nothing through for so long is broken
_EXPECTED = "postgresql://user:password@host:5432/database, special characters %-encoded"
_ADD_ITEMS = (
    "Add `_item_id` to `lineage` in the stream file, materialize the batches again and load them "
    "before this one."
)
_CORRECT_TABLE = (
    "Name another table in the target, or correct this one; then run `batch-pipeline load` again."
)


class PostgresLoader:
    """Loads batches into the table of a target; one connection, opened when it is needed."""

    def __init__(
        self, target: PostgresTarget, url: str, *, lock_timeout: timedelta = LOCK_TIMEOUT
    ) -> None:
        self._target = target
        self._url, self._place = _read(url, f"targets.{target.name}.conn")
        self._lock_timeout = lock_timeout
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def load(self, loading: Loading, storage_root: str) -> Loaded:
        """Bring one published generation into the table, exactly once.

        One transaction makes or widens the table. Another one holds the table's lock, takes the
        rows of the generation before away, copies the new ones and keeps the books.

        Raises:
            BadValueError: a record has a value that the table cannot hold.
            PartFileChangedError: a part file is gone or is not what was published.
            TargetRefusedError: the table or the stream is not fit for this.
            WarehouseBusyError: another session holds the table for too long.
            WarehouseRefusedError: the server refuses a statement.
            WarehouseUnreachableError: the server does not answer.
        """
        name = self._table_name(loading)
        with self._told(loading, name):
            mode = self._mode(loading)
            keys = loading.manifest.key_properties if mode is WriteMode.UPSERT else ()
            layout = layout_of(loading.manifest.schema, keys)
            if loading.is_backfill:
                self._check_items(layout, loading)
            connection = self._connected()
            table = Table(connection=connection, schema=self._target.schema, name=name)
            ledger = Ledger(connection=connection, schema=self._target.schema, table=name)
            self._prepare(table, ledger, layout, loading)
            with self._locked(table):
                self._check_stream(ledger, loading)
                if self._has_it(ledger.kept(loading.label), loading):
                    return Loaded(records=loading.manifest.records, already=True)
                Writing(
                    table=table,
                    layout=layout,
                    loading=self._placed(ledger, layout, loading),
                    mode=mode,
                    brought=ledger.brought(),
                ).write()
                ledger.keep(loading, layout.columns)
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
        except UnusableNameError as error:
            raise self._refused(loading, str(error), _CORRECT_TABLE) from error
        if name in {NAME, COLUMNS}:
            problem = f"the table {name} keeps the books of loads"
            raise self._refused(loading, problem, "Name another table in the target.")
        return name

    def _mode(self, loading: Loading) -> WriteMode:
        manifest = loading.manifest
        if self._target.mode is WriteMode.UPSERT and not manifest.key_properties:
            problem = "`mode: upsert` needs key properties, and the stream has none"
            step = "Add `key_properties` to the stream file, or load with `mode: append`."
            raise self._refused(loading, problem, step)
        # Without records there may be no column that a key could be.
        return self._target.mode if manifest.records else WriteMode.APPEND

    def _check_stream(self, ledger: Ledger, loading: Loading) -> None:
        other = ledger.other_stream(loading.stream)
        if other is not None:
            problem = f"{ledger.table} is loaded with the stream {other!r}"
            raise self._refused(loading, problem, "Name a table for each stream.")

    def _placed(self, ledger: Ledger, layout: Layout, loading: Loading) -> Loading:
        """Leave the items out where no row of them is there under another name."""
        if not loading.is_backfill and not ledger.has_backfills():
            return replace(loading, item_ids=())
        self._check_items(layout, loading)
        return loading

    def _check_items(self, layout: Layout, loading: Loading) -> None:
        if loading.item_ids and not layout.knows_items:
            problem = (
                "it brings items anew that other batches have brought, and its records do not say "
                "which item they are of"
            )
            raise self._refused(loading, problem, _ADD_ITEMS)

    def _connected(self) -> "psycopg.Connection[tuple[object, ...]]":
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=_CONNECT_SECONDS,
                tcp_user_timeout=_SILENT_MILLISECONDS,
                keepalives_idle=_SILENT_MILLISECONDS // 2000,
                application_name="batch-pipeline",
                client_encoding="utf8",
            )
        return self._connection

    def _prepare(self, table: Table, ledger: Ledger, layout: Layout, loading: Loading) -> None:
        """Make what is not there yet; other sessions need not wait for it until all is copied."""
        books, columns = (replace(table, name=name) for name in (NAME, COLUMNS))
        with self._locked(books):
            books.make_schema()
            if not books.columns() or not columns.columns():
                ledger.create()
        with self._locked(table):
            self._check_stream(ledger, loading)  # before the table of another stream is changed
            table.prepare(layout)

    @contextmanager
    def _locked(self, table: Table) -> Iterator[None]:
        """Run a transaction that holds the lock of a table."""
        with table.connection.transaction():
            milliseconds = int(self._lock_timeout.total_seconds() * 1000)
            settings = {"lock_timeout": f"{milliseconds}ms", "timezone": "UTC"}
            for name, value in settings.items():
                table.connection.execute("SELECT set_config(%s, %s, true)", [name, value])
            table.lock()
            yield

    def _has_it(self, kept: Kept | None, loading: Loading) -> bool:
        manifest = loading.manifest
        if kept is None or kept.generation < manifest.generation:
            return False
        if kept.generation == manifest.generation and kept.token == manifest.token:
            return not loading.again
        what = f"generation {kept.generation} of attempt {kept.token}"
        problem = f"the table has {what}, which is not older than generation {manifest.generation}"
        step = (
            "If the inventory was made anew, empty the table and its rows in "
            f"{self._target.schema}.{NAME}; otherwise somebody has loaded a newer generation."
        )
        raise self._refused(loading, problem, step)

    def _refused(self, loading: Loading, problem: str, step: str) -> TargetRefusedError:
        return TargetRefusedError(*self._names(loading), problem, step)

    def _names(self, loading: Loading) -> tuple[str, str, str]:
        return self._target.name, loading.stream, loading.label

    @contextmanager
    def _told(self, loading: Loading, table: str) -> Iterator[None]:
        """Let errors of a block leave as domain errors, with the connection closed if need be."""
        try:
            yield
        except BadCellError as error:
            where = error.location, error.record, error.column
            raise BadValueError(*self._names(loading), *where, error.problem) from error
        except UnusablePartError as error:
            raise PartFileChangedError(*self._names(loading), str(error)) from error
        except (UnfitTableError, UnusableNameError) as error:
            problem = f"{self._target.schema}.{table}: {error}"
            raise self._refused(loading, problem, _CORRECT_TABLE) from error
        except psycopg.Error as error:
            self.close()
            raise self._subject(loading, table).error(error) from error

    def _subject(self, loading: Loading, table: str) -> Subject:
        target, stream, batch = self._names(loading)
        full = f"{self._target.schema}.{table}"
        return Subject(target=target, stream=stream, batch=batch, table=full, place=self._place)


def _read(url: str, setting: str) -> tuple[str, str]:
    """Give the URL as libpq knows it, and the name of its database without user and password.

    Raises:
        InvalidValueError: it is no URL of Postgres; the message holds no part of it.
    """
    found = re.fullmatch(r"(?:postgres|postgresql)(?:\+\w+)?(://.+)", url, re.DOTALL)
    plain = f"postgresql{found[1]}" if found else ""
    try:
        parts = conninfo.conninfo_to_dict(plain)
    except psycopg.ProgrammingError:
        parts = {}  # what libpq says may quote a part of the password
    host, name = str(parts.get("host", "the local socket")), str(parts.get("dbname", ""))
    # The tail of a password with an @ or a / that is not escaped.
    if not parts or "@" in host + name:
        raise InvalidValueError(setting, "(not shown)", _EXPECTED)
    return plain, f"{host}/{name}"
