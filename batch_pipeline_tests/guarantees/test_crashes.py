"""Processes of the whole system are killed. An independent checker inspects results (G3, G4)."""

import random
import signal
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle

import pytest

from batch_pipeline_tests.acceptance.sandbox import wait_until
from batch_pipeline_tests.guarantees.checker import Kind
from batch_pipeline_tests.guarantees.crashes.crash_injector import (
    COVERED_ELSEWHERE,
    KINDS,
    CrashInjector,
)
from batch_pipeline_tests.guarantees.crashes.fork_server import Child
from batch_pipeline_tests.guarantees.crashes.installation import (
    CrashInstallation,
    open_installation,
)
from batch_pipeline_tests.inventory.test_failpoints import COVERED_BY, INVENTORY_FAILPOINTS
from batch_pipeline_tests.proofs import Figures

POINTS = sorted(
    point
    for point in {*INVENTORY_FAILPOINTS, *COVERED_BY}
    if not point.startswith(COVERED_ELSEWHERE)
)
SHORT = (
    "register.before_commit",
    "claim.after_commit",
    "encode.before_publish",
    "publish.after_commit",
    "pointer.before_link",
    "warehouse.before_commit",
    "load.acknowledged",
    "target.after_register",
)
STOPS = ("claim.after_commit", "encode.after_claim", "encode.before_publish")
LEASE_SECONDS = 1.0
LEASES = """
SELECT count(*) FROM batch_pipeline.{} WHERE status = 'running' AND lease_until > clock_timestamp()
"""
ATTEMPTS = """
SELECT a.run_id, a.status, a.generation FROM batch_pipeline.attempt a
  JOIN batch_pipeline.batch b ON b.id = a.batch_id
  JOIN batch_pipeline.job j ON j.id = b.job_id
 WHERE j.name = 'parcels' AND b.id = ANY(%s) ORDER BY b.id, a.number
"""
BATCHES = """
SELECT b.id, lpad(b.first_id::text, 8, '0') || '-' || lpad(b.last_id::text, 8, '0')
  FROM batch_pipeline.batch b JOIN batch_pipeline.job j ON j.id = b.job_id
 WHERE j.name = 'parcels' ORDER BY b.first_id
"""
LOADED = "SELECT count(*) FROM batch_pipeline.load WHERE run_id = %s AND status = 'succeeded'"


@pytest.fixture(scope="module")
def installation() -> Iterator[CrashInstallation]:
    """A running installation."""
    with open_installation() as installation:
        yield installation


def test_crash_injector_covers_every_failpoint_not_covered_elsewhere() -> None:
    """Add a new failpoint to KINDS or to COVERED_ELSEWHERE."""
    assert {point.partition(".")[0] for point in POINTS} == KINDS.keys()
    assert {*SHORT} < {*POINTS}


@pytest.mark.guarantee("G3")
def test_kills_at_every_failpoint_lose_and_duplicate_nothing(
    installation: CrashInstallation, figures: Figures, long_form: bool
) -> None:
    """The checker finds no fault, and `gc` deletes all garbage."""
    rng = random.Random(8)  # noqa: S311 - the same kills each time
    injector = CrashInjector(installation=installation, rng=rng, points=POINTS)
    kills, points = (1_000, POINTS) if long_form else (len(SHORT), [*SHORT])
    injector.run(kills, points, server_every=20 if long_form else 5)
    injector.drain()
    result = installation.check()
    figures(
        kills=injector.kills,
        points=len(injector.fired),
        items=result.items,
        records=result.records,
        **{f"{name}_kills": count for name, count in injector.servers.items()},
        lost=result.count(Kind.LOST) + result.count(Kind.TARGET_LOST),
        twice=result.count(Kind.TWICE) + result.count(Kind.TARGET_TWICE),
        unreadable=result.count(Kind.UNREADABLE),
        orphans=result.count(Kind.ORPHAN),
        left_open=result.count(Kind.OPEN),
        wrong_manifest_files=result.count(Kind.MANIFEST_FILE),
        files_for_gc=result.garbage,
        max_recovery_seconds=injector.max_recovery_seconds(),
    )
    assert result.faults == (), str(result)
    assert injector.unexpected == []
    installation.age()
    installation.actions.run("command", words=["gc"])
    after_gc = installation.check()
    assert (after_gc.faults, after_gc.garbage) == ((), 0)


