"""Processes of a `dev` at work are killed: each batch is published once.

A run is repeated by itself. If a service ends, `dev` stops, and goes on when it is started again.
"""

import signal
from collections.abc import Iterator

import pytest
import yaml

from batch_pipeline_tests.acceptance.live_dev import FINISHED, LiveDev, kill, live_dev
from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    Sandbox,
    process_names,
    wait_until,
)
from batch_pipeline_tests.proofs import Figures

pytestmark = [pytest.mark.guarantee("G3"), pytest.mark.long]

QUICK = {"run_monitoring": {"poll_interval_seconds": 2}}
# A run of two batches lasts so long that another one begins meanwhile, even on a machine on which
# processes take ten seconds to start.
SLOW = "encode.before_publish=sleep:8"
# Words of the command line, and what `dev` prints.
SERVICES = {
    "database": (("bin/postgres", "-D"), "database ended"),
    "Spark": (("SparkConnectServer",), "Spark server ended with exit code 137"),
    "code server": (("code-server", "start"), "code server ended with exit code 137"),
    "definitions": (("api", "grpc"), "code server has lost the process with the definitions"),
    "webserver": (("dagster_webserver",), "webserver ended with exit code 137"),
    "daemon": (("dagster._daemon",), "daemon ended with exit code 137"),
}
SUCCEEDED = ("succeeded", None)
DIED = {
    ("abandoned", "the worker exited without reporting"),
    ("abandoned", "its run failed without closing it"),
}


@pytest.fixture(scope="module")
def dev(shared_sandbox: Sandbox) -> Iterator[LiveDev]:
    """Everything up, with a stream whose batches have one file each, two batches a run."""
    sandbox = shared_sandbox.with_variables(BATCH_PIPELINE_FAILPOINTS=SLOW)
    rules = {"partitions_per_run": 2}
    sandbox.write_stream("orders", batch={"max_count": 1}, dagster=rules)
    sandbox.landing("orders").mkdir(parents=True)
    sandbox.home.mkdir()
    (sandbox.home / "dagster.yaml").write_text(yaml.safe_dump(QUICK))
    with live_dev(sandbox) as everything:
        yield everything


def landed(dev: LiveDev, count: int) -> list[str]:
    """Land files of one record each, and give the partitions that they will be."""
    before = len(list(dev.sandbox.landing("orders").iterdir()))
    numbers = range(before + 1, before + count + 1)
    dev.sandbox.land(
        "orders", {f"{number:03}.csv": f"id\n{number}\n".encode() for number in numbers}
    )
    return [f"{number:08}-{number:08}" for number in numbers]


def at_work(dev: LiveDev, runs: int) -> dict[str, int]:
    """Wait until so many runs are in the midst of an encode; give their processes by partition."""
    wait_until(lambda: len(dev.run_processes("orders")) == runs, f"{runs} runs encode")
    return dev.run_processes("orders")


def check_published_once(dev: LiveDev, mine: list[str], *, generations: int = 1) -> None:
    """Wait for the end of all work, and expect each batch published exactly once, and green."""
    once = list(range(1, generations + 1))
    wait_until(
        lambda: all(dev.generations("orders").get(one) == once for one in mine),
        f"{mine} are published",
        pause_seconds=0.5,
    )
    dev.wait_until_idle()
    shown = dev.partitions("orders")
    assert {*mine} <= shown["materialized"]
    assert shown["failed"] | shown["unmaterialized"] == set()
    assert {key: dev.generations("orders")[key] for key in mine} == dict.fromkeys(mine, once)


def test_killed_run_is_followed_by_another_one(dev: LiveDev, figures: Figures) -> None:
    mine = landed(dev, 2)
    [(hit, pid)] = at_work(dev, 1).items()
    kill(pid)
    check_published_once(dev, mine)
    first, *others = dev.attempts("orders")[hit]
    assert first in DIED
    assert others == [SUCCEEDED]
    figures(dev_processes_killed=1)


@pytest.mark.parametrize("service", SERVICES)
def test_service_killed_stops_dev_and_the_next_dev_publishes_once(
    dev: LiveDev, service: str, figures: Figures
) -> None:
    words, message = SERVICES[service]
    mine = landed(dev, 2)
    at_work(dev, 1)
    processes = dev.find_processes(*words)
    assert processes
    kill(*processes)
    assert dev.process.wait(LONGEST_SECONDS) == 75
    assert process_names(dev.sandbox.processes()) == []
    assert f"Error: The {message}. Published batches are not" in dev.sandbox.output.read_text()
    assert "Traceback" not in dev.sandbox.output.read_text()
    dev.start()
    check_published_once(dev, mine)
    figures(dev_processes_killed=len(processes))


def test_dev_killed_ends_its_services_and_the_next_dev_publishes_once(
    dev: LiveDev, figures: Figures
) -> None:
    mine = landed(dev, 2)
    at_work(dev, 1)
    dev.process.kill()
    assert dev.wait_for_exit() == -signal.SIGKILL
    dev.start()
    check_published_once(dev, mine)
    figures(dev_processes_killed=1)


def test_killed_python_workers_of_spark_are_replaced_and_the_run_goes_on(
    dev: LiveDev, figures: Figures
) -> None:
    mine = landed(dev, 2)
    at_work(dev, 1)
    killed = dev.find_processes("worker_daemon")
    kill(*killed)
    check_published_once(dev, mine)
    figures(dev_processes_killed=len(killed))


def test_killed_run_of_a_backfill_is_repeated_within_the_backfill(
    dev: LiveDev, figures: Figures
) -> None:
    mine = landed(dev, 2)
    check_published_once(dev, mine)
    backfill = dev.launch("orders", mine)
    wait_until(lambda: mine[1] in dev.run_processes("orders"), "the second one is encoded")
    kill(dev.run_processes("orders")[mine[1]])
    assert dev.status_of(backfill) == "COMPLETED_SUCCESS"
    check_published_once(dev, mine, generations=2)
    figures(dev_processes_killed=1)


def test_no_run_is_left_unfinished(dev: LiveDev) -> None:
    dev.wait_until_idle()
    assert {run["status"] for run in dev.runs()} <= FINISHED
