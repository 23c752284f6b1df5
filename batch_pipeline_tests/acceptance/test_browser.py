"""What a person does and sees in Dagster's pages, clicked in a real browser.

Pictures of the pages are kept in pytest's cache folder, below `d/pictures`.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from batch_pipeline_tests.acceptance.dagster_pages import DagsterPages, open_pages
from batch_pipeline_tests.acceptance.graphql import RUNS_OF_JOB, ask
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import Sandbox, manifests, wait_until
from batch_pipeline_tests.acceptance.test_dev import wait_for_url

pytestmark = pytest.mark.long

KEYS = [f"{number:08}-{number:08}" for number in range(1, 11)]
BAD = KEYS[2]


def orders(number: int) -> bytes:
    """Return a file of five orders."""
    rows = [f"{number * 100 + row},{row}\n" for row in range(5)]
    return "".join(["id,quantity\n", *rows]).encode()


@pytest.fixture(scope="module")
def sandbox(shared_sandbox: Sandbox, warm_spark: str) -> Sandbox:
    """Streams `orders`, a batch a file, of which nine have landed, and `slow`, still empty."""
    shared_sandbox.write_stream("orders", batch={"max_count": 1}, dagster={"partitions_per_run": 5})
    shared_sandbox.write_stream(
        "slow", stream_maps={"slow": {"text": "'-'.join([str(id), str(id)[::-1]])"}}
    )
    shared_sandbox.landing("slow").mkdir(parents=True)
    shared_sandbox.land("orders", {f"{n:02}.csv": orders(n) for n in range(1, 10)})
    return shared_sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)


@pytest.fixture(scope="module")
def pages(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[DagsterPages]:
    """A browser on a running `dev`."""
    port = free_port()
    process = sandbox.start("dev", "--port", str(port))
    wait_for_url(sandbox, process)
    with open_pages(port, request.config.cache.mkdir("pictures")) as opened:
        yield opened
    process.terminate()
    process.wait()


def test_dropped_file_turns_green(sandbox: Sandbox, pages: DagsterPages) -> None:
    pages.open("assets/orders/batches?view=partitions")
    pages.see("Materialized (9)", picture="1-nine-files")
    sandbox.land("orders", {"10.csv": orders(10)})
    pages.see(KEYS[9])
    pages.see("Materialized (10)", picture="2-one-more-file")


def test_backfill_of_ten_shows_attempt_two_and_the_bad_one_red(
    sandbox: Sandbox, pages: DagsterPages
) -> None:
    whole = sandbox.landing("orders") / "03.csv"
    whole.write_bytes(b"id,quantity\n1,1\n")
    pages.open("assets/orders/batches?view=partitions")
    pages.see("Materialized (10)")
    pages.click("Materialize…")
    pages.choose("All")
    pages.see("10 partitions", picture="3-backfill-of-ten")
    pages.choose("Launch backfill")
    pages.done()
    pages.see("Failed (1)")
    wait_until(lambda: len(manifests(sandbox.storage("orders"))) == 19, "nine are published again")
    pages.see("Materialized (9)", picture="4-one-is-red")
    shown = {}
    for key in KEYS:
        pages.open(f"assets/orders/batches?view=partitions&partition={key}")
        found = pages.metadata()
        shown[key] = (found["attempt"], found["generation"])
    assert shown == {key: ("1", "1") if key == BAD else ("2", "2") for key in KEYS}


def test_failed_partition_alone_is_run_again(sandbox: Sandbox, pages: DagsterPages) -> None:
    sandbox.land("orders", {"03.csv": orders(3)})
    pages.open(f"assets/orders/batches?view=partitions&partition={BAD}")
    pages.click("Materialize…")
    pages.choose("Failed")
    pages.see("1 partition", picture="5-failed-only")
    pages.choose("Launch 1 run")
    pages.see("Materialized (10)", picture="6-all-green")
    assert len(manifests(sandbox.storage("orders"))) == 20
    pages.open(f"assets/orders/batches?view=partitions&partition={BAD}")
    found = pages.metadata()
    assert (found["attempt"], found["generation"]) == ("3", "2")


def test_cancelled_run_closes_its_attempt(sandbox: Sandbox, pages: DagsterPages) -> None:
    ids = "".join(f"{number}\n" for number in range(2_000_000))
    sandbox.land("slow", {"many.csv": f"id\n{ids}".encode()})

    def attempts() -> list[dict[str, Any]]:
        items = sandbox.json_of("explain", "many.csv")["items"]
        return [attempt for item in items for attempt in item.get("attempts", ())]

    def runs() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(pages.port, RUNS_OF_JOB, {"job": "slow_encode"})[
            "runsOrError"
        ]["results"]
        return found

    storage = sandbox.storage("slow")
    wait_until(lambda: any(storage.glob("*.tmp")), "the batch is being written")
    [run] = runs()
    pages.open(f"runs/{run['runId']}")
    pages.click("Terminate")
    pages.see("Terminate runs", picture="7-terminate")
    pages.choose("Terminate 1 run")
    pages.see("Canceled", picture="8-cancelled")
    wait_until(lambda: [one["status"] for one in attempts()] != ["running"], "it is closed")
    assert [one["status"] for one in attempts()] == ["abandoned"]
    assert manifests(storage) == []