def fork_until_stopped(
    installation: CrashInstallation, runs: Sequence[str], points: Iterable[str], table: str
) -> list[Child]:
    """Start runs that stop at failpoints, and wait until their leases have expired."""
    stopped = [
        installation.actions.fork(
            "run", failpoints=f"{point}=stop", run_id=run_id, lease_seconds=LEASE_SECONDS
        )
        for run_id, point in zip(runs, points, strict=False)
    ]
    wait_until(lambda: all(child.is_stopped() for child in stopped), "all are stopped")
    leases = LEASES.format(table)
    wait_until(lambda: installation.query(leases) == [(0,)], "their leases have ended")
    return stopped


def continue_to_end(installation: CrashInstallation, stopped: Sequence[Child]) -> None:
    for child in stopped:
        signal.pidfd_send_signal(child.descriptor, signal.SIGCONT)
    for child in stopped:
        assert installation.actions.exit_code(child) == 0


def stall_encodes(installation: CrashInstallation, count: int) -> int:
    """Stop encoding runs, let another run take over their batches, and continue the runs.

    Return the number of batches that the stopped runs published.
    """
    actions, query = installation.actions, installation.query
    before = len(query(BATCHES))
    for _ in range(count):
        installation.land("parcels")
    actions.run("tick", cursors={"parcels_new_files": None})
    batches = query(BATCHES)[before:]
    runs = [run_id for run_id, job in installation.queue() if job == "parcels_encode"]
    assert len(batches) == len(runs) == count
    stopped = fork_until_stopped(installation, runs, cycle(STOPS), "attempt")
    arguments = {"stream": "parcels", "job": "parcels_encode"}
    other = actions.run("launch", **arguments, first=batches[0][1], last=batches[-1][1])
    assert actions.run("run", run_id=other) == "SUCCESS"
    continue_to_end(installation, stopped)
    attempts = query(ATTEMPTS, [batch_id for batch_id, _ in batches])
    fenced = [row for row in attempts if row[1] == "abandoned" and row[0] in runs]
    assert len(fenced) == count, attempts
    published = [run_id for run_id, _, generation in attempts if generation is not None]
    assert published.count(other) == count
    return len(published) - count


def stall_load(installation: CrashInstallation) -> int:
    """Stop a load whose rows are in the target, let another run record it, and continue it.

    Return the number of loads that the stopped run recorded.
    """
    actions = installation.actions
    installation.land("orders")
    actions.run("tick", cursors={"orders_new_files": None})
    for run_id, _ in installation.queue():
        assert actions.run("run", run_id=run_id) == "SUCCESS"
    actions.run("tick", cursors={"orders_load": None})
    [(run_id, _)] = installation.queue()
    stopped = fork_until_stopped(installation, [run_id], ["load.acknowledged"], "load")
    assert actions.run("job", name="orders_load") == "SUCCESS"
    continue_to_end(installation, stopped)
    [(recorded,)] = installation.query(LOADED, run_id)
    return int(recorded)


@pytest.mark.guarantee("G4")
def test_process_stopped_past_its_lease_publishes_nothing(
    installation: CrashInstallation, figures: Figures, long_form: bool
) -> None:
    encodes, loads, runs = (20, 10, 6) if long_form else (1, 1, len(STOPS))
    published = sum(stall_encodes(installation, runs) for _ in range(encodes))
    published += sum(stall_load(installation) for _ in range(loads))
    figures(zombies=encodes * runs + loads, published_by_zombies=published)
    assert published == 0
