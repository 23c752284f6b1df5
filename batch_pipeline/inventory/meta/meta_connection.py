"""Opening the database of users' meta tables, whichever one SQLAlchemy speaks; never writing."""

from importlib.util import find_spec
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.domain.errors import SettingError
from batch_pipeline.inventory.server.forks import leave_connections_to_parent
from batch_pipeline.inventory.server.hang_ups import replace_dead_connections

_CONNECT_SECONDS = 5
_APPLICATION = "batch-pipeline"
_OPTIONS = "-c lock_timeout=5s -c default_transaction_read_only=on"


def open_meta_engine(url: str, *, given_as: str = "BATCH_PIPELINE_META_CONN") -> sa.Engine:
    """Make an engine for a URL, which messages call by where it was given; connects to nothing yet.

    Postgres is spoken with psycopg whatever driver is named, MySQL and MariaDB with PyMySQL when
    none is. A connection that was cut while idle is replaced, and a SQLite file is never made.

    Raises:
        SettingError: the URL cannot be understood, or its driver is not installed; the message
            holds no part of its user, password or host.
    """
    parsed = _parsed(url, given_as)
    try:
        engine = sa.create_engine(parsed, **_options(parsed))
    except ModuleNotFoundError as error:
        step = "Install it, or name another driver as in mysql+pymysql://…"
        raise _unusable(given_as, f"its driver {error.name!r} is not installed", step) from error
    except exc.NoSuchModuleError as error:
        raise _unusable(given_as, f"no database is known as {parsed.drivername!r}") from error
    except (exc.ArgumentError, TypeError, ValueError):
        raise _unusable(given_as, "its parameters cannot be understood") from None
    if engine.dialect.name == "postgresql":
        replace_dead_connections(engine)
        leave_connections_to_parent(engine)
    return engine


def _parsed(url: str, given_as: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError):  # the reason may quote the password
        raise _unusable(given_as, "is no database URL") from None
    if "@" in (parsed.host or ""):  # the tail of a password with an unescaped @
        raise _unusable(given_as, "its password holds an @ that is not written as %40")
    kind, _, driver = parsed.drivername.partition("+")
    if kind in {"postgres", "postgresql"}:
        return parsed.set(drivername="postgresql+psycopg")
    if kind in {"mysql", "mariadb"} and not driver and find_spec("MySQLdb") is None:
        return parsed.set(drivername=f"{kind}+pymysql")
    if kind == "sqlite" and _is_plain_file(parsed):
        # Only so can SQLite be kept from making the file.
        path = f"file:{quote(parsed.database or '')}"
        return parsed.set(database=path).update_query_dict({"mode": "rw", "uri": "true"})
    return parsed


def _is_plain_file(url: sa.URL) -> bool:
    return bool(url.database) and url.database != ":memory:" and "uri" not in url.query


def _options(url: sa.URL) -> dict[str, Any]:
    kind, _, driver = url.drivername.partition("+")
    if kind == "sqlite":
        # Opening a file is cheap, and a pool would go on reading one that was removed.
        return {"poolclass": sa.pool.NullPool} if "uri" in url.query else {}
    pooled: dict[str, Any] = {"pool_size": 4, "max_overflow": 12}
    if kind == "postgresql":
        given = url.query.get("options", "")
        ours = {
            "connect_timeout": _CONNECT_SECONDS,
            "application_name": _APPLICATION,
        }
        arguments = {name: value for name, value in ours.items() if name not in url.query}
        options = " ".join([_OPTIONS, *([given] if isinstance(given, str) else given)]).strip()
        return pooled | {"connect_args": arguments | {"options": options}}
    if driver in {"pymysql", "mysqldb"}:
        pooled["connect_args"] = {"connect_timeout": _CONNECT_SECONDS}
    return pooled | {"pool_pre_ping": True}


def _unusable(given_as: str, problem: str, step: str = "") -> SettingError:
    expected = "Write it as postgresql://user:password@host:5432/database, specials %-encoded."
    return SettingError(given_as, "its value is not shown", problem, step or expected)
