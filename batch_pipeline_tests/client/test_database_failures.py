"""The library during changes, locks and outages of databases: clear errors, no batch lost."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import psycopg
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
from batch_pipeline_tests.concurrency import eventually, together
from batch_pipeline_tests.inventory.logins import new_data_folder
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute, meta_engine
from batch_pipeline_tests.seeds import claimed, limit_lock_waits, planned, query
from batch_pipeline_tests.seeds import execute as run

OTHER_WEIGHTS = """
ALTER TABLE meta_table DROP COLUMN size_in_mib;
ALTER TABLE meta_table ADD COLUMN size_in_mib integer NOT NULL DEFAULT 1
"""


@pytest.fixture
def separate_database(
    ten_files: Database, database_url: str, empty_database_url: str
) -> Iterator[sa.Engine]:
    """The same table in another database, configured as the meta database."""
    run(ten_files, "DROP TABLE meta_table")  # so that reading it by mistake fails
    with meta_engine(empty_database_url) as engine:
        execute(engine, CREATE_META_TABLE)
        fill_evenly(engine, 10)
        settings = {"inventory_conn": database_url, "meta_conn": empty_database_url}
        client.configure(settings=settings)
        yield engine
        client.close()


@pytest.fixture(params=["inventory", "separate_database"])
def engine(request: pytest.FixtureRequest, ten_files: Database) -> sa.Engine:
    """The engine of the meta table's database: that of the inventory, or another one."""
    if request.param == "inventory":
        return ten_files.engine
    other: sa.Engine = request.getfixturevalue("separate_database")
    return other


@pytest.fixture(scope="module")
def data_folder() -> Iterator[Path]:
    """The data folder of a second server."""
    with new_data_folder() as data:
        yield data


@pytest.fixture
def other_server(data_folder: Path) -> Path:
    """The data folder of a second server, which is running."""
    embedded_server.ensure_running(data_folder)
    return data_folder


def test_changed_column_types_are_reflected_again(engine: sa.Engine) -> None:
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
        execute(engine, change)
    assert items == files(1, 8)
    assert acquired(batch_weight=2).items == files(9, 10)


def test_missing_column_loses_no_batch(ten_files: Database, engine: sa.Engine) -> None:
    for number in (1, 2):  # the first two look up the job and the table
        with acquired(batch_count=1) as batch:
            assert batch.items == files(number, number)
    for old, new in (("size_in_mib", "s"), ("file", "f"), ("id", "i")):
        execute(engine, f"ALTER TABLE meta_table RENAME COLUMN {old} TO {new}")
        with pytest.raises(ConfigurationError):
            _ = acquired(batch_count=2).items
        execute(engine, f"ALTER TABLE meta_table RENAME COLUMN {new} TO {old}")
    client.configure(settings=SESSIONS.current().settings.model_dump())
    for batch in acquire_batches("job", "meta_table", COLUMNS, batch_count=2):
        assert batch.items == files(batch.id_range.first_id, batch.id_range.last_id)
        batch.succeeded()
    assert delivered_ids(ten_files) == list(range(1, 11))


def test_locked_meta_table_is_a_retryable_error(engine: sa.Engine) -> None:
    acquired(batch_count=2).succeeded()
    _set_short_lock_timeout()
    with engine.begin() as other_session:
        other_session.execute(sa.text("LOCK public.meta_table IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(RetryableError):
            acquire_or_none(batch_count=2)
    assert acquired(batch_count=2).items == files(3, 4)


def test_locked_job_is_a_retryable_error(ten_files: Database) -> None:
    batch = acquired(batch_count=2)
    _set_short_lock_timeout()
    with ten_files.engine.begin() as other_session:
        other_session.execute(
            sa.text("SELECT FROM batch_pipeline.job, batch_pipeline.batch_state FOR UPDATE")
        )
        for call in (batch.succeeded, batch.failed):
            with pytest.raises(RetryableError, match="Another session holds a lock"):
                call()
    assert batch.items == files(1, 2)
    batch.succeeded()
    with ten_files.engine.begin() as other_session:
        other_session.execute(sa.text("LOCK batch_pipeline.batch IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(RetryableError, match="Another session holds a lock"):
            acquire_or_none()
    assert acquired().items == files(3, 10)


def test_serialization_failures_are_retryable(ten_files: Database, database_url: str) -> None:
    """Under `serializable`, threads get only retryable errors and lose no item."""
    fill_evenly(ten_files.engine, 40, first_id=11)
    (name,) = query(ten_files, "SELECT quote_ident(current_database())")[0]
    run(ten_files, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    client.configure(settings={"inventory_conn": database_url})

    def acquire_and_release_all() -> None:
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

    assert together(*[acquire_and_release_all] * 4) == [None] * 4
    assert delivered_ids(ten_files) == list(range(1, 41))


def test_stopped_meta_server_is_a_retryable_error(
    ten_files: Database, database_url: str, other_server: Path
) -> None:
    url = embedded_server.ensure_running(other_server)
    with meta_engine(url) as engine:
        execute(engine, CREATE_META_TABLE)
        fill_evenly(engine, 10)
    run(ten_files, "DROP TABLE meta_table")
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
    assert delivered_ids(ten_files) == list(range(1, 11))


def test_stopped_inventory_server_is_a_retryable_error(
    ten_files: Database, database_url: str, other_server: Path
) -> None:
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


def test_attempt_survives_recovery_from_the_crash_of_a_session(other_server: Path) -> None:
    """The server ends all sessions and so releases the liveness locks."""
    url = embedded_server.ensure_running(other_server)
    with closing(open_database(url, migrated=True)) as database:
        [batch] = planned(database)
        with claimed(database, batch) as attempt:
            statement = "SELECT pg_backend_pid(), stats_reset FROM pg_stat_bgwriter"
            [(pid, before)] = query(database, statement)
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: _time_of_recovery(url) not in {None, before})
            assert database.attempts.close_dead("orders") == 0
            database.attempts.check_running(attempt)


def _time_of_recovery(url: str) -> datetime | None:
    """Return when the server last recovered from a crash; None during the recovery."""
    try:
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT stats_reset FROM pg_stat_bgwriter").fetchone()
    except psycopg.OperationalError:
        return None
    assert row is not None
    at: datetime = row[0]
    return at


def _set_short_lock_timeout() -> None:
    """Set a lock timeout of 0.2 seconds in the sessions of the library."""
    pipeline = SESSIONS.current()._pipeline
    limit_lock_waits(pipeline.database.engine, 200)
    limit_lock_waits(pipeline.meta_engine, 200)
