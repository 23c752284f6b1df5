"""Parts of a `dev` at work are killed; each time everything ends well without a person."""

import signal
from collections.abc import Iterator

import pytest
import yaml

from batch_pipeline_tests.acceptance.live_dev import FINISHED, LiveDev, kill, live_dev
from batch_pipeline_tests.acceptance.workplace import Workplace, wait_until
from batch_pipeline_tests.proofs import Figures

pytestmark = pytest.mark.guarantee("G3")

QUICK = {"run_monitoring": {"poll_interval_seconds": 2}}
# A run of two batches lasts so long that another one begins meanwhile, even on a machine on which
# processes take ten seconds to start.
SLOW = "encode.before_publish=sleep:8"
SUCCEEDED = ("succeeded", None)
DIED = {
    ("abandoned", "its process ended without a word"),
    ("abandoned", "its run failed without closing it"),
}


@pytest.fixture(scope="module")
def dev(shared_workplace: Workplace) -> Iterator[LiveDev]:
    """Everything up, with a stream whose batches have one file each, two batches a run."""
    place = shared_workplace.given(BATCH_PIPELINE_FAILPOINTS=SLOW)
    rules = {"partitions_per_run": 2}
    place.write_stream("orders", batch={"max_count": 1}, dagster=rules)
    place.landing("orders").mkdir(parents=True)
    place.home.mkdir()
    (place.home / "dagster.yaml").write_text(yaml.safe_dump(QUICK))
    with live_dev(place) as everything:
        yield everything


def landed(dev: LiveDev, count: int) -> list[str]:
    """Land files of one record each, and give the partitions that they will be."""
    before = len(list(dev.place.landing("orders").iterdir()))
    numbers = range(before + 1, before + count + 1)
    dev.place.land("orders", {f"{number:03}.csv": f"id\n{number}\n".encode() for number in numbers})
    return [f"{number:012}-{number:012}" for number in numbers]


def at_work(dev: LiveDev, runs: int) -> dict[str, int]:
    """Wait until so many runs are in the midst of an encode; give their processes by partition."""
    wait_until(lambda: len(dev.working("orders")) == runs, f"{runs} runs encode")
    return dev.working("orders")


def check_published_once(dev: LiveDev, mine: list[str], *, generations: int = 1) -> None:
    """Wait for the end of all work, and expect each batch published exactly once, and green."""
    once = list(range(1, generations + 1))
    wait_until(
        lambda: all(dev.generations("orders").get(one) == once for one in mine),
        f"{mine} are published",
        pause_seconds=0.5,
    )
    dev.settled()
    shown = dev.partitions("orders")
    assert {*mine} <= shown["materialized"]
    assert shown["failed"] | shown["unmaterialized"] == set()
    assert {key: dev.generations("orders")[key] for key in mine} == dict.fromkeys(mine, once)


def test_killed_run_is_followed_by_another_one(dev: LiveDev, figures: Figures) -> None:
    """Expect the killed run to have failed, its attempt closed, and a second one published."""
    mine = landed(dev, 2)
    [(hit, pid)] = at_work(dev, 1).items()
    kill(pid)
    check_published_once(dev, mine)
    first, *others = dev.attempts("orders")[hit]
    assert first in DIED
    assert others == [SUCCEEDED]
    figures(dev_processes_killed=1)


@pytest.mark.parametrize("which", ["the process with the definitions", "the whole code server"])
def test_killed_code_server_is_replaced_and_its_runs_go_on(
    dev: LiveDev, which: str, figures: Figures
) -> None:
    """Expect a run to end as if nothing had happened, and one that is killed then to be noticed
    although nobody waits for its process."""
    mine = landed(dev, 4)
    working = at_work(dev, 2)
    spared, hit = sorted(working)
    front = dev.parts("code-server", "start") if which == "the whole code server" else []
    kill(*front, *dev.parts("api", "grpc"))
    kill(working[hit])
    check_published_once(dev, mine)
    assert dev.attempts("orders")[spared] == [SUCCEEDED]
    first, *others = dev.attempts("orders")[hit]
    assert first in DIED
    assert others == [SUCCEEDED]
    figures(dev_processes_killed=2 + len(front))


def test_killed_daemon_and_webserver_are_replaced(dev: LiveDev, figures: Figures) -> None:
    """Expect the run at work to end as if nothing had happened, and new files to be picked up."""
    mine = landed(dev, 1)
    at_work(dev, 1)
    kill(*dev.parts("dagster._daemon"), *dev.parts("dagster_webserver"))
    mine += landed(dev, 1)
    wait_until(dev.answers, "the webserver answers")
    check_published_once(dev, mine)
    assert [dev.attempts("orders")[key] for key in mine] == [[SUCCEEDED], [SUCCEEDED]]
    figures(dev_processes_killed=2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_database_that_ends_is_started_again(
    dev: LiveDev, number: signal.Signals, figures: Figures
) -> None:
    """Expect what was at work to be published all the same, by this attempt or by the next."""
    mine = landed(dev, 2)
    at_work(dev, 1)
    [postmaster] = [one for one in dev.parts("postgres", "-D") if "postgres" in one.name()]
    postmaster.send_signal(number)
    wait_until(lambda: not postmaster.is_running() or postmaster.status() == "zombie", "it ends")
    wait_until(dev.database_answers, "the database answers")
    check_published_once(dev, mine)
    figures(dev_processes_killed=1)


@pytest.mark.parametrize("part", ["SparkConnectServer", "worker_daemon"])
def test_killed_spark_is_started_again_at_its_address(
    dev: LiveDev, part: str, figures: Figures
) -> None:
    """Expect the run at work to go on with the new one, be it the JVM or its Python workers."""
    mine = landed(dev, 2)
    at_work(dev, 1)
    killed = dev.parts(part)
    kill(*killed)
    check_published_once(dev, mine)
    figures(dev_processes_killed=len(killed))


def test_killed_run_of_a_backfill_is_repeated_within_the_backfill(
    dev: LiveDev, figures: Figures
) -> None:
    """Expect a second generation of each batch, and no third of what the run had published."""
    mine = landed(dev, 2)
    check_published_once(dev, mine)
    backfill = dev.launch("orders", mine)
    wait_until(lambda: mine[1] in dev.working("orders"), "the second one is encoded")
    kill(dev.working("orders")[mine[1]])
    assert dev.ended(backfill) == "COMPLETED_SUCCESS"
    check_published_once(dev, mine, generations=2)
    figures(dev_processes_killed=1)


def test_no_run_is_left_unfinished(dev: LiveDev) -> None:
    """Expect every run of all these tests to have an end."""
    dev.settled()
    assert {run["status"] for run in dev.runs()} <= FINISHED
