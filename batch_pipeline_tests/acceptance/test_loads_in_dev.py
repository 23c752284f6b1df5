"""What lands is in the warehouse without a person, and again when its batch is made once more."""

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
BOOKS = "SELECT batch, generation FROM batch_pipeline_load ORDER BY batch"
ROWS = "SELECT id, name FROM orders ORDER BY id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What the table held, and what Dagster showed, as time went on."""

    landed: list[tuple[Any, ...]]
    green: set[str]
    books: list[tuple[str, int]]
    made_anew: list[tuple[Any, ...]]
    mended: list[tuple[Any, ...]]
    statuses: list[str]
    loads: list[tuple[int]]


@pytest.fixture(scope="module")
def story(warm_spark: str, server_url: str) -> Iterator[Story]:
    """Let three files land, change one and encode it again, then delete a row and load again."""
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
                    yield _told(dev, sandbox, connection)
            finally:
                connection.execute("DROP SCHEMA loads_in_dev CASCADE")


def _told(dev: LiveDev, sandbox: Any, warehouse: "psycopg.Connection[Any]") -> Story:
    def books() -> list[Any]:
        there = warehouse.execute("SELECT to_regclass('batch_pipeline_load')").fetchone()
        return [] if there == (None,) else warehouse.execute(BOOKS).fetchall()

    wait_until(lambda: len(books()) == len(KEYS), "the files are in the table")
    landed = warehouse.execute(ROWS).fetchall()
    wait_until(
        lambda: _shown(dev)["materialized"] == {*KEYS}, "the loads are green", pause_seconds=1
    )
    green = _shown(dev)["materialized"]
    sandbox.land("orders", {"2.csv": b"id,name\n2,new\n"})
    sandbox.output_of("plan", "orders", "--accept-changed")
    statuses = [dev.status_of(dev.launch("orders", [KEYS[1]]))]
    wait_until(lambda: (KEYS[1], 2) in books(), "the next generation is in the table")
    made_anew = warehouse.execute(ROWS).fetchall()
    warehouse.execute("DELETE FROM orders WHERE id = 3")
    statuses.append(dev.status_of(dev.launch("orders", [KEYS[2]], asset="loaded")))
    dev.wait_until_idle()
    return Story(
        landed=landed,
        green=green,
        books=books(),
        made_anew=made_anew,
        mended=warehouse.execute(ROWS).fetchall(),
        statuses=statuses,
        loads=dev.query("SELECT count(*) FROM batch_pipeline.load WHERE status = 'succeeded'"),
    )


def _shown(dev: LiveDev) -> dict[str, set[str]]:
    return dev.partitions("orders", asset="loaded")


def test_files_that_land_are_loaded_by_themselves(story: Story) -> None:
    assert story.landed == [(1, "n1"), (2, "n2"), (3, "n3")]
    assert story.green == {*KEYS}


def test_batch_that_is_made_anew_replaces_its_rows(story: Story) -> None:
    assert story.made_anew == [(1, "n1"), (2, "new"), (3, "n3")]
    assert story.books == [(KEYS[0], 1), (KEYS[1], 2), (KEYS[2], 1)]


def test_partition_that_is_launched_from_the_backfill_page_is_loaded_again(story: Story) -> None:
    assert story.statuses == ["COMPLETED_SUCCESS"] * 2
    assert story.mended == [(1, "n1"), (2, "new"), (3, "n3")]
    assert story.loads == [(5,)]
