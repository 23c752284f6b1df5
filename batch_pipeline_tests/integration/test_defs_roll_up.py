"""Old partitions become wider ones: what Dagster shows, what the inventory keeps, and crashes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from batch_pipeline.defs.discover import Look, discover, look_at_batches
from batch_pipeline.defs.names import LAUNCH_TAG, ROLL_UP_JOB
from batch_pipeline.defs.rolled_up import (
    BackfillUnderWayError,
    RolledUpFailedError,
    plan_roll_up,
    roll_up,
)
from batch_pipeline.domain.errors import UnknownBatchError
from batch_pipeline.domain.roll_up import RollUp
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.integration.defs_scene import DefsScene, open_defs_scene
from batch_pipeline_tests.integration.invariants import check_invariants
from batch_pipeline_tests.integration.seeds import everything, publish

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]

SET = "orders.batches"
SENSOR = "orders_new_files"
KEYS = [
    "000000000001-000000000003",
    "000000000004-000000000006",
    "000000000007-000000000009",
    "000000000010-000000000012",
]
WIDE = "000000000001-000000000006"


@pytest.fixture
def scene(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsScene]:
    """The stream `orders` with four batches, three of them published, all known to Dagster."""
    with open_defs_scene(database, database_url, tmp_path, monkeypatch) as opened:
        opened.tick(SENSOR)
        for status in database.batches.statuses("orders")[:3]:
            publish(database, status.batch)
        for event in opened.tick(SENSOR).asset_events:
            opened.instance.report_runless_asset_event(event)
        yield opened


def _roll_up(scene: DefsScene, **words: Any) -> list[str]:
    """Roll up two batches at a time, all that may be, and give the partitions that are left."""
    wish = RollUp(**({"keep": 0, "width": 2} | words))
    found = plan_roll_up(scene.database, scene.stream, scene.instance, wish)
    roll_up(scene.instance, scene.stream, found)
    assert found.left == len(_keys(scene))
    return _keys(scene)


def _keys(scene: DefsScene) -> list[str]:
    return list(scene.instance.get_dynamic_partitions(SET))


def _new_keys(scene: DefsScene) -> list[str]:
    """Give what a sensor of a new process would add."""
    look = Look()
    found = discover(scene.pipeline, scene.stream, scene.instance, drain=False, look=look)
    return list(found.known.new_keys)


def _unseen(scene: DefsScene) -> list[str | None]:
    known = look_at_batches(scene.pipeline, scene.stream, scene.instance)
    return [event.partition for event in known.unseen]


def test_published_neighbours_become_one_partition(scene: DefsScene) -> None:
    """Expect two narrow ones to go for a wide green one, the others to stay, and the inventory,
    and the narrow ones' history, to be as they were."""
    before = everything(scene.database)
    assert _roll_up(scene) == [*KEYS[2:], WIDE]
    assert everything(scene.database) == before
    done = scene.instance.get_materialized_partitions(scene.batches.asset_key)
    assert done == {*KEYS[:3], WIDE}
    check_invariants(scene.database)


def test_wide_partition_is_told_with_what_it_holds(scene: DefsScene) -> None:
    """Expect batches, items and bytes as metadata."""
    _roll_up(scene)
    event = scene.instance.get_latest_materialization_event(scene.batches.asset_key)
    assert event is not None
    told = event.asset_materialization
    assert told is not None
    assert told.partition == WIDE
    facts = {name: value.value for name, value in told.metadata.items()}
    assert (facts["batches"], facts["items"], facts["weight_bytes"]) == (2, 6, 60)


def test_narrow_partitions_do_not_come_back(scene: DefsScene) -> None:
    """Expect neither the same process nor a new one to add them; what is planned is added."""
    _roll_up(scene)
    add = scene.tick(SENSOR).dynamic_partitions_requests or []
    assert [key for one in add for key in one.partition_keys] == []
    assert _new_keys(scene) == []
    scene.instance.delete_dynamic_partition(SET, KEYS[3])
    assert _new_keys(scene) == [KEYS[3]]


def test_partition_set_that_was_lost_comes_back_narrow(scene: DefsScene) -> None:
    """Expect every batch to have its partition when Dagster has forgotten the wide one."""
    _roll_up(scene)
    scene.instance.delete_dynamic_partition(SET, WIDE)
    assert _new_keys(scene) == KEYS[:2]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_roll_up_that_was_interrupted_is_finished_by_the_next(scene: DefsScene, gone: int) -> None:
    """Expect the same partitions however many narrow ones the first one had taken away, and none
    to be added meanwhile; another call finds nothing more to do."""
    scene.instance.add_dynamic_partitions(SET, [WIDE])
    for key in KEYS[:gone]:
        scene.instance.delete_dynamic_partition(SET, key)
    assert _new_keys(scene) == []
    assert _roll_up(scene) == [*KEYS[2:], WIDE]
    assert _roll_up(scene) == [*KEYS[2:], WIDE]


