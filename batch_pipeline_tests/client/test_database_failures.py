"""The library while databases change, lock and end beneath it: clear errors, and nothing burnt."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline import acquire_batches, client
from batch_pipeline.client.session import SESSIONS
from batch_pipeline.inventory import embedded_server
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.model.errors import (
    ConfigurationError,
    DatabaseUnreachableError,
    MetaUnreachableError,
    RetryableError,
)
from batch_pipeline_tests.client.client_tables import (
    COLUMNS,
    CREATE_META_TABLE,
    acquire_or_none,
    acquired,
    delivered_ids,
    files,
    fill_evenly,
)
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute, meta_engine
from batch_pipeline_tests.seeds import execute as run
from batch_pipeline_tests.seeds import query

SHORT_WAIT = "SET lock_timeout = '200ms'"
OTHER_WEIGHTS = """
ALTER TABLE meta_table DROP COLUMN size_in_mib;
ALTER TABLE meta_table ADD COLUMN size_in_mib integer NOT NULL DEFAULT 1
"""
SQLITE_TABLE = """
CREATE TABLE meta_table (id INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT, size_in_mib BIGINT)
"""


@pytest.fixture
def ten(meta_table: Database) -> Database:
    """Ten files of 10 MiB."""
    fill_evenly(meta_table.engine, 10)
    return meta_table


@pytest.fixture
def elsewhere(ten: Database, database_url: str, empty_database_url: str) -> Iterator[sa.Engine]:
    """The same table in another database, which the library is configured to read."""
    run(ten, "DROP TABLE meta_table")  # so that reading it by mistake shows
    with meta_engine(empty_database_url) as engine:
        execute(engine, CREATE_META_TABLE)
        fill_evenly(engine, 10)
        settings = {"inventory_conn": database_url, "meta_conn": empty_database_url}
        client.configure(settings=settings)
        yield engine
        client.close()


@pytest.fixture(params=["inventory", "elsewhere"])
def with_table(request: pytest.FixtureRequest, ten: Database) -> sa.Engine:
    """The database of the meta table: that of the inventory, or another one."""
    if request.param == "inventory":
        return ten.engine
    other: sa.Engine = request.getfixturevalue("elsewhere")
    return other


@pytest.fixture
def other_server() -> Iterator[Path]:
    """The data folder of a second server, which runs."""
    folder = Path(tempfile.mkdtemp(prefix="bp-"))
    data = folder / "postgres"
    embedded_server.ensure_running(data)
    yield data
    embedded_server.release(data)
    shutil.rmtree(folder)


def test_table_that_changes_its_types_is_opened_again(with_table: sa.Engine) -> None:
    changes = (
        "ALTER TABLE meta_table ADD COLUMN note text",
        "ALTER TABLE meta_table ALTER COLUMN size_in_mib TYPE numeric(20)",
        "ALTER TABLE meta_table ALTER COLUMN file TYPE varchar(300)",
        OTHER_WEIGHTS,
    )
    items: list[str] = []
    for change in changes:
        for _ in range(2):
            batch = acquired(batch_count=1)
            items += batch.items
            batch.succeeded()
        execute(with_table, change)
    assert items == files(1, 8)
    assert acquired(batch_weight=2).items == files(9, 10)


def test_column_that_goes_away_burns_nothing(ten: Database, with_table: sa.Engine) -> None:
    """Expect a clear error while the column is gone, and the next ids once it is back."""
    with acquired(batch_count=2) as batch:
        assert batch.items == files(1, 2)
    for old, new in (("file", "f"), ("size_in_mib", "s"), ("id", "i")):
        execute(with_table, f"ALTER TABLE meta_table RENAME COLUMN {old} TO {new}")
        with pytest.raises(ConfigurationError):
            _ = acquired(batch_count=2).items
        execute(with_table, f"ALTER TABLE meta_table RENAME COLUMN {new} TO {old}")
    client.configure(settings=SESSIONS.current().settings.model_dump())
    for batch in acquire_batches("job", "meta_table", COLUMNS, batch_count=2):
        assert batch.items == files(batch.id_range.first_id, batch.id_range.last_id)
        batch.succeeded()
    assert delivered_ids(ten) == list(range(1, 11))


def test_table_that_is_locked_is_retryable(with_table: sa.Engine) -> None:
    """Expect a lock on the meta table to end the wait, and the next call to lose nothing."""
    acquired(batch_count=2).succeeded()
    _wait_shortly()
    with with_table.begin() as rival:
        rival.execute(sa.text("LOCK public.meta_table IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(RetryableError):
            acquire_or_none(batch_count=2)
    assert acquired(batch_count=2).items == files(3, 4)


def test_job_that_is_locked_is_retryable(ten: Database) -> None:
    """Expect locks on the job's rows to end the wait of every call, and burn nothing."""
    batch = acquired(batch_count=2)
    _wait_shortly()
    with ten.engine.begin() as rival:
        rival.execute(
            sa.text("SELECT FROM batch_pipeline.job, batch_pipeline.batch_state FOR UPDATE")
        )
        for call in (batch.succeeded, batch.failed):
            with pytest.raises(RetryableError, match="Another session holds a lock"):
                call()
    assert batch.items == files(1, 2)
    batch.succeeded()
    with ten.engine.begin() as rival:
        rival.execute(sa.text("LOCK batch_pipeline.batch IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(RetryableError, match="Another session holds a lock"):
            acquire_or_none()
    assert acquired().items == files(3, 10)


def test_serialization_failures_are_retryable(ten: Database, database_url: str) -> None:
    """Expect threads under `serializable` to meet retryable errors only, and lose nothing."""
    fill_evenly(ten.engine, 60, first_id=11)
    (name,) = query(ten, "SELECT quote_ident(current_database())")[0]
    run(ten, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    client.configure(settings={"inventory_conn": database_url})

    def drain() -> None:
        while True:
            try:
                batch = acquire_or_none(batch_count=5)
                if batch is None:
                    return
                assert batch.items
            except RetryableError:
                continue
            while batch.success is None:
                try:
                    batch.succeeded()
                except RetryableError:
                    continue

    assert together(*[drain] * 4) == [None] * 4
    assert delivered_ids(ten) == list(range(1, 61))


def test_forgotten_file_of_a_sqlite_table_is_told(
    ten: Database, database_url: str, tmp_path: Path
) -> None:
    """Expect a SQLite file that is away to be told and not to be made, and to serve once back."""
    run(ten, "DROP TABLE meta_table")
    file, aside = tmp_path / "meta #1%.db", tmp_path / "aside"
    with meta_engine(f"sqlite:///{file}") as engine:
        execute(engine, SQLITE_TABLE)
        fill_evenly(engine, 10)
    client.configure(settings={"inventory_conn": database_url, "meta_conn": f"sqlite:///{file}"})
    file.rename(aside)
    for _ in range(2):
        with pytest.raises(RetryableError, match="unable to open database file"):
            acquire_or_none()
    assert not file.exists()
    aside.rename(file)
    batch = acquired(batch_count=2)
    file.rename(aside)
    with pytest.raises(RetryableError):
        _ = batch.items
    with pytest.raises(RetryableError):
        acquire_or_none()
    aside.rename(file)
    assert batch.items == files(1, 2)
    batch.succeeded()
    assert acquired().items == files(3, 10)


def test_second_server_that_is_down_is_told(
    ten: Database, database_url: str, other_server: Path
) -> None:
    """Expect the server of the meta table, then that of the inventory, to be named and retried."""
    url = embedded_server.ensure_running(other_server)
    with meta_engine(url) as engine:
        execute(engine, CREATE_META_TABLE)
        fill_evenly(engine, 10)
    run(ten, "DROP TABLE meta_table")
    client.configure(settings={"inventory_conn": database_url, "meta_conn": url})
    batch = acquired(batch_count=2)
    embedded_server.release(other_server)
    with pytest.raises(MetaUnreachableError):
        _ = batch.items
    with pytest.raises(MetaUnreachableError):
        acquire_or_none(batch_count=2)
    assert embedded_server.ensure_running(other_server) == url
    assert batch.items == files(1, 2)
    batch.succeeded()
    with acquired() as batch:
        assert batch.items == files(3, 10)
    assert delivered_ids(ten) == list(range(1, 11))


def test_inventory_that_is_down_is_told(
    ten: Database, database_url: str, other_server: Path
) -> None:
    """Expect every call to be retryable while the inventory is away, and to go on after it."""
    url = embedded_server.ensure_running(other_server)
    open_database(url, migrated=True).close()
    client.configure(settings={"inventory_conn": url, "meta_conn": database_url})
    batch = acquired(batch_count=2)
    assert batch.items == files(1, 2)
    embedded_server.release(other_server)
    for call in (batch.succeeded, batch.failed, acquire_or_none):
        with pytest.raises(DatabaseUnreachableError):
            call()
    assert embedded_server.ensure_running(other_server) == url
    batch.succeeded()
    with acquired() as batch:
        assert batch.items == files(3, 10)
    assert acquire_or_none() is None
    client.close()


def test_sqlite_table_is_batched(ten: Database, database_url: str, tmp_path: Path) -> None:
    """Expect a meta table in SQLite to be batched by weight into an inventory in Postgres."""
    run(ten, "DROP TABLE meta_table")
    with meta_engine(f"sqlite:///{tmp_path}/meta.db") as engine:
        execute(engine, SQLITE_TABLE)
        fill_evenly(engine, 10)
        settings = {"inventory_conn": database_url, "meta_conn": f"sqlite:///{tmp_path}/meta.db"}
        client.configure(settings=settings)
        where: list[object] = [{"column": "id", "operator": "!=", "value": 3}]
        batches = acquire_batches("job", "meta_table", COLUMNS, batch_weight=40, where=where)
        counts = [batch.process(len) for batch in batches]
    assert counts == [4, 4, 1]
    assert delivered_ids(ten) == [1, 2, *range(4, 11)]


def _wait_shortly() -> None:
    """Let the library's sessions wait for locks for a fifth of a second only."""
    pipeline = SESSIONS.current()._pipeline

    def shorten(connection: Any, *_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(SHORT_WAIT)
        connection.commit()

    for engine in (pipeline.database.engine, pipeline.meta_engine):
        sa.event.listen(engine, "checkout", shorten)
