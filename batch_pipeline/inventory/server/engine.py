"""Connections to the inventory: one way to open them, one place that names what goes wrong."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.domain.errors import (
    DatabaseTooOldError,
    DatabaseUnreachableError,
    InvalidValueError,
    LockTimeoutError,
    OverlapError,
    PermissionDeniedError,
    PipelineError,
    SettingError,
)
from batch_pipeline.inventory.server.forks import leave_connections_to_parent
from batch_pipeline.inventory.server.hang_ups import replace_dead_connections
from batch_pipeline.inventory.server.holders import holders
from batch_pipeline.inventory.tables import NON_OVERLAP

MINIMUM_VERSION = (13, 0)
_CONNECT_SECONDS = 5
_NO_DATABASE = re.compile(r"""database ".+" does not exist|Unknown database '""")


def normalized_url(url: str, *, driver: str) -> str:
    """Give a Postgres URL with the driver named, since a bare one means different drivers by
    version.

    Raises:
        InvalidValueError: it is no Postgres URL; the message holds no part of it.
    """
    match = re.fullmatch(r"(?:postgres|postgresql)(?:\+\w+)?(://.+)", url, re.DOTALL)
    if match is None:
        raise _unreadable_url()
    normalized = f"postgresql+{driver}{match[1]}"
    try:
        host = sa.make_url(normalized).host or ""
    except (exc.ArgumentError, ValueError):
        raise _unreadable_url() from None  # the reason may quote a part of the password
    if "@" in host:  # the tail of a password with an unescaped @, which errors would show
        raise _unreadable_url()
    return normalized


def _unreadable_url() -> InvalidValueError:
    expected = "postgresql://user:password@host:5432/database, special characters %-encoded"
    return InvalidValueError("BATCH_PIPELINE_INVENTORY_CONN", "(not shown)", expected)


def open_engine(url: str) -> sa.Engine:
    """Make an engine for the inventory and check that its server answers and is new enough.

    Raises:
        InvalidValueError: the URL cannot be understood.
        DatabaseUnreachableError: it does not answer within 5 s.
        SettingError: the server has no such database.
        DatabaseTooOldError: the server is older than PostgreSQL 13.
    """
    engine = sa.create_engine(
        normalized_url(url, driver="psycopg"),
        pool_size=4,
        max_overflow=12,
        connect_args={
            "connect_timeout": _CONNECT_SECONDS,
            "application_name": "batch-pipeline",
            # Names without a schema are the server's own, whatever the role's path has in front.
            "options": "-c search_path=pg_catalog,pg_temp -c timezone=UTC -c lock_timeout=5s "
            "-c idle_in_transaction_session_timeout=60s",
        },
    )
    replace_dead_connections(engine)
    leave_connections_to_parent(engine)
    try:
        check_version(engine)
    except exc.ProgrammingError:
        raise _unreadable_url() from None  # libpq knows no such parameter
    except BaseException:
        engine.dispose()
        raise
    return engine


def check_version(engine: sa.Engine) -> None:
    """Check that the server answers and is new enough.

    Raises:
        DatabaseUnreachableError: it does not answer within 5 s.
        DatabaseTooOldError: the server is older than PostgreSQL 13.
    """
    with transaction(engine):
        version = engine.dialect.server_version_info or (0, 0)
    if version < MINIMUM_VERSION:
        found, minimum = (".".join(map(str, v)) for v in (version, MINIMUM_VERSION))
        raise DatabaseTooOldError(location(engine), found, minimum)


def location(engine: sa.Engine) -> str:
    """Name the server for people: host, port and database, never the user's password."""
    url = engine.url
    host = url.host or url.query.get("host") or "the local socket"
    port = f":{url.port}" if url.port else ""
    return f"{host}{port}/{url.database}"


@contextmanager
def transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Run a block in one READ COMMITTED transaction; database errors leave as domain errors.

    Raises:
        DatabaseUnreachableError: the connection failed.
        LockTimeoutError: a lock was not had within 5 s, or the server chose us to end a deadlock.
        OverlapError: a batch overlaps another one of its job.
        PermissionDeniedError: the role may not do this, or the server only reads.
    """
    with named_errors(engine), engine.begin() as connection:
        yield connection


@contextmanager
def named_errors(engine: sa.Engine) -> Iterator[None]:
    """Let database errors of a block leave as domain errors, as `transaction` does."""
    try:
        yield
    except exc.DBAPIError as error:
        lost = isinstance(error, exc.OperationalError) or error.connection_invalidated
        raise _domain_error(engine, error.orig, lost=lost) or error from error
    except psycopg.Error as error:  # of a COPY, which SQLAlchemy has nothing to do with
        lost = isinstance(error, psycopg.OperationalError)
        raise _domain_error(engine, error, lost=lost) or error from error
    except exc.TimeoutError as error:
        reason = "all connections of this process are in use"
        raise DatabaseUnreachableError(location(engine), reason) from error


def _domain_error(
    engine: sa.Engine, error: BaseException | None, *, lost: bool
) -> PipelineError | None:
    code = getattr(error, "sqlstate", None)
    reason = _first_line(error)
    if code == "23P01" and NON_OVERLAP in str(error):
        return OverlapError("inventory", _detail(error))
    if code in {"42501", "25006"}:  # insufficient privilege, read-only transaction
        return PermissionDeniedError(location(engine), reason)
    if code == "55P03":
        return LockTimeoutError(location(engine), f"{reason}; in the way: {holders(engine)}")
    if code in {"40P01", "40001"}:  # deadlock, serialization failure: who was in the way went on
        return LockTimeoutError(location(engine), reason)
    if not lost:
        return None
    missing = missing_database("The inventory's database", location(engine), reason)
    return missing or DatabaseUnreachableError(location(engine), reason)


def missing_database(what: str, place: str, reason: str) -> SettingError | None:
    """Return the error for a database that its server does not have; None for other reasons.

    A connection that was refused has no SQLSTATE, so this goes by the server's words.
    """
    if not _NO_DATABASE.search(reason):
        return None
    step = "Create it or correct the URL."
    return SettingError(what, place, f"it does not exist ({reason})", step)


def _first_line(error: BaseException | None) -> str:
    text = str(error or "").strip()
    # libpq repeats the connection string's host and user here, never its password.
    return text.splitlines()[0] if text else "no reason given"


def _detail(error: BaseException | None) -> str:
    diagnostic = getattr(error, "diag", None)
    return getattr(diagnostic, "message_detail", None) or _first_line(error)