def test_newest_batches_stay_narrow(scene: DefsScene) -> None:
    """Expect `keep` to count live batches from the newest, and `before` to go by publish time."""
    assert _roll_up(scene, keep=3) == KEYS
    [first, *_] = scene.database.batches.statuses("orders")
    assert first.finished_at is not None
    assert _roll_up(scene, keep=None, before=first.finished_at) == KEYS
    assert _roll_up(scene, keep=2) == [*KEYS[2:], WIDE]


def test_partitions_of_a_run_that_is_under_way_stay(scene: DefsScene) -> None:
    """Expect what a queued or running run has to be left alone."""
    run = dg.RunRequest(job_name=scene.batches.job, tags={"dagster/partition": KEYS[0]})
    scene.started(run)
    assert _roll_up(scene) == [KEYS[0], KEYS[3], "000000000004-000000000009"]


def test_events_of_a_wide_partition_are_left_to_the_run_that_has_it(scene: DefsScene) -> None:
    """Expect what the run publishes anew to be told by others only once it has ended without a
    word, and a batch beside it at once."""
    _roll_up(scene)
    run = scene.started(dg.RunRequest(job_name=scene.batches.job, tags={"dagster/partition": WIDE}))
    for status in scene.database.batches.statuses("orders")[1:3]:
        publish(scene.database, status.batch)
    assert _unseen(scene) == [KEYS[2]]
    scene.instance.report_run_failed(run)
    assert _unseen(scene) == [KEYS[1], KEYS[2]]


def test_wide_key_typed_by_hand_over_unpublished_batches_hides_nothing(scene: DefsScene) -> None:
    """Expect a key that is no batch's, over work that waits, to keep no partition away."""
    scene.instance.add_dynamic_partitions(SET, ["000000000007-000000000012"])
    scene.instance.delete_dynamic_partition(SET, KEYS[3])
    assert _new_keys(scene) == [KEYS[3]]


def test_run_of_a_wide_partition_has_each_of_its_batches(scene: DefsScene) -> None:
    """Expect an event for each batch and one for the whole; a key of no batches still fails."""
    _roll_up(scene)
    for status in scene.database.batches.statuses("orders")[:2]:
        publish(scene.database, status.batch)  # a generation that no event has reported
    job = scene.definitions.resolve_job_def(scene.batches.job)
    # What is published already is told without encoding it again.
    tags = {LAUNCH_TAG: "new"}
    done = job.execute_in_process(instance=scene.instance, partition_key=WIDE, tags=tags)
    events = done.get_asset_materialization_events()
    assert [event.partition for event in events] == [*KEYS[:2], WIDE]
    strange = "000000000002-000000000006"
    scene.instance.add_dynamic_partitions(SET, [strange])
    with pytest.raises(dg.Failure, match=strange) as caught:
        job.execute_in_process(instance=scene.instance, partition_key=strange, tags=tags)
    assert caught.value.metadata.keys() == {strange}


def test_failure_of_a_wide_partition_names_the_batches() -> None:
    """Expect the message to say how many failed, which, and what became of the others."""
    errors = {KEYS[1]: UnknownBatchError("orders", KEYS[1])}
    told = str(RolledUpFailedError(WIDE, errors, 2))
    assert told.startswith(f"{WIDE}: batches failed: 1 of 2, the others are published again: ")
    assert KEYS[1] in told


def test_job_tells_first_and_then_does_it(scene: DefsScene) -> None:
    """Expect a dry run by default, and nonsense to be refused before anything is changed."""
    job = scene.definitions.resolve_job_def(ROLL_UP_JOB)

    def start(**config: Any) -> dg.ExecuteInProcessResult:
        ops = {"roll_up_or_tell": {"config": {"stream": "orders", "width": 2, **config}}}
        return job.execute_in_process(instance=scene.instance, run_config={"ops": ops})

    assert start(keep=0).success
    assert _keys(scene) == KEYS
    for refused in ({}, {"keep": 1, "before": "2026-03-01"}, {"before": "soon"}):
        with pytest.raises(dg.Failure):
            start(dry_run=False, **refused)
    assert _keys(scene) == KEYS
    assert start(keep=0, dry_run=False).success
    assert _keys(scene) == [*KEYS[2:], WIDE]


def test_roll_up_waits_for_a_backfill_of_dagster(scene: DefsScene) -> None:
    """Expect a refusal that names the backfill, and nothing to be changed."""
    one = PartitionBackfill(
        backfill_id="abc",
        status=BulkActionStatus.REQUESTED,
        from_failure=False,
        tags={},
        backfill_timestamp=0.0,
        asset_selection=[scene.batches.asset_key],
    )
    scene.instance.add_backfill(one)
    with pytest.raises(BackfillUnderWayError, match="backfill abc of Dagster is under way"):
        _roll_up(scene)
    assert _keys(scene) == KEYS
