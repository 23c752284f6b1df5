"""Connections to the inventory: engines, transactions, advisory locks and database errors."""

import os
import re
import select
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import cache
from importlib import resources
from typing import Any, cast

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import event, exc
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from batch_pipeline.inventory.tables import NON_OVERLAP, SCHEMA
from batch_pipeline.model.errors import (
    ConfigurationError,
    DatabaseUnreachableError,
    InvalidValueError,
    InvariantError,
    PermissionDeniedError,
    PipelineError,
    RetryableError,
    SettingError,
)


class LockClass(IntEnum):
    """The first key of two-key advisory locks: `bp` in ASCII and a number.

    They are released with the transaction; the liveness lock of `Heartbeat`, with the session.
    """

    MIGRATE = 0x62700001
    PLAN = 0x62700002
    REGISTER = 0x62700003
    SAME_DATABASE = 0x62700004
    LOAD = 0x62700005


def lock_in_transaction(connection: sa.Connection, purpose: LockClass, name: str) -> None:
    """Take the lock of a name until the transaction ends; wait at most `lock_timeout`."""
    key = sa.func.hashtext(sa.cast(name, sa.Text))
    lock = sa.func.pg_advisory_xact_lock(sa.cast(int(purpose), sa.Integer), key)
    connection.execute(sa.select(lock))


_PLANNING = sa.select(
    sa.func.pg_advisory_xact_lock(
        sa.literal(int(LockClass.PLAN), sa.Integer), sa.bindparam("job_id", type_=sa.Integer)
    )
)


def lock_planning(connection: sa.Connection, job_id: int) -> None:
    """Take the planning lock of a job until the transaction ends; wait at most `lock_timeout`."""
    connection.execute(_PLANNING, {"job_id": job_id})


# The owner of an attempt or load is gone if its lease has expired or its liveness lock is free. A
# server restart releases all locks, so afterwards only the lease counts until it is renewed. The
# crash of a session releases them, too; it resets the statistics, but not the start time.
_OWNER_IS_GONE = """(
    attempt.lease_until < clock_timestamp()
    OR attempt.renewed_at > greatest(
           pg_postmaster_start_time(), (SELECT stats_reset FROM pg_catalog.pg_stat_bgwriter))
       AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_locks
         WHERE locktype = 'advisory'
           AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname =
           current_database()) AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) =
           attempt.liveness_key))
"""
OWNER_IS_GONE = sa.text(_OWNER_IS_GONE)
OWNER_IS_THERE = sa.text("NOT " + _OWNER_IS_GONE)
LOADER_IS_GONE = sa.text(_OWNER_IS_GONE.replace("attempt.", "load."))
LOADER_IS_THERE = sa.text("NOT " + _OWNER_IS_GONE.replace("attempt.", "load."))


def detach_connections_in_children(engine: sa.Engine) -> None:
    """Detach the open connections of a psycopg engine in forked child processes.

    Otherwise a child would write to its parent's sessions, and the sessions with their liveness
    locks would survive if the parent is killed.
    """
    connections = _connections_to_detach()

    def remember(connection: "DBAPIConnection", _entry: ConnectionPoolEntry) -> None:
        connections.add(cast("psycopg.Connection", connection))

    event.listen(engine, "connect", remember)


def replace_connections_in_children(engine: sa.Engine) -> None:
    """Make forked child processes use connections of their own, with any driver."""
    _engines_to_replace().add(engine)


@cache
def _engines_to_replace() -> "weakref.WeakSet[sa.Engine]":
    engines: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
    inherited: list[sa.Pool] = []  # never closed: closing would end the parent's sessions

    def replace_pools() -> None:
        for engine in list(engines):
            inherited.append(engine.pool)
            engine.dispose(close=False)

    os.register_at_fork(after_in_child=replace_pools)
    return engines


@cache  # a handler cannot be removed, so one for each engine would outlive the engine
def _connections_to_detach() -> "weakref.WeakSet[psycopg.Connection]":
    connections: weakref.WeakSet[psycopg.Connection] = weakref.WeakSet()

    def detach() -> None:
        devnull = os.open(os.devnull, os.O_RDWR)
        for connection in list(connections):
            # Not closed: closing would end the parent's session on the server.
            with suppress(psycopg.Error, OSError):
                os.dup2(devnull, connection.fileno(), inheritable=False)
        os.close(devnull)

    os.register_at_fork(after_in_child=detach)
    return connections


