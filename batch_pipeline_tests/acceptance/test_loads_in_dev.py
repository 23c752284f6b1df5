"""Published files are loaded into a database automatically, even after a batch is encoded again."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from batch_pipeline_tests.acceptance.live_dev import LiveDev, live_dev
from batch_pipeline_tests.acceptance.sandbox import new_sandbox, wait_until

pytestmark = pytest.mark.long

KEYS = [f"{number:08}-{number:08}" for number in range(1, 4)]
FILES = {f"{number}.csv": f"id,name\n{number},n{number}\n".encode() for number in range(1, 4)}
LOADED_BATCHES = "SELECT batch, generation FROM batch_pipeline_load ORDER BY batch"
ROWS = "SELECT id, name FROM orders ORDER BY id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Rows of the table and partitions in Dagster after each step."""

    landed: list[tuple[Any, ...]]
    materialized: set[str]
    loaded_batches: list[tuple[str, int]]
    after_reprocessing: list[tuple[Any, ...]]
    after_reload: list[tuple[Any, ...]]
    statuses: list[str]
    succeeded_loads: list[tuple[int]]


@pytest.fixture(scope="module")
def loads(warm_spark: str, server_url: str) -> Iterator[Loads]:
    """Land three files, change one and encode it again, then delete a row and load again."""
    with new_sandbox() as plain:
        sandbox = plain.with_variables(
            BATCH_PIPELINE_SPARK_REMOTE=warm_spark,
            WAREHOUSE_URL=server_url,
        )
        warehouse = {"postgres": {"conn": "$WAREHOUSE_URL", "schema": "loads_in_dev"}}
        sandbox.write_stream("orders", batch={"max_count": 1}, targets={"warehouse": warehouse})
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA loads_in_dev")
            connection.execute("SET search_path = loads_in_dev")
            try:
                with live_dev(sandbox) as dev:
                    sandbox.land("orders", FILES)
                    yield _run_loads(dev, sandbox, connection)
            finally:
                connection.execute("DROP SCHEMA loads_in_dev CASCADE")


def _run_loads(dev: LiveDev, sandbox: Any, warehouse: "psycopg.Connection[Any]") -> Loads:
    def loaded_batches() -> list[Any]:
        table_name = warehouse.execute("SELECT to_regclass('batch_pipeline_load')").fetchone()
        return [] if table_name == (None,) else warehouse.execute(LOADED_BATCHES).fetchall()

    wait_until(lambda: len(loaded_batches()) == len(KEYS), "the files are in the table")
    landed = warehouse.execute(ROWS).fetchall()
    wait_until(
        lambda: _loaded_partitions(dev)["materialized"] == {*KEYS},
        "the loads are materialized",
        pause_seconds=1,
    )
    materialized = _loaded_partitions(dev)["materialized"]
    sandbox.land("orders", {"2.csv": b"id,name\n2,new\n"})
    sandbox.output_of("plan", "orders", "--accept-changed")
    statuses = [dev.status_of(dev.launch("orders", [KEYS[1]]))]
    wait_until(lambda: (KEYS[1], 2) in loaded_batches(), "the next generation is in the table")
    after_reprocessing = warehouse.execute(ROWS).fetchall()
    warehouse.execute("DELETE FROM orders WHERE id = 3")
    statuses.append(dev.status_of(dev.launch("orders", [KEYS[2]], asset="loaded")))
    dev.wait_until_idle()
    return Loads(
        landed=landed,
        materialized=materialized,
        loaded_batches=loaded_batches(),
        after_reprocessing=after_reprocessing,
        after_reload=warehouse.execute(ROWS).fetchall(),
        statuses=statuses,
        succeeded_loads=dev.query(
            "SELECT count(*) FROM batch_pipeline.load WHERE status = 'succeeded'"
        ),
    )


def _loaded_partitions(dev: LiveDev) -> dict[str, set[str]]:
    return dev.partitions("orders", asset="loaded")


def test_new_files_are_loaded_automatically(loads: Loads) -> None:
    assert loads.landed == [(1, "n1"), (2, "n2"), (3, "n3")]
    assert loads.materialized == {*KEYS}


def test_reprocessed_batch_replaces_its_rows(loads: Loads) -> None:
    assert loads.after_reprocessing == [(1, "n1"), (2, "new"), (3, "n3")]
    assert loads.loaded_batches == [(KEYS[0], 1), (KEYS[1], 2), (KEYS[2], 1)]


def test_backfill_of_a_loaded_partition_loads_it_again(loads: Loads) -> None:
    assert loads.statuses == ["COMPLETED_SUCCESS"] * 2
    assert loads.after_reload == [(1, "n1"), (2, "new"), (3, "n3")]
    assert loads.succeeded_loads == [(5,)]
