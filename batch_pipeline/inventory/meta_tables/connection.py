"""Read-only connections to the databases of users' meta tables, their errors and identities."""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.inventory.connection import (
    NETWORK_LIMITS,
    LockClass,
    detach_connections_in_children,
    first_line,
    is_inventory,
    location,
    missing_database,
    replace_connections_in_children,
    replace_dead_connections,
    transaction,
    translate_errors,
)
from batch_pipeline.model.errors import (
    InvalidValueError,
    MetaTableChangedError,
    MetaTableError,
    MetaUnreachableError,
    PipelineError,
    SettingError,
)
from batch_pipeline.model.job import INVENTORY, DatabaseIdentity

_CONNECT_SECONDS = 5
_META_CONN = "BATCH_PIPELINE_META_CONN"
_SETTING = "batch_pipeline_setting"
_SERVER_OPTIONS = (
    "-c lock_timeout=5s -c default_transaction_read_only=on -c datestyle=ISO "
    "-c intervalstyle=postgres"
)


def open_meta_engine(url: str, *, setting: str = _META_CONN) -> sa.Engine:
    """Return an engine for a URL, without connecting.

    Postgres always uses psycopg; MySQL and MariaDB use PyMySQL unless the URL names a driver. Dead
    idle connections are replaced, and a missing SQLite file is not created.

    Args:
        url: an SQLAlchemy URL.
        setting: the name of the setting that holds the URL, for error messages.

    Raises:
        SettingError: the URL cannot be parsed, or its driver is not installed. The message
            contains no user, password or host.
    """
    parsed = _parse_url(url, setting)
    try:
        options = {_SETTING: setting}
        engine = sa.create_engine(parsed, execution_options=options, **_engine_options(parsed))
    except ModuleNotFoundError as error:
        step = "Install it, or name another driver as in mysql+pymysql://…"
        raise _invalid_url(setting, f"its driver {error.name!r} is not installed", step) from error
    except exc.NoSuchModuleError as error:
        raise _invalid_url(setting, f"{parsed.drivername!r} is not a known database") from error
    except (exc.ArgumentError, TypeError, ValueError):
        raise _invalid_url(setting, "its parameters are not valid") from None
    if engine.dialect.name == "postgresql":
        replace_dead_connections(engine)
        detach_connections_in_children(engine)
    elif engine.dialect.name != "sqlite":
        replace_connections_in_children(engine)
    return engine


def _parse_url(url: str, setting: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError):  # the reason may quote the password
        raise _invalid_url(setting, "it is not a database URL") from None
    if "@" in (parsed.host or ""):  # the tail of a password with an unescaped @
        raise _invalid_url(setting, "its password has an @ that is not written as %40")
    kind, _, driver = parsed.drivername.partition("+")
    if kind in {"postgres", "postgresql"}:
        return parsed.set(drivername="postgresql+psycopg")
    if kind in {"mysql", "mariadb"} and not driver and find_spec("MySQLdb") is None:
        return parsed.set(drivername=f"{kind}+pymysql")
    path, query = parsed.database, parsed.query
    if kind == "sqlite" and path not in {None, "", ":memory:", "file::memory:"}:
        # SQLite creates a missing file unless it is opened by a URI with this mode.
        is_uri = "uri" in query and path.startswith("file:")
        return parsed.set(
            database=path if is_uri else f"file:{quote(path)}",
            query={"mode": "rw", **query, "uri": "true"},
        )
    return parsed


def _engine_options(url: sa.URL) -> dict[str, Any]:
    kind, _, driver = url.drivername.partition("+")
    if kind == "sqlite":
        # Opening a file is cheap, and a pool would continue to read a file that was removed.
        return {"poolclass": sa.pool.NullPool} if "uri" in url.query else {}
    pool_options: dict[str, Any] = {"pool_size": 4, "max_overflow": 12}
    if kind == "postgresql":
        url_options = url.query.get("options", "")
        defaults = {
            "connect_timeout": _CONNECT_SECONDS,
            "application_name": "batch-pipeline",
            "client_encoding": "utf8",
            **NETWORK_LIMITS,
        }
        arguments = {name: value for name, value in defaults.items() if name not in url.query}
        given = [url_options] if isinstance(url_options, str) else url_options
        options = " ".join([_SERVER_OPTIONS, *given]).strip()
        pool_options["use_native_hstore"] = False  # as the inventory's
        return pool_options | {"connect_args": arguments | {"options": options}}
    if driver in {"pymysql", "mysqldb"}:
        pool_options["connect_args"] = {"connect_timeout": _CONNECT_SECONDS}
    return pool_options | {"pool_pre_ping": True}


def _invalid_url(setting: str, problem: str, step: str = "") -> SettingError:
    form = "postgresql://user:password@host:5432/database"
    step = step or f"Write it as {form}, special characters %-encoded."
    return SettingError(setting, "its value is not shown", problem, step)


