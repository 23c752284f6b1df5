"""Loads that are killed, cut off or in each other's way: never a row lost or doubled."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from batch_pipeline.load.postgres import PostgresLoader
from batch_pipeline.model.errors import ConfigurationError, PipelineError, RetryableError
from batch_pipeline.model.load import Loaded, PostgresTarget, WriteMode
from batch_pipeline_tests.concurrency import eventually, run_python, together
from batch_pipeline_tests.load.warehouse import ID, Warehouse, schema_of

APPEND = PostgresTarget(name="warehouse", conn="$WAREHOUSE")
ONES = schema_of(ID)
CUT_AT_60 = """
CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id = 60 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER cut BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION cut();
"""
SCRIPT = """
import sys
from pathlib import Path
from batch_pipeline_tests.load.test_postgres_failures import load_hundred
load_hundred(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
"""


def load_hundred(url: str, folder: Path, mode: str) -> Loaded:
    """Load the second generation of a batch, a hundred records in two files."""
    target = PostgresTarget(name="warehouse", conn="$WAREHOUSE", mode=WriteMode(mode))
    warehouse = Warehouse(url=url, folder=folder, target=target)
    files = [{"id": one} for one in range(50)], [{"id": one} for one in range(50, 100)]
    return warehouse.bring(*files, schema=ONES, generation=2)


@pytest.fixture
def warehouse(empty_database_url: str, tmp_path: Path) -> Warehouse:
    """A warehouse with the first generation of a batch: the record 7."""
    warehouse = Warehouse(url=empty_database_url, folder=tmp_path, target=APPEND)
    warehouse.bring([{"id": 7}], schema=ONES)
    return warehouse


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("point", ["warehouse.in_copy", "warehouse.before_commit"])
def test_load_that_is_killed_leaves_the_generation_before(
    warehouse: Warehouse, point: str, mode: str
) -> None:
    arguments = warehouse.url, str(warehouse.folder), mode
    assert run_python(SCRIPT, *arguments, failpoints=f"{point}=kill") == -9
    assert warehouse.rows("id") == [(7,)]
    eventually(lambda: alone(warehouse))
    assert load_hundred(warehouse.url, warehouse.folder, mode) == Loaded(records=100)
    again = load_hundred(warehouse.url, warehouse.folder, mode)
    assert again == Loaded(records=100, already=True)
    assert warehouse.rows("id") == [(one,) for one in range(100)]


def alone(warehouse: Warehouse) -> bool:
    """Return whether no loader is connected: the server has noticed that one was killed."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'batch-pipeline'"
    with warehouse.connected() as connection:
        return connection.execute(query).fetchone() == (0,)


def test_two_loads_of_one_generation_bring_it_once(warehouse: Warehouse) -> None:
    calls = [lambda: load_hundred(warehouse.url, warehouse.folder, "append")] * 2
    results = together(*calls)
    fresh = [one for one in results if one == Loaded(records=100)]
    others = [one for one in results if one not in fresh]
    assert len(fresh) == 1
    assert all(
        one == Loaded(records=100, already=True) or isinstance(one, RetryableError)
        for one in others
    )
    assert warehouse.rows("id") == [(one,) for one in range(100)]


def test_load_that_waits_too_long_for_another_is_told(warehouse: Warehouse) -> None:
    with warehouse.connected() as rival, rival.transaction():
        rival.execute("LOCK TABLE orders")
        with pytest.raises(RetryableError, match=r"another session holds public\.orders"):
            load_hundred(warehouse.url, warehouse.folder, "append")
    assert warehouse.rows("id") == [(7,)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_connection_cut_in_the_middle_leaves_nothing(warehouse: Warehouse, mode: str) -> None:
    warehouse.execute(CUT_AT_60)
    target = replace(APPEND, mode=WriteMode(mode))
    records = [{"id": one} for one in range(100)]
    loading = warehouse.loading(records, schema=ONES, generation=2)
    with closing(PostgresLoader(target, warehouse.url)) as loader:
        with pytest.raises(RetryableError, match="terminating connection"):
            loader.load(loading)
        assert warehouse.rows("id") == [(7,)]
        warehouse.execute("DROP FUNCTION cut CASCADE")
        assert loader.load(loading) == Loaded(records=100)
    assert warehouse.rows("id") == [(one,) for one in range(100)]


def test_server_that_is_gone_is_told_without_a_password() -> None:
    url = "postgresql://someone:secret@127.0.0.1:1/warehouse"
    warehouse = Warehouse(url=url, folder=Path("/"), target=APPEND)
    loading = Warehouse.loading(warehouse, schema=ONES)
    with pytest.raises(RetryableError, match="cannot be reached") as raised:
        warehouse.load(loading)
    assert "127.0.0.1/warehouse cannot be reached" in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["mysql://secret@host/db", "secret", "postgresql://a:se@cret@h/d?x"]
)
def test_url_of_something_else_is_refused_without_showing_it(url: str) -> None:
    warehouse = Warehouse(url=url, folder=Path("/"), target=APPEND)
    with pytest.raises(PipelineError) as raised:
        warehouse.bring(schema=ONES)
    assert "cret" not in str(raised.value)


def test_role_without_rights_is_told(warehouse: Warehouse) -> None:
    warehouse.execute("CREATE ROLE reader LOGIN")
    try:
        url = warehouse.url.replace("postgres@", "reader@")
        reader = Warehouse(url=url, folder=warehouse.folder, target=APPEND)
        with pytest.raises(ConfigurationError, match="permission denied"):
            reader.load(reader.loading([{"id": 8}], schema=ONES, generation=2))
    finally:
        warehouse.execute("DROP ROLE reader")
    assert warehouse.rows("id") == [(7,)]
