"""Dagster's pages in a real browser.

Screenshots are saved in pytest's cache folder, below `d/screenshots`.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from batch_pipeline_tests.acceptance.dagster_pages import DagsterPages, open_pages
from batch_pipeline_tests.acceptance.graphql import RUNS_OF_JOB, ask
from batch_pipeline_tests.acceptance.live_dev import live_dev
from batch_pipeline_tests.acceptance.sandbox import Sandbox, manifests, wait_until

pytestmark = pytest.mark.long

KEYS = [f"{number:08}-{number:08}" for number in range(1, 11)]
BAD = KEYS[2]


def orders_csv(number: int) -> bytes:
    """Return a csv file of five orders."""
    rows = [f"{number * 100 + row},{row}\n" for row in range(5)]
    return "".join(["id,quantity\n", *rows]).encode()


@pytest.fixture(scope="module")
def sandbox(shared_sandbox: Sandbox, warm_spark: str) -> Sandbox:
    """Streams `orders`, one file per batch, with nine files, and `slow`, with none."""
    shared_sandbox.write_stream("orders", batch={"max_count": 1}, dagster={"partitions_per_run": 5})
    shared_sandbox.write_stream(
        "slow", stream_maps={"slow": {"text": "'-'.join([str(id), str(id)[::-1]])"}}
    )
    shared_sandbox.landing("slow").mkdir(parents=True)
    shared_sandbox.land("orders", {f"{n:02}.csv": orders_csv(n) for n in range(1, 10)})
    return shared_sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)


@pytest.fixture(scope="module")
def pages(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[DagsterPages]:
    """A browser on a running `dev`."""
    screenshots = request.config.cache.mkdir("screenshots")
    with live_dev(sandbox) as dev, open_pages(dev.port, screenshots) as opened:
        yield opened


def test_new_file_is_materialized_automatically(sandbox: Sandbox, pages: DagsterPages) -> None:
    pages.open("assets/orders/batches?view=partitions")
    pages.see("Materialized (9)", screenshot="1-nine-files")
    sandbox.land("orders", {"10.csv": orders_csv(10)})
    pages.see(KEYS[9])
    pages.see("Materialized (10)", screenshot="2-one-more-file")


def test_backfill_shows_new_attempts_and_the_failed_partition(
    sandbox: Sandbox, pages: DagsterPages
) -> None:
    file = sandbox.landing("orders") / "03.csv"
    file.write_bytes(b"id,quantity\n1,1\n")
    pages.open("assets/orders/batches?view=partitions")
    pages.see("Materialized (10)")
    pages.click("Materialize…")
    pages.choose("All")
    pages.see("10 partitions", screenshot="3-backfill-of-ten")
    pages.choose("Launch backfill")
    pages.wait_until_dialog_closes()
    pages.see("Failed (1)")
    wait_until(lambda: len(manifests(sandbox.storage("orders"))) == 19, "nine are published again")
    pages.see("Materialized (9)", screenshot="4-one-is-red")
    shown = {}
    for key in KEYS:
        pages.open(f"assets/orders/batches?view=partitions&partition={key}")
        metadata = pages.metadata()
        shown[key] = (metadata["attempt"], metadata["generation"])
    assert shown == {key: ("1", "1") if key == BAD else ("2", "2") for key in KEYS}


def test_retry_of_failed_partitions_runs_no_others(sandbox: Sandbox, pages: DagsterPages) -> None:
    sandbox.land("orders", {"03.csv": orders_csv(3)})
    pages.open(f"assets/orders/batches?view=partitions&partition={BAD}")
    pages.click("Materialize…")
    pages.choose("Failed")
    pages.see("1 partition", screenshot="5-failed-only")
    pages.choose("Launch 1 run")
    pages.see("Materialized (10)", screenshot="6-all-green")
    assert len(manifests(sandbox.storage("orders"))) == 20
    pages.open(f"assets/orders/batches?view=partitions&partition={BAD}")
    metadata = pages.metadata()
    assert (metadata["attempt"], metadata["generation"]) == ("3", "2")


def test_cancelled_run_abandons_its_attempt(sandbox: Sandbox, pages: DagsterPages) -> None:
    ids = "".join(f"{number}\n" for number in range(2_000_000))
    sandbox.land("slow", {"many.csv": f"id\n{ids}".encode()})

    def attempts() -> list[dict[str, Any]]:
        items = sandbox.json_of("explain", "many.csv")["items"]
        return [attempt for item in items for attempt in item.get("attempts", ())]

    storage = sandbox.storage("slow")
    wait_until(lambda: any(storage.glob("*.tmp")), "the batch is being written")
    [run] = ask(pages.port, RUNS_OF_JOB, {"job": "slow_encode"})["runsOrError"]["results"]
    pages.open(f"runs/{run['runId']}")
    pages.click("Terminate")
    pages.see("Terminate runs", screenshot="7-terminate")
    pages.choose("Terminate 1 run")
    pages.see("Canceled", screenshot="8-cancelled")
    wait_until(lambda: [attempt["status"] for attempt in attempts()] != ["running"], "it is closed")
    assert [attempt["status"] for attempt in attempts()] == ["abandoned"]
    assert manifests(storage) == []
