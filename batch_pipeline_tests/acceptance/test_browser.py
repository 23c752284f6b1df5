"""Dagster's pages in a real browser.

Screenshots are saved in pytest's cache folder, below `d/screenshots`.
"""

from collections.abc import Iterator

import pytest

from batch_pipeline_tests.acceptance.dagster_pages import DagsterPages, open_pages
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
    """A stream `orders`, one file per batch, with nine files."""
    shared_sandbox.write_stream("orders", batch={"max_count": 1}, dagster={"partitions_per_run": 5})
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
