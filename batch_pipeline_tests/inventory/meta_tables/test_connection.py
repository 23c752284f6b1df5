"""URLs of meta tables' databases: drivers, options, and errors without credentials."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg.types import TypeInfo

from batch_pipeline.inventory.connection import open_engine
from batch_pipeline.inventory.meta_tables.connection import open_meta_engine, read_transaction
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable, numbered_sql
from batch_pipeline.model.errors import MetaUnreachableError, SettingError


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("postgres://u:p@host/db", "postgresql+psycopg"),
        ("postgresql://u:p@host/db", "postgresql+psycopg"),
        ("postgresql+psycopg2://u:p@host/db", "postgresql+psycopg"),
        ("mysql://u:p@host/db", "mysql+pymysql"),
        ("mariadb://u:p@host/db", "mariadb+pymysql"),
        ("mysql+pymysql://u:p@host/db", "mysql+pymysql"),
        ("sqlite:////tmp/meta.db", "sqlite"),
    ],
)
def test_url_selects_installed_driver(url: str, driver: str) -> None:
    assert open_meta_engine(url).url.drivername == driver


@pytest.mark.parametrize(
    "url",
    [
        "secret",
        "postgresql://u:secret@host:port/db",
        "postgresql://u:sec@ret@secret/db",
        "nosuch://u:secret@host/db",
        "mssql+pyodbc://u:secret@host/db",
    ],
)
def test_invalid_url_error_hides_credentials(url: str) -> None:
    with pytest.raises(SettingError, match="BATCH_PIPELINE_META_CONN") as caught:
        open_meta_engine(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://u:secret@127.0.0.1:1/db", "127.0.0.1:1/db"),
        ("sqlite:////nowhere/meta.db", "/nowhere/meta.db"),
    ],
)
def test_unreachable_database_error_names_its_setting_and_place(url: str, place: str) -> None:
    engine = open_meta_engine(url, setting="OPS_DB")
    with pytest.raises(MetaUnreachableError, match="correct OPS_DB") as caught:
        ReflectedMetaTable.open(engine, "files")
    assert f"database at {place} cannot be reached" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_unreachable_database_error_while_statements_are_quoted() -> None:
    engine = open_meta_engine("postgresql://u:secret@127.0.0.1:1/db")
    with pytest.raises(MetaUnreachableError, match="cannot be reached"):
        numbered_sql(engine, sa.select(sa.literal(1)))


def test_exhausted_pool_is_a_retryable_error() -> None:
    engine = sa.create_engine(
        "sqlite://", poolclass=sa.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0
    )
    in_use = pytest.raises(MetaUnreachableError, match="all connections of this process are in use")
    with read_transaction(engine), in_use, read_transaction(engine):
        pass
    engine.dispose()


def test_mysql_query_that_was_killed_is_a_retryable_error() -> None:
    """As on Postgres, where it has the code of a timeout."""
    killed = sa.exc.OperationalError("SELECT", {}, Exception(1317, "Query was interrupted"))
    cancelled = pytest.raises(MetaUnreachableError, match="cancelled a read")
    with cancelled, read_transaction(sa.create_engine("sqlite://")):
        raise killed


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("{}/a #1%.db", "a #1%.db"),
        ("file:{}/a.db?uri=true", "a.db"),
        ("{}/a.db?uri=true", "a.db"),
    ],
)
def test_missing_sqlite_file_is_not_created(tmp_path: Path, url: str, name: str) -> None:
    """Not even if it was open before. The path needs escaping in a URI."""
    engine = open_meta_engine(f"sqlite:///{url.format(tmp_path)}")
    for _ in range(2):
        with pytest.raises(sa.exc.OperationalError, match="unable to open database file"):
            engine.connect()
        assert list(tmp_path.iterdir()) == []
        (tmp_path / name).touch()
        engine.connect().close()
        (tmp_path / name).unlink()


FORK = """
import os
import sqlalchemy as sa
from batch_pipeline.inventory.connection import replace_connections_in_children
options = {"check_same_thread": False}
engine = sa.create_engine(
    "sqlite://", poolclass=sa.QueuePool, pool_pre_ping=True, connect_args=options
)
replace_connections_in_children(engine)
def used():
    with engine.connect() as connection:
        return connection.connection.dbapi_connection
first = used()
assert used() is first
engine.dialect.do_ping = lambda connection: os._exit(7)  # the child would use the parent's session
child = os.fork()
if not child:
    os._exit(used() is first)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_forked_process_uses_connections_of_its_own() -> None:
    """With any driver; two processes on one connection would read each other's results."""
    command = [sys.executable, "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_sqlite_uri_is_passed_unchanged() -> None:
    url = open_meta_engine("sqlite:///file:meta.db?mode=ro&uri=true").url
    assert (url.database, dict(url.query)) == ("file:meta.db", {"mode": "ro", "uri": "true"})


def test_connecting_queries_no_types(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ctrl-C interrupted such a query, psycopg would log a warning."""

    def fetch(*_: object) -> None:
        raise AssertionError("a type is queried")

    monkeypatch.setattr(TypeInfo, "fetch", fetch)
    for open_it in (open_engine, open_meta_engine):
        engine = open_it(server_url)
        engine.connect().close()
        engine.dispose()


@pytest.mark.parametrize("open_it", [open_engine, open_meta_engine])
def test_connections_end_if_the_server_does_not_respond_for_a_minute(
    open_it: Callable[[str], sa.Engine], server_url: str
) -> None:
    engine = open_it(server_url)
    with engine.connect() as connection:
        driver_connection: Any = connection.connection.driver_connection
        given = driver_connection.info.get_parameters()
    engine.dispose()
    assert int(given["tcp_user_timeout"]) == 60_000
    assert int(given["keepalives_idle"]) + 3 * int(given["keepalives_interval"]) == 60


def test_engines_share_a_handler_for_forks(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python cannot remove it, so a process that often opens engines would collect them."""
    handlers = []
    register = os.register_at_fork

    def count(**given: Callable[[], None]) -> None:
        handlers.append(given)
        register(**given)

    monkeypatch.setattr(os, "register_at_fork", count)
    for open_it in (open_engine, open_meta_engine):
        open_it(server_url).dispose()
    assert len(handlers) <= 1  # none if another test has opened an engine


def test_user_connection_options_override_defaults() -> None:
    url = "postgresql://u@host/db?options=-c%20lock_timeout%3D1s&application_name=mine"
    engine = open_meta_engine(url)
    (_, arguments) = engine.dialect.create_connect_args(engine.url)
    assert arguments["application_name"] == "mine"
    sent: dict[str, object] = {}

    def connect(*event: object) -> None:
        assert isinstance(event[3], dict)
        sent.update(event[3])
        raise ConnectionError

    sa.event.listen(engine, "do_connect", connect)
    with pytest.raises(ConnectionError):
        engine.connect()
    assert str(sent["options"]).endswith("-c lock_timeout=1s")
    assert sent["application_name"] == "mine"