# By SQLSTATE on Postgres, by error number on MySQL and MariaDB, by text on SQLite.
_DENIED = {"42501", 1142, 1143, 1370}
_BUSY = {"55P03", "40P01", "40001", "57014", 1205, 1213, 1317, 1969, 3024, 3572}
# Also a type that no longer matches, and a plan that psycopg prepared before a change.
_GONE = {"42P01", "42703", "3F000", "42804", "42883", "0A000", 1146, 1054}
_REFUSED = {1040, 1042, 1043, 1044, 1045, 1053, 1129, 1130, 1203, 1226, 1927}
LOCK_NOT_AVAILABLE = {1205, 3572}
# Also a packet that is larger than the MySQL server or driver accepts.
_TOO_LONG = {1153, 2020}
_TOO_MANY = re.compile("number of parameters must be|too many SQL variables|tree is too large")


@contextmanager
def read_transaction(engine: sa.Engine, isolation: str | None = None) -> Iterator[sa.Connection]:
    """Run a block in a transaction; database errors are raised as errors of the model.

    For a table of the inventory, the errors are those of `connection.transaction`.

    Raises:
        MetaUnreachableError: the connection failed, a lock or a statement timed out, or all
            connections are in use.
        MetaTableError: the role may not read the table.
        MetaTableChangedError: the table or a column no longer exists.
        SettingError: the server has no such database.
        InvalidValueError: a filter has more values than a statement accepts.
    """
    translated = translate_errors if is_inventory(engine) else _translate_errors
    with translated(engine), engine.connect() as connection:
        if isolation is not None:
            connection.execution_options(isolation_level=isolation)
        with connection.begin():
            yield connection


@contextmanager
def _translate_errors(engine: sa.Engine) -> Iterator[None]:
    try:
        yield
    except exc.DBAPIError as error:
        raise _domain_error(engine, error) from error
    except exc.TimeoutError as error:
        raise MetaUnreachableError(
            f"The meta table's database at {database_label(engine)} cannot be used now (all "
            f"connections of this process are in use). Nothing was changed. Run again, with fewer "
            f"threads."
        ) from error


@contextmanager
def read_one_statement(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Run a block that sends one statement; on Postgres without BEGIN and COMMIT.

    Raises:
        PipelineError: as for `read_transaction`.
    """
    isolation = "AUTOCOMMIT" if engine.dialect.name == "postgresql" else None
    with read_transaction(engine, isolation) as connection:
        driver: Any = connection.connection.driver_connection
        threshold = getattr(driver, "prepare_threshold", None)
        if threshold is not None:
            # A plan that psycopg prepares ignores the filter's values and later growth of the
            # table. It uses no partial index and could read the whole table.
            driver.prepare_threshold = None
        try:
            yield connection
        finally:
            # Only the inventory's connections prepare their other statements again.
            if threshold is not None and is_inventory(engine):
                driver.prepare_threshold = threshold


def database_label(engine: sa.Engine) -> str:
    """Return host, port and database for messages, without user and password."""
    url = engine.url
    if engine.dialect.name == "sqlite":
        return (url.database or "an in-memory SQLite database").removeprefix("file:")
    return location(engine)


def error_code(error: exc.DBAPIError) -> object:
    """Return MySQL's error number or the SQLSTATE; None if the driver reports neither."""
    number = error.orig.args[0] if isinstance(error.orig, BaseException) and error.orig.args else 0
    return number if isinstance(number, int) else getattr(error.orig, "sqlstate", None)


def _domain_error(engine: sa.Engine, error: exc.DBAPIError) -> PipelineError | exc.DBAPIError:
    code, reason, place = error_code(error), _reason(error.orig), database_label(engine)
    setting = engine.get_execution_options().get(_SETTING, _META_CONN)
    missing = missing_database("The meta table's database", place, reason)
    if missing is not None or code in _TOO_LONG or _TOO_MANY.search(str(error.orig)):
        expected = f"fewer or shorter values ({reason}); use `in` with one list"
        return missing or InvalidValueError("where", "(not shown)", expected)
    if code in _DENIED:
        return MetaTableError(
            f"The meta table at {place} cannot be read: permission denied ({reason}). Nothing was "
            f"changed. Grant SELECT on it (and USAGE on its schema) to the role of "
            f"{setting}."
        )
    if code in _GONE or reason.startswith(("no such table", "no such column")):
        return MetaTableChangedError(place, reason)
    if code in _BUSY or reason.startswith("database is locked"):
        return MetaUnreachableError(
            f"The meta table's database at {place} cancelled a read ({reason}). Nothing "
            f"was changed. Run again; if it fails again, look for sessions that lock the table."
        )
    operational = isinstance(error, exc.OperationalError)
    refused = not isinstance(code, int) or code in _REFUSED or 2000 <= code < 3000
    never_connected = error.statement is None and not isinstance(error, exc.DataError)
    if never_connected or error.connection_invalidated or (operational and refused):
        return MetaUnreachableError(
            f"The meta table's database at {place} cannot be reached ({reason}). Nothing was "
            f"changed. Start it or correct {setting}, then run again."
        )
    return error


def _reason(error: BaseException | None) -> str:
    if error is not None and len(error.args) > 1 and isinstance(error.args[1], str):
        return error.args[1].splitlines()[0]  # MySQL: number, text
    return first_line(error)


def is_same_database(inventory: sa.Engine, meta: sa.Engine) -> bool:
    """Return whether two engines use the same database, determined by an advisory lock."""
    if inventory is meta:
        return True
    if meta.dialect.name != "postgresql":
        return False
    key = secrets.randbits(31)
    is_locked = sa.text(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' "
        "AND database = (SELECT oid FROM pg_catalog.pg_database "
        "WHERE datname = current_database()) AND classid = :purpose AND objid = :key)"
    )
    names = {"purpose": int(LockClass.SAME_DATABASE), "key": key}
    with read_transaction(meta) as meta_connection, transaction(inventory) as inventory_connection:
        meta_connection.execute(
            sa.text("SELECT pg_catalog.pg_advisory_xact_lock(:purpose, :key)"), names
        )
        return bool(inventory_connection.execute(is_locked, names).scalar_one())


_LOCAL_HOSTS = {"", "localhost", "127.0.0.1", "::1"}
_POSTGRES = sa.text("""
SELECT d.oid::text AS oid, d.datname AS name,
       coalesce(pg_catalog.has_function_privilege(
           pg_catalog.to_regprocedure('pg_catalog.pg_control_system()'), 'EXECUTE'), false)
           AS may_read_system
  FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
""")
_SYSTEM = sa.text("SELECT system_identifier::text FROM pg_catalog.pg_control_system()")
# The id of the group or cluster comes first, since each member also has its own id.
MYSQL_CLUSTER = sa.text("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_state_uuid'")
_MYSQL_VARIABLES = sa.text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
    "('group_replication_group_name', 'server_uuid', 'server_uid')"
)
_MYSQL_SERVER = sa.text("SELECT @@hostname, @@port, @@datadir")


