"""Published files are loaded into a database automatically, even after a batch is encoded again."""

from typing import Any

import psycopg
import pytest

from batch_pipeline_tests.acceptance.live_dev import LiveDev, live_dev
from batch_pipeline_tests.acceptance.sandbox import Sandbox, wait_until

pytestmark = pytest.mark.long

KEYS = [f"{number:08}-{number:08}" for number in range(1, 4)]
FILES = {f"{number}.csv": f"id,name\n{number},n{number}\n".encode() for number in range(1, 4)}
LOADED_BATCHES = "SELECT batch, generation FROM batch_pipeline_load ORDER BY batch"
ROWS = "SELECT id, name FROM orders ORDER BY id"


def test_files_are_loaded_again_after_reprocessing_and_after_a_backfill(
    sandbox: Sandbox, warm_spark: str, server_url: str
) -> None:
    """Land three files, change one and encode it again, then delete a row and load again."""
    sandbox = sandbox.with_variables(
        BATCH_PIPELINE_SPARK_REMOTE=warm_spark, WAREHOUSE_URL=server_url
    )
    target = {"postgres": {"conn": "$WAREHOUSE_URL", "schema": "loads_in_dev"}}
    sandbox.write_stream("orders", batch={"max_count": 1}, targets={"warehouse": target})
    with psycopg.connect(server_url, autocommit=True) as warehouse:
        warehouse.execute("CREATE SCHEMA loads_in_dev")
        warehouse.execute("SET search_path = loads_in_dev")
        try:
            with live_dev(sandbox) as dev:
                sandbox.land("orders", FILES)
                _check_loads(dev, warehouse)
        finally:
            warehouse.execute("DROP SCHEMA loads_in_dev CASCADE")


def _check_loads(dev: LiveDev, warehouse: "psycopg.Connection[Any]") -> None:
    def loaded_batches() -> list[Any]:
        table_name = warehouse.execute("SELECT to_regclass('batch_pipeline_load')").fetchone()
        return [] if table_name == (None,) else warehouse.execute(LOADED_BATCHES).fetchall()

    wait_until(lambda: len(loaded_batches()) == len(KEYS), "the files are in the table")
    assert warehouse.execute(ROWS).fetchall() == [(1, "n1"), (2, "n2"), (3, "n3")]
    wait_until(
        lambda: dev.partitions("orders", asset="loaded")["materialized"] == {*KEYS},
        "the loads are materialized",
        pause_seconds=1,
    )

    dev.sandbox.land("orders", {"2.csv": b"id,name\n2,new\n"})
    dev.sandbox.output_of("plan", "orders", "--accept-changed")
    assert dev.status_of(dev.launch("orders", [KEYS[1]])) == "COMPLETED_SUCCESS"
    wait_until(lambda: (KEYS[1], 2) in loaded_batches(), "the next generation is in the table")
    replaced = [(1, "n1"), (2, "new"), (3, "n3")]
    assert warehouse.execute(ROWS).fetchall() == replaced

    warehouse.execute("DELETE FROM orders WHERE id = 3")
    backfill = dev.launch("orders", [KEYS[2]], asset="loaded")
    assert dev.status_of(backfill) == "COMPLETED_SUCCESS"
    dev.wait_until_idle()
    assert warehouse.execute(ROWS).fetchall() == replaced
    assert loaded_batches() == [(KEYS[0], 1), (KEYS[1], 2), (KEYS[2], 1)]
    succeeded = "SELECT count(*) FROM batch_pipeline.load WHERE status = 'succeeded'"
    assert dev.query(succeeded) == [(5,)]
