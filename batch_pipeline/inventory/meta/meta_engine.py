"""Connections to the database of a user's meta table: short reads, and names for what goes wrong.

Nothing here writes, and nothing here touches the inventory: the two may be different servers.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.domain.errors import (
    InvalidValueError,
    MetaBusyError,
    MetaPermissionError,
    MetaTableChangedError,
    MetaUnreachableError,
    PipelineError,
)
from batch_pipeline.inventory.server.engine import missing_database

# By SQLSTATE on Postgres, by error number on MySQL and MariaDB, by text on SQLite.
_DENIED = {"42501", 1142, 1143, 1370}
_BUSY = {"55P03", "40P01", "40001", "57014", 1205, 1213, 1969, 3024, 3572}
# Also: a type that no longer fits, and a plan of psycopg's for the table as it was.
_GONE = {"42P01", "42703", "3F000", "42804", "42883", "0A000", 1146, 1054}
_REFUSED = {1040, 1042, 1043, 1044, 1045, 1053, 1129, 1130, 1203, 1226, 1927}
NOT_YET = {1205, 3572}
# Also: a packet that is larger than the server or the driver of MySQL takes.
_TOO_LONG = {1153, 2020}
_TOO_MANY = re.compile("number of parameters must be|too many SQL variables|tree is too large")


@contextmanager
def reading(engine: sa.Engine, isolation: str | None = None) -> Iterator[sa.Connection]:
    """Run a block in one transaction of its own; database errors leave as domain errors.

    Raises:
        MetaUnreachableError: the connection failed.
        MetaPermissionError: the role may not read this.
        MetaTableChangedError: the table or a column is gone.
        MetaBusyError: a lock or a statement ran into its time limit.
        SettingError: the server has no such database.
        InvalidValueError: a filter has more values than a statement can hold.
    """
    try:
        with engine.connect() as connection:
            if isolation is not None:
                connection.execution_options(isolation_level=isolation)
            with connection.begin():
                yield connection
    except exc.DBAPIError as error:
        raise _domain_error(engine, error) from error


@contextmanager
def reading_once(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Run a block that sends one statement; on Postgres in one round trip, without BEGIN, COMMIT.

    Raises:
        PipelineError: as from `reading`.
    """
    isolation = "AUTOCOMMIT" if engine.dialect.name == "postgresql" else None
    with reading(engine, isolation) as connection:
        driver: Any = connection.connection.driver_connection
        if getattr(driver, "prepare_threshold", None) is not None:
            # psycopg would keep a plan that knows neither the filter's values, without which no
            # partial index fits, nor that the table has grown since: it could read all of it.
            driver.prepare_threshold = None
        yield connection


def place(engine: sa.Engine) -> str:
    """Name the database for people: host, port and database, never user or password."""
    url = engine.url
    if engine.dialect.name == "sqlite":
        return (url.database or "an in-memory SQLite database").removeprefix("file:")
    host = url.host or url.query.get("host") or "the local socket"
    port = f":{url.port}" if url.port else ""
    return f"{host}{port}/{url.database}"


def error_code(error: exc.DBAPIError) -> object:
    """Give MySQL's error number or else the SQLSTATE; None where the driver tells neither."""
    number = error.orig.args[0] if isinstance(error.orig, BaseException) and error.orig.args else 0
    return number if isinstance(number, int) else getattr(error.orig, "sqlstate", None)


def _domain_error(engine: sa.Engine, error: exc.DBAPIError) -> PipelineError | exc.DBAPIError:
    code, reason = error_code(error), _reason(error.orig)
    missing = missing_database("The meta table's database", place(engine), reason)
    if missing is not None or code in _TOO_LONG or _TOO_MANY.search(str(error.orig)):
        expected = f"fewer or shorter values ({reason}); use `in` with one list"
        return missing or InvalidValueError("where", "(not shown)", expected)
    if code in _DENIED:
        return MetaPermissionError(place(engine), reason)
    if code in _GONE or reason.startswith(("no such table", "no such column")):
        return MetaTableChangedError(place(engine), reason)
    if code in _BUSY or reason.startswith("database is locked"):
        return MetaBusyError(place(engine), reason)
    operational = isinstance(error, exc.OperationalError)
    refused = not isinstance(code, int) or code in _REFUSED or 2000 <= code < 3000
    never_connected = error.statement is None
    if never_connected or error.connection_invalidated or (operational and refused):
        return MetaUnreachableError(place(engine), reason)
    return error


def _reason(error: BaseException | None) -> str:
    if error is not None and len(error.args) > 1 and isinstance(error.args[1], str):
        return error.args[1].splitlines()[0]  # MySQL: number, text
    text = str(error or "").strip()
    return text.splitlines()[0] if text else "no reason given"
