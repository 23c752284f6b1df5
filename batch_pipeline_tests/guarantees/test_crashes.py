"""Processes of the whole system are killed. An independent checker inspects results (G3, G4)."""

import random
from collections.abc import Iterator

import pytest

from batch_pipeline_tests.guarantees.checker import Kind
from batch_pipeline_tests.guarantees.crashes.crash_injector import (
    COVERED_ELSEWHERE,
    KINDS,
    CrashInjector,
)
from batch_pipeline_tests.guarantees.crashes.installation import (
    CrashInstallation,
    open_installation,
)
from batch_pipeline_tests.guarantees.crashes.stalled_workers import StalledWorkers
from batch_pipeline_tests.inventory.test_failpoints import COVERED_BY, INVENTORY_FAILPOINTS
from batch_pipeline_tests.proofs import Figures

POINTS = sorted(
    point
    for point in {*INVENTORY_FAILPOINTS, *COVERED_BY}
    if not point.startswith(COVERED_ELSEWHERE)
)
SHORT = (
    "register.before_commit",
    "plan.after_commit",
    "claim.after_commit",
    "encode.before_publish",
    "publish.before_commit",
    "publish.after_commit",
    "encode.before_pointer",
    "pointer.before_link",
    "warehouse.before_commit",
    "load.acknowledged",
    "target.after_rename",
    "target.after_register",
)


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
    injector.run(kills, points, server_every=20 if long_form else 9)
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


@pytest.mark.guarantee("G4")
def test_process_stopped_past_its_lease_publishes_nothing(
    installation: CrashInstallation, figures: Figures, long_form: bool
) -> None:
    workers = StalledWorkers(installation=installation)
    for _ in range(20 if long_form else 1):
        workers.encode()
    for _ in range(10 if long_form else 1):
        workers.load()
    figures(zombies=workers.stalled, published_by_zombies=workers.published)
    assert workers.published == 0
