"""Runs that fail or that a person cancels: attempts closed at once, and what is launched again."""

import dagster as dg
import pytest

from batch_pipeline.defs.instance.dagster_home import close_abandoned_runs, command_run_tags
from batch_pipeline.defs.names import CLOSED_TAG, PRIORITY_TAG, register_job
from batch_pipeline.model.batch import AttemptStatus, BatchStatus, late_key
from batch_pipeline_tests.defs.defs_fixture import DefsScene, ranges
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.seeds import LEASE, execute, publish, query, statuses

SENSOR = "orders_backfill"
LAUNCHED = ["2023:00000001-00000003", "2023:00000004-00000006"]


@pytest.fixture
def scene(scene: DefsScene) -> DefsScene:
    """A planned backfill of four batches, of which a run has the first two."""
    scene.plan()
    return scene


@pytest.fixture
def run(scene: DefsScene) -> dg.DagsterRun:
    """The run of the first two batches, under way; nothing is claimed yet."""
    [request, _] = scene.tick(SENSOR).run_requests or []
    return scene.started(request)


def _batches(scene: DefsScene) -> list[BatchStatus]:
    return scene.database.backfills.of_all("orders")


def _interrupted(scene: DefsScene, run: dg.DagsterRun) -> None:
    """Let the run have begun its first batch, and have closed its attempt on the way out."""
    one = _batches(scene)[0].batch
    with scene.database.attempts.claim(one, run_id=run.run_id, lease=LEASE) as attempt:
        scene.database.attempts.fail(attempt, "interrupted", AttemptStatus.ABANDONED)


def test_cancelled_run_leaves_nothing_to_be_launched_by_itself(
    scene: DefsScene, run: dg.DagsterRun
) -> None:
    """Expect the begun and the waiting batch of the run to be called off, the others to go on."""
    _interrupted(scene, run)
    scene.cancelled(run)
    message = scene.tick_run_ends()
    assert "Batches cancelled: 2" in message
    assert "`batch-pipeline jobs retry JOB`" in message
    assert scene.states() == ["cancelled", "cancelled", "planned", "planned"]
    assert ranges(scene.tick(SENSOR).run_requests) == [
        ("2023:00000007-00000009", "2023:00000010-00000012")
    ]
    check_invariants(scene.database)


def test_cancelling_closes_the_attempt_that_the_run_left_open(
    scene: DefsScene, run: dg.DagsterRun
) -> None:
    """Expect the attempt of a process that never answered to be cancelled, and to be fenced."""
    first = _batches(scene)[0].batch
    with scene.database.attempts.claim(first, run_id=run.run_id, lease=LEASE) as attempt:
        scene.cancelled(run)
        scene.tick_run_ends()
        assert statuses(scene.database) == ["cancelled"]
        assert scene.database.attempts.fail(attempt, "too late", AttemptStatus.FAILED)
    assert statuses(scene.database) == ["cancelled"]
    assert scene.states()[:2] == ["cancelled", "cancelled"]


def test_launching_sensor_heeds_a_cancelling_that_nobody_has_told_of(
    scene: DefsScene, run: dg.DagsterRun
) -> None:
    """Expect no launch of the run's batches whichever sensor comes first."""
    _interrupted(scene, run)
    scene.cancelled(run)
    assert LAUNCHED[0] not in dict(ranges(scene.tick(SENSOR).run_requests))
    assert scene.states()[:2] == ["cancelled", "cancelled"]
    assert "Batches cancelled: 0" in scene.tick_run_ends()


def test_batches_of_a_cancelled_run_are_taken_up_again_by_retry(
    scene: DefsScene, run: dg.DagsterRun
) -> None:
    """Expect `retry` to outlive every sensor that hears of the cancelling afterwards."""
    _interrupted(scene, run)
    scene.cancelled(run)
    cursor = scene.tick(SENSOR).cursor
    assert scene.run(run).tags[CLOSED_TAG] == "cancelled"
    assert scene.database.jobs.retry("orders.2023") == 2
    scene.tick_run_ends()
    launched = scene.tick(SENSOR, cursor)
    assert (LAUNCHED[0], LAUNCHED[1]) in ranges(launched.run_requests)
    assert scene.states()[:2] == ["interrupted", "planned"]


def test_cancelled_run_keeps_what_it_has_published(scene: DefsScene, run: dg.DagsterRun) -> None:
    """Expect a published batch to stay so, and one that another run is at to go on."""
    first, second = (status.batch for status in _batches(scene)[:2])
    publish(scene.database, first)
    with scene.database.attempts.claim(second, run_id="another", lease=LEASE):
        scene.cancelled(run)
        scene.tick_run_ends()
        assert scene.states()[:2] == ["published", "running"]
    check_invariants(scene.database)


def test_cancelled_run_calls_off_a_batch_that_it_tried_for_the_last_time(
    scene: DefsScene, run: dg.DagsterRun
) -> None:
    """Expect a batch that the interrupted attempt made dead to be cancelled, so that `run`, which
    takes dead ones, leaves it."""
    execute(scene.database, "UPDATE batch_pipeline.job SET max_attempts = 1")
    _interrupted(scene, run)
    assert scene.states()[0] == "dead"
    scene.cancelled(run)
    scene.tick_run_ends()
    assert scene.states()[0] == "cancelled"