def database_identity(meta: sa.Engine, inventory: sa.Engine) -> DatabaseIdentity:
    """Return the identity of a meta table's database; `INVENTORY` if it is the inventory's own.

    This takes a few queries, so it is done when a table is opened, not for every batch.

    Raises:
        MetaUnreachableError: the database does not answer.
    """
    if meta is inventory:
        return INVENTORY
    kind, label = meta.dialect.name, database_label(meta)
    with read_transaction(meta) as connection:
        if kind in {"mysql", "mariadb"}:
            return _mysql_identity(connection, meta)
        if kind == "sqlite":
            return _sqlite_identity(connection)
        if kind != "postgresql":
            return DatabaseIdentity(kind=kind, shown=f"{kind} {label}", database=label)
        identity = _postgres_identity(connection, label)
    with transaction(inventory) as connection:
        own_identity = _postgres_identity(connection, "")
    # A standby of the inventory's server has the same identity, although it shares no locks.
    if identity.servers and own_identity.servers:
        return INVENTORY if identity.is_same(own_identity) else identity
    return INVENTORY if is_same_database(inventory, meta) else identity


def _postgres_identity(connection: sa.Connection, address: str) -> DatabaseIdentity:
    row = connection.execute(_POSTGRES).one()
    if not row.may_read_system:
        label = f"{address} (PostgreSQL database {row.oid})"
        database = f"{row.oid} {row.name}"
        return DatabaseIdentity(kind="postgresql", shown=label, database=database)
    system: str = connection.execute(_SYSTEM).scalar_one()
    label = f"{address} (PostgreSQL system {system}, database {row.oid})"
    return DatabaseIdentity(
        kind="postgresql", shown=label, database=row.oid, servers=(f"system {system}",)
    )


def _mysql_identity(connection: sa.Connection, engine: sa.Engine) -> DatabaseIdentity:
    """Return the identity of the server. The schema is part of the table's canonical name.

    The nodes of a cluster, and the servers behind an address before and after a failover, have
    different ids, so the address is an alternative identity. Local addresses are excluded.
    """
    rows = [*connection.execute(MYSQL_CLUSTER), *connection.execute(_MYSQL_VARIABLES)]
    servers = [f"{name} {value}" for name, value in rows if str(value).strip("0-")]
    if not servers:
        hostname, port, folder = connection.execute(_MYSQL_SERVER).one()
        servers = [f"server {hostname}:{port} {folder}"]
    host = (engine.url.host or "").casefold()
    if host not in _LOCAL_HOSTS:
        servers.append(f"address {host}:{engine.url.port or 3306}")
    label = f"{database_label(engine)} (MySQL or MariaDB, {servers[0]})"
    return DatabaseIdentity(kind="mysql", shown=label, servers=tuple(servers))


def _sqlite_identity(connection: sa.Connection) -> DatabaseIdentity:
    rows = connection.execute(sa.text("PRAGMA database_list")).all()
    file = next((row[2] for row in rows if row[1] == "main"), "")
    path = os.path.realpath(file) if file else ":memory:"
    return DatabaseIdentity(kind="sqlite", shown=f"the SQLite file {path}", database=path)
