"""Processes of a working `dev` are killed: each batch is published once.

A killed run is retried automatically. If a service ends, `dev` stops, and continues when it is
started again.
"""

import signal
from collections.abc import Iterator

import pytest
import yaml

from batch_pipeline_tests.acceptance.live_dev import SERVICES, WORKERS, LiveDev, kill, live_dev
from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    Sandbox,
    process_names,
    wait_until,
)
from batch_pipeline_tests.proofs import Figures

pytestmark = [pytest.mark.guarantee("G3"), pytest.mark.long]

QUICK = {"run_monitoring": {"poll_interval_seconds": 2}}
# A run of two batches is so slow that another run starts before its end, even on a machine where
# processes take ten seconds to start.
SLOW = "encode.before_publish=sleep:8"
DIED = {
    ("abandoned", "the worker exited without reporting"),
    ("abandoned", "its run failed without closing it"),
}
# The message of `dev` for each service. It has none if it is killed itself.
MESSAGES = {
    "PostgreSQL": "database ended",
    "Spark": "Spark server ended with exit code 137",
    "code server": "code server ended with exit code 137",
    "definitions": "code server lost the process that loads the definitions",
    "webserver": "webserver ended with exit code 137",
    "daemon": "daemon ended with exit code 137",
}


@pytest.fixture(scope="module")
def dev(shared_sandbox: Sandbox) -> Iterator[LiveDev]:
    """A `dev` with a stream of one file per batch and two batches per run."""
    sandbox = shared_sandbox.with_variables(BATCH_PIPELINE_FAILPOINTS=SLOW)
    options = {"partitions_per_run": 2}
    sandbox.write_stream("orders", batch={"max_count": 1}, dagster=options)
    sandbox.landing("orders").mkdir(parents=True)
    sandbox.home.mkdir()
    (sandbox.home / "dagster.yaml").write_text(yaml.safe_dump(QUICK))
    with live_dev(sandbox) as running:
        yield running


def land(dev: LiveDev, count: int) -> list[str]:
    """Land files of one record each and return their partitions."""
    before = len(list(dev.sandbox.landing("orders").iterdir()))
    numbers = range(before + 1, before + count + 1)
    dev.sandbox.land(
        "orders", {f"{number:03}.csv": f"id\n{number}\n".encode() for number in numbers}
    )
    return [f"{number:08}-{number:08}" for number in numbers]


def wait_for_runs(dev: LiveDev) -> dict[str, int]:
    """Wait until a run is encoding; return the processes of runs by partition."""
    wait_until(lambda: bool(dev.run_processes("orders")), "a run encodes")
    return dev.run_processes("orders")


def check_published_once(dev: LiveDev, partitions: list[str], *, generations: int = 1) -> None:
    """Wait until the work ends; assert that each batch is published once and materialized."""
    expected = list(range(1, generations + 1))

    def are_published() -> bool:
        generations = dev.generations("orders")
        return all(generations.get(partition) == expected for partition in partitions)

    wait_until(are_published, f"{partitions} are published", pause_seconds=0.5)
    dev.wait_until_idle()
    states = dev.partitions("orders")
    assert {*partitions} <= states["materialized"]
    assert states["failed"] | states["unmaterialized"] == set()
    assert are_published()


def test_killed_run_is_retried(dev: LiveDev, figures: Figures) -> None:
    partitions = land(dev, 2)
    [(killed, pid)] = wait_for_runs(dev).items()
    kill(pid)
    check_published_once(dev, partitions)
    first, *others = dev.attempts("orders")[killed]
    assert first in DIED
    assert others == [("succeeded", None)]
    figures(dev_processes_killed=1)


@pytest.mark.parametrize("service", SERVICES)
def test_killed_service_stops_dev_and_the_next_dev_publishes_once(
    dev: LiveDev, service: str, figures: Figures
) -> None:
    partitions = land(dev, 2)
    wait_for_runs(dev)
    processes = dev.find_processes(*SERVICES[service])
    assert processes
    kill(*processes)
    if service == "dev":
        assert dev.wait_for_exit() == -signal.SIGKILL
    else:
        assert dev.process.wait(LONGEST_SECONDS) == 75
        assert process_names(dev.sandbox.processes()) == []
        output = dev.sandbox.output.read_text()
        assert f"Error: The {MESSAGES[service]}. Published batches are not" in output
        assert "Traceback" not in output
    dev.start()
    check_published_once(dev, partitions)
    figures(dev_processes_killed=len(processes))


def test_killed_spark_python_workers_are_replaced(dev: LiveDev, figures: Figures) -> None:
    partitions = land(dev, 2)
    wait_for_runs(dev)
    workers = dev.find_processes(*WORKERS["Python worker"])
    kill(*workers)
    check_published_once(dev, partitions)
    figures(dev_processes_killed=len(workers))


def test_killed_run_of_a_backfill_is_retried_in_the_backfill(
    dev: LiveDev, figures: Figures
) -> None:
    partitions = land(dev, 2)
    check_published_once(dev, partitions)
    backfill = dev.launch("orders", partitions)
    wait_until(lambda: partitions[1] in dev.run_processes("orders"), "the second one is encoded")
    kill(dev.run_processes("orders")[partitions[1]])
    assert dev.status_of(backfill) == "COMPLETED_SUCCESS"
    check_published_once(dev, partitions, generations=2)
    figures(dev_processes_killed=1)
