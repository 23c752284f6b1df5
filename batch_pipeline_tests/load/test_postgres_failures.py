"""Loads that are killed, disconnected or concurrent lose and duplicate no row."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from batch_pipeline.load.postgres import PostgresLoader
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError, RetryableError
from batch_pipeline.model.load import Loaded, WriteMode
from batch_pipeline_tests.concurrency import eventually, run_python, together
from batch_pipeline_tests.load.warehouse import APPEND, ID, Warehouse, schema_of

SCHEMA = schema_of(ID)
CUT_AT_60 = """
CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id = 60 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER cut BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION cut();
"""
FAIL_IF_PREPARED = """
CREATE FUNCTION check_session() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    ASSERT NOT EXISTS (SELECT FROM pg_prepared_statements);
    RETURN NEW;
END $$;
CREATE TRIGGER check_session BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION check_session();
"""
SCRIPT = """
import sys
from pathlib import Path
from batch_pipeline_tests.load.test_postgres_failures import load_100_records
load_100_records(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
"""


def load_100_records(url: str, folder: Path, mode: str) -> Loaded:
    """Load the second generation of a batch, 100 records in two files."""
    warehouse = Warehouse(url=url, folder=folder, target=replace(APPEND, mode=WriteMode(mode)))
    files = [{"id": n} for n in range(50)], [{"id": n} for n in range(50, 100)]
    return warehouse.publish_and_load(*files, schema=SCHEMA, generation=2)


@pytest.fixture
def warehouse(warehouse: Warehouse) -> Warehouse:
    """A warehouse with the first generation of a batch, which has one record."""
    warehouse.publish_and_load([{"id": 7}], schema=SCHEMA)
    return warehouse


@pytest.mark.parametrize("mode", ["append", pytest.param("upsert", marks=pytest.mark.long)])
@pytest.mark.parametrize("point", ["warehouse.in_copy", "warehouse.before_commit"])
def test_killed_load_keeps_the_previous_generation(
    warehouse: Warehouse, point: str, mode: str
) -> None:
    arguments = warehouse.url, str(warehouse.folder), mode
    assert run_python(SCRIPT, *arguments, failpoints=f"{point}=kill") == -9
    assert warehouse.rows("id") == [(7,)]
    eventually(lambda: no_loader_is_connected(warehouse))
    assert load_100_records(warehouse.url, warehouse.folder, mode) == Loaded(records=100)
    again = load_100_records(warehouse.url, warehouse.folder, mode)
    assert again == Loaded(records=100, already=True)
    assert warehouse.rows("id") == [(n,) for n in range(100)]


def no_loader_is_connected(warehouse: Warehouse) -> bool:
    """Return whether the server has noticed that the loader was killed."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'batch-pipeline'"
    with warehouse.connected() as connection:
        return connection.execute(query).fetchone() == (0,)


def test_concurrent_loads_of_one_generation_load_it_once(warehouse: Warehouse) -> None:
    results = together(*[lambda: load_100_records(warehouse.url, warehouse.folder, "append")] * 2)
    assert results.count(Loaded(records=100)) == 1
    [other] = [result for result in results if result != Loaded(records=100)]
    assert other == Loaded(records=100, already=True) or isinstance(other, RetryableError)
    assert warehouse.rows("id") == [(n,) for n in range(100)]


def test_load_that_cannot_lock_its_table_is_retryable(warehouse: Warehouse) -> None:
    with warehouse.connected() as other_session, other_session.transaction():
        other_session.execute("LOCK TABLE orders")
        with pytest.raises(RetryableError, match=r"another session holds public\.orders"):
            load_100_records(warehouse.url, warehouse.folder, "append")
    assert warehouse.rows("id") == [(7,)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_connection_cut_during_insert_keeps_the_previous_generation(
    warehouse: Warehouse, mode: str
) -> None:
    warehouse.execute(CUT_AT_60)
    target = replace(APPEND, mode=WriteMode(mode))
    records = [{"id": n} for n in range(100)]
    loading = warehouse.loading(records, schema=SCHEMA, generation=2)
    with closing(PostgresLoader(target, warehouse.url)) as loader:
        with pytest.raises(RetryableError, match="terminating connection"):
            loader.load(loading)
        assert warehouse.rows("id") == [(7,)]
        warehouse.execute("DROP FUNCTION cut CASCADE")
        assert loader.load(loading) == Loaded(records=100)
    assert warehouse.rows("id") == [(n,) for n in range(100)]


def test_statements_are_not_prepared(warehouse: Warehouse) -> None:
    """A pooler may run each transaction in another session of the server."""
    warehouse.execute(FAIL_IF_PREPARED)
    loading = warehouse.loading([{"id": 1}], schema=SCHEMA, generation=2)
    with closing(PostgresLoader(APPEND, warehouse.url)) as loader:
        for _ in range(7):  # by default, psycopg prepares what is executed more than five times
            loader.load(replace(loading, again=True))


def test_unreachable_server_is_reported_without_the_password() -> None:
    url = "postgresql://user:secret@127.0.0.1:1/warehouse"
    warehouse = Warehouse(url=url, folder=Path("/"), target=APPEND)
    with pytest.raises(RetryableError, match="cannot be reached") as raised:
        warehouse.publish_and_load(schema=SCHEMA)
    assert "127.0.0.1/warehouse cannot be reached" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_invalid_url_is_rejected_without_showing_it() -> None:
    """No part of an unescaped password is parsed as a host or a database name."""
    for url in (
        *("secret", "mysql://secret@host/db", "postgresql://a:se/cret@h:5432/x"),
        *("postgresql://a:se@cret@h/d?x", "postgresql://a:se@cret@localhost/x"),
    ):
        with pytest.raises(InvalidValueError, match=r"warehouse\.postgres\.conn is ") as raised:
            PostgresLoader(APPEND, url)
        assert "cret" not in str(raised.value)


def test_role_without_privileges_is_reported(warehouse: Warehouse) -> None:
    warehouse.execute("CREATE ROLE reader LOGIN")
    try:
        url = warehouse.url.replace("postgres@", "reader@")
        reader = Warehouse(url=url, folder=warehouse.folder, target=APPEND)
        with pytest.raises(ConfigurationError, match="permission denied"):
            reader.load(reader.loading([{"id": 8}], schema=SCHEMA, generation=2))
    finally:
        warehouse.execute("DROP ROLE reader")
    assert warehouse.rows("id") == [(7,)]