def is_connection_dead(raw: psycopg.Connection) -> bool:
    """Return whether an idle psycopg connection is closed or was closed by the server.

    The server sends nothing to an idle session, so a readable socket means that it ended.
    """
    if raw.closed:
        return True
    poll = select.poll()  # select.select rejects descriptors above 1,023
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def replace_dead_connections(engine: sa.Engine) -> None:
    """Make the pool of a psycopg engine replace connections that were closed while idle.

    Like `pool_pre_ping`, but without its round trip.
    """

    def discard_if_dead(
        connection: DBAPIConnection, _entry: ConnectionPoolEntry, _proxy: PoolProxiedConnection
    ) -> None:
        if is_connection_dead(cast("psycopg.Connection", connection)):
            raise exc.DisconnectionError("the server closed the connection")

    event.listen(engine, "checkout", discard_if_dead)


def use_utc(engine: sa.Engine) -> None:
    """Make the new sessions of an engine use the time zone UTC."""

    def set_zone(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute("SET TIME ZONE 'UTC'")
        cursor.close()
        connection.commit()

    event.listen(engine, "connect", set_zone)


UNKNOWN_HOLDER = "a session that has just ended"
_MAX_HOLDERS = 3


def lock_holders(engine: sa.Engine) -> str:
    """Describe up to three sessions that hold locks of the inventory, oldest first.

    Uses a connection of its own. The text also covers the cases where no session holds a lock
    any more and where the server does not answer.
    """
    try:
        with engine.connect() as connection:
            holders = list_lock_holders(connection, LockClass, tables=True)
    except (exc.DBAPIError, exc.TimeoutError):
        return "an unknown session"
    return ", ".join(holders[:_MAX_HOLDERS]) or UNKNOWN_HOLDER


def list_lock_holders(
    connection: sa.Connection,
    purposes: Iterable[LockClass] = (),
    *,
    tables: bool = False,
    readers: bool = False,
) -> list[str]:
    """Describe the sessions that hold advisory locks of these classes, oldest transaction first.

    With `tables`, include those that have locked a table of the inventory; with `readers`, even if
    they only read it.
    """
    values = {
        "purposes": [int(purpose) for purpose in purposes],
        "tables": tables,
        "readers": readers,
        "schema": SCHEMA,
    }
    return [
        _describe_holder(*row)
        for row in connection.execute(named_statement("lock_holders"), values)
    ]


def _describe_holder(pid: int | None, application: str | None, seconds: int | None) -> str:
    if pid is None:
        return "a prepared transaction"
    since = "" if seconds is None else f", in a transaction for {seconds} s"
    return f"pid {pid} ({application or 'no application name'}{since})"


MINIMUM_VERSION = (13, 0)
_IS_INVENTORY = "batch_pipeline_inventory"
_CONNECT_SECONDS = 5
# A connection fails if its server does not respond for a minute.
NETWORK_LIMITS: dict[str, Any] = {
    "tcp_user_timeout": 60_000,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
}
_NO_DATABASE = re.compile(r"""database ".+" does not exist|Unknown database '""")


def normalize_url(url: str, *, driver: str) -> str:
    """Return a Postgres URL with an explicit driver, because the default differs by version.

    Raises:
        InvalidValueError: this is not a Postgres URL. The message contains no part of it.
    """
    match = re.fullmatch(r"(?:postgres|postgresql)(?:\+\w+)?(://.+)", url, re.DOTALL)
    if match is None:
        raise _invalid_url()
    normalized = f"postgresql+{driver}{match[1]}"
    try:
        host = sa.make_url(normalized).host or ""
    except (exc.ArgumentError, ValueError):
        raise _invalid_url() from None  # the reason may quote a part of the password
    if "@" in host:  # the end of a password with an unescaped @, which errors would show
        raise _invalid_url()
    return normalized


def _invalid_url() -> InvalidValueError:
    expected = "postgresql://user:password@host:5432/database, special characters %-encoded"
    return InvalidValueError("BATCH_PIPELINE_INVENTORY_CONN", "(not shown)", expected)


def open_engine(url: str) -> sa.Engine:
    """Create an engine for the inventory and check that its server answers and is new enough.

    Raises:
        InvalidValueError: the URL is invalid.
        DatabaseUnreachableError: the server does not answer within 5 s.
        SettingError: the server has no such database.
        ConfigurationError: the server is older than PostgreSQL 13.
    """
    engine = sa.create_engine(
        normalize_url(url, driver="psycopg"),
        pool_size=4,
        max_overflow=12,
        # It is not used, and psycopg would log an interruption of the query for its type.
        use_native_hstore=False,
        execution_options={_IS_INVENTORY: True},
        connect_args={
            "connect_timeout": _CONNECT_SECONDS,
            **NETWORK_LIMITS,
            "application_name": "batch-pipeline",
            "client_encoding": "utf8",
            # Settings of roles and databases must not change what statements mean or return.
            # Unqualified names are those of the server.
            "options": "-c search_path=pg_catalog,pg_temp -c timezone=UTC -c datestyle=ISO "
            "-c intervalstyle=postgres -c default_transaction_isolation=read\\ committed "
            "-c lock_timeout=5s -c idle_in_transaction_session_timeout=60s "
            # The server notices as soon that a machine has vanished; by default after two hours.
            "-c tcp_user_timeout=60s -c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10",
        },
    )
    replace_dead_connections(engine)
    detach_connections_in_children(engine)
    try:
        check_version(engine)
    except exc.ProgrammingError:
        raise _invalid_url() from None  # libpq does not know a parameter of the URL
    except BaseException:
        engine.dispose()
        raise
    return engine


def check_version(engine: sa.Engine) -> None:
    """Check that the server answers and is new enough.

    Raises:
        DatabaseUnreachableError: the server does not answer within 5 s.
        ConfigurationError: the server is older than PostgreSQL 13.
    """
    with transaction(engine):
        version = engine.dialect.server_version_info or (0, 0)
    if version < MINIMUM_VERSION:
        actual, minimum = (".".join(map(str, v)) for v in (version, MINIMUM_VERSION))
        raise ConfigurationError(
            f"The inventory database at {location(engine)} is PostgreSQL {actual}; at least "
            f"{minimum} is required. Nothing was changed. Upgrade the server, or set "
            f"BATCH_PIPELINE_INVENTORY_CONN to another one."
        )


def is_inventory(engine: sa.Engine) -> bool:
    """Return whether an engine was created by `open_engine`."""
    return _IS_INVENTORY in engine.get_execution_options()


def location(engine: sa.Engine) -> str:
    """Return host, port and database for messages, without credentials."""
    url = engine.url
    host = url.host or url.query.get("host") or "the local socket"
    port = f":{url.port}" if url.port else ""
    return f"{host}{port}/{url.database}"


@contextmanager
def transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Run a block in one READ COMMITTED transaction and translate database errors.

    Raises:
        DatabaseUnreachableError: the connection failed.
        RetryableError: a lock was not acquired within 5 s, or a deadlock was detected.
        InvariantError: a batch overlaps another batch of its job.
        PermissionDeniedError: the role lacks a privilege, or the server is read-only.
    """
    with translate_errors(engine), engine.begin() as connection:
        yield connection


@cache
def named_statement(name: str, *json_parameters: str, **replaced: str) -> sa.TextClause:
    """Return the statement of a `.sql` file of this package, with some words replaced.

    A JSON parameter that is None is bound as NULL.
    """
    lines = resources.files(__package__).joinpath(f"{name}.sql").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("--"))
    for word, replacement in replaced.items():
        text = text.replace(word, replacement)
    json = JSONB(none_as_null=True)
    return sa.text(text).bindparams(*(sa.bindparam(key, type_=json) for key in json_parameters))


def copy_rows(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Insert rows by COPY, in constant memory and a fifth of the time of INSERT statements."""
    raw = connection.connection.driver_connection
    assert raw is not None  # noqa: S101 - the connection is open
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(SCHEMA, table.name), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with raw.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


def fetch_rows(
    engine: sa.Engine, statement: sa.Executable, values: Mapping[str, Any] | None = None
) -> Sequence[sa.Row[Any]]:
    """Execute one statement in a transaction of its own and return its rows."""
    with transaction(engine) as connection:
        return connection.execute(statement, values).all()


def fetch_row(engine: sa.Engine, statement: sa.Executable) -> sa.Row[Any] | None:
    """Execute a statement like `fetch_rows`; return its only row, None without rows."""
    with transaction(engine) as connection:
        return connection.execute(statement).one_or_none()


def fetch_column(engine: sa.Engine, statement: sa.Executable) -> list[Any]:
    """Execute a statement like `fetch_rows`; return the first value of each row."""
    return [row[0] for row in fetch_rows(engine, statement)]


def fetch_value(engine: sa.Engine, statement: sa.Executable) -> Any | None:
    """Execute a statement like `fetch_rows`; return its only value, None without rows."""
    row = fetch_row(engine, statement)
    return None if row is None else row[0]


@contextmanager
def translate_errors(engine: sa.Engine) -> Iterator[None]:
    """Translate the database errors of a block to errors of the model, as `transaction` does."""
    try:
        yield
    except (exc.DBAPIError, psycopg.Error) as error:  # the second of a COPY
        lost = isinstance(error, exc.OperationalError | psycopg.OperationalError)
        cause: BaseException | None = error
        if isinstance(error, exc.DBAPIError):
            cause, lost = error.orig, lost or error.connection_invalidated
        translated = _domain_error(engine, cause, lost=lost)
        if translated is None:
            raise
        raise translated from error
    except exc.TimeoutError as error:
        reason = "all connections of this process are in use"
        raise DatabaseUnreachableError(location(engine), reason) from error


def _domain_error(
    engine: sa.Engine, error: BaseException | None, *, lost: bool
) -> PipelineError | None:
    code = getattr(error, "sqlstate", None)
    reason = first_line(error)
    if code == "23P01" and NON_OVERLAP in str(error):
        diagnostic = getattr(error, "diag", None)
        detail = getattr(diagnostic, "message_detail", None) or reason
        return InvariantError(
            f"inventory: the database refused a batch that overlaps another batch ({detail}). "
            f"Nothing was written. Please report this with the output of `batch-pipeline status`."
        )
    if code in {"42501", "25006"}:  # insufficient privilege, read-only transaction
        return PermissionDeniedError(location(engine), reason)
    if code == "55P03":
        return lock_timeout(location(engine), f"{reason}; blocked by: {lock_holders(engine)}")
    if code in {"40P01", "40001"}:  # deadlock, serialization failure: the other session continued
        return lock_timeout(location(engine), reason)
    return _server_error(location(engine), code, reason) if lost else None


def _server_error(place: str, code: str | None, reason: str) -> PipelineError:
    """Return the error for a server that cannot be reached or cannot execute a statement."""
    if code is not None and (code[:2] in {"53", "54"} or code == "57014"):
        # It has no resources, or a limit or a timeout of its own.
        return RetryableError(
            f"The inventory database at {place} refused a statement ({reason}). Nothing was "
            f"changed. Correct the cause, then run again."
        )
    missing = missing_database("The inventory's database", place, reason)
    return missing or DatabaseUnreachableError(place, reason)


def missing_database(what: str, place: str, reason: str) -> SettingError | None:
    """Return the error for a database that does not exist; None for other reasons.

    A refused connection has no SQLSTATE, so this matches the server's message.
    """
    if not _NO_DATABASE.search(reason):
        return None
    step = "Create it or correct the URL."
    return SettingError(what, place, f"it does not exist ({reason})", step)


def first_line(error: BaseException | None) -> str:
    """Return the first line of an error's text."""
    text = str(error or "").strip()
    # libpq repeats the connection string's host and user here, never its password.
    return text.splitlines()[0] if text else "no reason given"


def lock_timeout(location: str, reason: str) -> RetryableError:
    """Return the error for a lock that another session holds for too long."""
    return RetryableError(
        f"Another session holds a lock at {location} ({reason}). Nothing was "
        f"changed. Run again; if it persists, look for an open transaction in pg_stat_activity."
    )
