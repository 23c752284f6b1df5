"""The whole system while its processes are killed, checked without its own code (G3, G4)."""

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
    """The installation at work."""
    with open_installation() as opened:
        yield opened


def test_crash_injector_reaches_every_point_that_is_not_covered_elsewhere() -> None:
    """A failpoint with a new name has to be added to KINDS or to COVERED_ELSEWHERE."""
    assert {point.partition(".")[0] for point in POINTS} == KINDS.keys()
    assert {*SHORT} < {*POINTS}


@pytest.mark.guarantee("G3")
def test_system_that_is_killed_everywhere_loses_nothing_and_repeats_nothing(
    installation: CrashInstallation, figures: Figures, long_form: bool
) -> None:
    """Every file is intact and explained, nothing is left open, and gc removes all garbage."""
    chance = random.Random(8)  # noqa: S311 - the same kills each time
    injector = CrashInjector(installation=installation, chance=chance, points=POINTS)
    kills, points = (1_000, POINTS) if long_form else (20, [*SHORT])
    injector.run(kills, points, server_every=20 if long_form else 9)
    injector.drain()
    verdict = installation.check()
    figures(
        kills=injector.kills,
        points=len(injector.fired),
        items=verdict.items,
        records=verdict.records,
        **{f"times_{name.replace(' ', '_')}": count for name, count in injector.servers.items()},
        lost=verdict.count(Kind.LOST) + verdict.count(Kind.TARGET_LOST),
        twice=verdict.count(Kind.TWICE) + verdict.count(Kind.TARGET_TWICE),
        unreadable=verdict.count(Kind.UNREADABLE),
        orphans=verdict.count(Kind.ORPHAN),
        left_open=verdict.count(Kind.OPEN),
        wrong_pointers=verdict.count(Kind.POINTER),
        files_for_gc=verdict.garbage,
        seconds_to_recover_at_most=injector.max_recovery_seconds(),
    )
    assert verdict.faults == (), str(verdict)
    assert injector.unexpected == []
    installation.age()
    installation.actions.run("command", words=["gc"])
    collected = installation.check()
    assert (collected.faults, collected.garbage) == ((), 0)


@pytest.mark.guarantee("G4")
def test_process_that_is_stopped_past_its_lease_publishes_nothing(
    installation: CrashInstallation, figures: Figures, long_form: bool
) -> None:
    workers = StalledWorkers(installation=installation)
    for _ in range(20 if long_form else 1):
        workers.encode()
    for _ in range(10 if long_form else 1):
        workers.load()
    figures(zombies=workers.stalled, published_by_zombies=workers.published)
    assert workers.published == 0
