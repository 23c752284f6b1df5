"""The whole system in a storm of kills, judged by somebody who does not know it (G3, G4)."""

import random
from collections.abc import Iterator

import pytest

from batch_pipeline_tests.guarantees.checker import Kind
from batch_pipeline_tests.guarantees.crashes.crash_injector import Storm
from batch_pipeline_tests.guarantees.crashes.installation import Scene, open_scene
from batch_pipeline_tests.guarantees.crashes.points import DEED_OF, ELSEWHERE
from batch_pipeline_tests.guarantees.crashes.stalled_workers import Zombies
from batch_pipeline_tests.inventory.test_failpoints import COVERED_BY, OURS
from batch_pipeline_tests.proofs import Figures

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
def scene() -> Iterator[Scene]:
    """A home at work."""
    with open_scene() as opened:
        yield opened


def test_storm_reaches_every_point_that_is_not_proved_elsewhere() -> None:
    """A new failpoint has to be added to the crash test or to ELSEWHERE."""
    known = {*OURS, *COVERED_BY}
    assert {*DEED_OF} == {one for one in known if not one.startswith(ELSEWHERE)}
    assert {*SHORT} < {*DEED_OF}


@pytest.mark.guarantee("G3")
def test_system_that_is_killed_everywhere_loses_nothing_and_repeats_nothing(
    scene: Scene, figures: Figures, long_form: bool
) -> None:
    """Every file is intact and explained, nothing is left open, and gc removes all garbage."""
    storm = Storm(scene=scene, chance=random.Random(8))  # noqa: S311 - the same storm each time
    kills, wanted = (1_000, list(DEED_OF)) if long_form else (20, SHORT)
    storm.rage(kills, wanted, server_every=20 if long_form else 9)
    storm.drain()
    verdict = scene.judged()
    figures(
        kills=storm.kills,
        points=len(storm.fired),
        items=verdict.items,
        records=verdict.records,
        **{f"times_{name.replace(' ', '_')}": count for name, count in storm.servers.items()},
        lost=verdict.count(Kind.LOST) + verdict.count(Kind.TARGET_LOST),
        twice=verdict.count(Kind.TWICE) + verdict.count(Kind.TARGET_TWICE),
        unreadable=verdict.count(Kind.UNREADABLE),
        orphans=verdict.count(Kind.ORPHAN),
        left_open=verdict.count(Kind.OPEN),
        wrong_pointers=verdict.count(Kind.POINTER),
        files_for_gc=verdict.garbage,
        seconds_to_recover_at_most=storm.longest_recovery_seconds(),
    )
    assert verdict.faults == (), str(verdict)
    assert storm.surprises == []
    scene.age()
    scene.warm.done("command", words=["gc"])
    collected = scene.judged()
    assert (collected.faults, collected.garbage) == ((), 0)


@pytest.mark.guarantee("G4")
def test_process_that_is_stopped_past_its_lease_publishes_nothing(
    scene: Scene, figures: Figures, long_form: bool
) -> None:
    zombies = Zombies(scene=scene)
    for _ in range(20 if long_form else 1):
        zombies.of_runs()
    for _ in range(10 if long_form else 1):
        zombies.of_a_load()
    figures(zombies=zombies.made, published_by_zombies=zombies.published)
    assert zombies.published == 0