def test_cancelled_run_of_a_person_calls_off_the_batches_of_the_stream(scene: DefsScene) -> None:
    """Expect a run without tags of ours, over one partition, to be understood as well."""
    scene.tick("orders_new_files")
    by_hand = dg.RunRequest(
        job_name=scene.batches.job, tags={"dagster/partition": "00000004-00000006"}
    )
    scene.cancelled(scene.started(by_hand))
    scene.tick_run_ends()
    assert scene.states("orders") == ["planned", "cancelled", "planned", "planned"]
    assert ranges(scene.tick("orders_new_files").run_requests) == [
        ("00000001-00000003", "00000001-00000003"),
        ("00000007-00000009", "00000010-00000012"),
    ]


def test_cancelled_run_of_selected_partitions_is_understood(scene: DefsScene) -> None:
    """Expect what a person selected in Dagster to be called off, though it is no job of ours."""
    scene.tick(SENSOR)
    selection = frozenset({scene.backfills.asset_key})
    selected = scene.instance.create_run_for_job(
        job_def=scene.definitions.resolve_implicit_global_asset_job_def(),
        asset_selection=selection,
        tags={"dagster/partition": LAUNCHED[1]},
        status=dg.DagsterRunStatus.STARTED,
    )
    scene.cancelled(selected)
    scene.tick_run_ends()
    assert scene.states() == ["planned", "cancelled", "planned", "planned"]
    assert scene.states("orders") == ["planned"] * 4


def test_cancelled_run_of_another_asset_calls_nothing_off(scene: DefsScene) -> None:
    """Expect a run that only registers to leave every batch as it is."""
    run = scene.started(dg.RunRequest(job_name=register_job(scene.stream), tags={}))
    scene.cancelled(run)
    assert "Batches cancelled: 0" in scene.tick_run_ends()
    assert scene.states() == scene.states("orders") == ["planned"] * 4


def test_cancelled_run_of_a_late_batch_cancels_that_batch_alone(scene: DefsScene) -> None:
    first, second = _late(scene, 2), _late(scene, 3)
    scene.tick("orders_new_files")
    tags = {"dagster/partition": late_key(first)}
    started = scene.started(dg.RunRequest(job_name=scene.batches.job, tags=tags))
    scene.cancelled(started)
    scene.tick_run_ends()
    assert scene.states("orders.late") == ["cancelled", "planned"]
    requests = scene.tick("orders_new_files").run_requests or []
    assert ranges(requests)[-1] == (late_key(second), late_key(second))
    assert int(requests[-1].tags[PRIORITY_TAG]) > 0


def test_failed_run_closes_what_it_left_open_and_is_launched_again(
    scene: DefsScene, run: dg.DagsterRun
) -> None:
    """Expect the attempt to be abandoned at once, and both batches to be launched by themselves."""
    first = _batches(scene)[0].batch
    with scene.database.attempts.claim(first, run_id=run.run_id, lease=LEASE):
        scene.instance.report_run_failed(run, "killed")
        assert "failed runs closed: 1" in scene.tick_run_ends()
        assert statuses(scene.database) == ["abandoned"]
    assert scene.states()[:2] == ["interrupted", "planned"]
    assert (LAUNCHED[0], LAUNCHED[1]) in ranges(scene.tick(SENSOR).run_requests)


def test_run_whose_cancelling_a_crash_cut_short_is_cancelled(
    scene: DefsScene, run: dg.DagsterRun
) -> None:
    """Expect what `run` finds on the way out to be cancelled, and the rest to have failed."""
    tags = command_run_tags(scene.pipeline)
    other = scene.started(dg.RunRequest(job_name=scene.backfills.job, tags=tags))
    scene.instance.add_run_tags(run.run_id, tags)
    scene.instance.report_run_canceling(run)
    assert close_abandoned_runs(scene.pipeline, scene.instance) == 2
    assert scene.run(run).status is dg.DagsterRunStatus.CANCELED
    assert scene.run(other).status is dg.DagsterRunStatus.FAILURE


def _late(scene: DefsScene, item_id: int) -> int:
    """Plan a batch of late arrivals of one item, and give its number."""
    job = (
        "INSERT INTO batch_pipeline.job (name, meta_table, kind, stream, parent_id) "
        "SELECT 'orders.late', meta_table, 'late', 'orders', id FROM batch_pipeline.job "
        "WHERE name = 'orders' ON CONFLICT DO NOTHING"
    )
    batch = (
        "INSERT INTO batch_pipeline.batch "
        "(job_id, first_id, last_id, weight, item_count, config, item_ids) "
        "SELECT id, :item, :item, 10, 1, '{}', ARRAY[:item] "
        "FROM batch_pipeline.job WHERE name = 'orders.late'"
    )
    state = (
        "INSERT INTO batch_pipeline.batch_state (batch_id, job_id, state) "
        "SELECT max(id), max(job_id), 'planned' FROM batch_pipeline.batch"
    )
    execute(scene.database, job)
    execute(scene.database, batch, item=item_id)
    execute(scene.database, state)
    [(number,)] = query(scene.database, "SELECT max(id) FROM batch_pipeline.batch")
    return int(number)
