"""Failed and cancelled runs: open attempts are closed, batches are relaunched or cancelled."""

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
    """A planned backfill of four batches."""
    scene.plan()
    return scene


@pytest.fixture
def run(scene: DefsScene) -> dg.DagsterRun:
    """A started run of the first two batches, before it claims any."""
    [request, _] = scene.tick(SENSOR).run_requests or []
    return scene.start_run(request)


def _batches(scene: DefsScene) -> list[BatchStatus]:
    return scene.database.backfills.of_all("orders")


def _interrupt_first_batch(scene: DefsScene, run: dg.DagsterRun) -> None:
    """Close the run's attempt on its first batch as interrupted."""
    first = _batches(scene)[0].batch
    with scene.database.attempts.claim(first, run_id=run.run_id, lease=LEASE) as attempt:
        scene.database.attempts.fail(attempt, "interrupted", AttemptStatus.ABANDONED)


def test_cancelled_run_cancels_its_unfinished_batches(scene: DefsScene, run: dg.DagsterRun) -> None:
    """Batches of other runs are launched."""
    _interrupt_first_batch(scene, run)
    scene.cancel_run(run)
    message = scene.tick_run_ends()
    assert "Batches cancelled: 2" in message
    assert "`batch-pipeline jobs retry JOB`" in message
    assert scene.states() == ["cancelled", "cancelled", "planned", "planned"]
    assert ranges(scene.tick(SENSOR).run_requests) == [
        ("2023:00000007-00000009", "2023:00000010-00000012")
    ]
    check_invariants(scene.database)


def test_cancelled_run_closes_its_open_attempt(scene: DefsScene, run: dg.DagsterRun) -> None:
    """A later report of the worker does not change its status."""
    first = _batches(scene)[0].batch
    with scene.database.attempts.claim(first, run_id=run.run_id, lease=LEASE) as attempt:
        scene.cancel_run(run)
        scene.tick_run_ends()
        assert statuses(scene.database) == ["cancelled"]
        assert scene.database.attempts.fail(attempt, "too late", AttemptStatus.FAILED)
    assert statuses(scene.database) == ["cancelled"]
    assert scene.states()[:2] == ["cancelled", "cancelled"]


def test_backfill_sensor_cancels_batches_of_a_cancelled_run(
    scene: DefsScene, run: dg.DagsterRun
) -> None:
    """It may be evaluated before the sensor of run ends."""
    _interrupt_first_batch(scene, run)
    scene.cancel_run(run)
    assert LAUNCHED[0] not in dict(ranges(scene.tick(SENSOR).run_requests))
    assert scene.states()[:2] == ["cancelled", "cancelled"]
    assert "Batches cancelled: 0" in scene.tick_run_ends()


def test_retry_relaunches_batches_of_a_cancelled_run(scene: DefsScene, run: dg.DagsterRun) -> None:
    """Later ticks of the sensors do not cancel them again."""
    _interrupt_first_batch(scene, run)
    scene.cancel_run(run)
    cursor = scene.tick(SENSOR).cursor
    assert scene.reload_run(run).tags[CLOSED_TAG] == "cancelled"
    assert scene.database.jobs.retry("orders.2023") == 2
    scene.tick_run_ends()
    launched = scene.tick(SENSOR, cursor)
    assert (LAUNCHED[0], LAUNCHED[1]) in ranges(launched.run_requests)
    assert scene.states()[:2] == ["interrupted", "planned"]


def test_cancelled_run_keeps_published_batches(scene: DefsScene, run: dg.DagsterRun) -> None:
    """Batches that another run has claimed continue, too."""
    first, second = (status.batch for status in _batches(scene)[:2])
    publish(scene.database, first)
    with scene.database.attempts.claim(second, run_id="another", lease=LEASE):
        scene.cancel_run(run)
        scene.tick_run_ends()
        assert scene.states()[:2] == ["published", "running"]
    check_invariants(scene.database)


def test_cancelled_run_cancels_a_batch_that_became_dead(
    scene: DefsScene, run: dg.DagsterRun
) -> None:
    """Otherwise, `batch-pipeline run` would retry the dead batch."""
    execute(scene.database, "UPDATE batch_pipeline.job SET max_attempts = 1")
    _interrupt_first_batch(scene, run)
    assert scene.states()[0] == "dead"
    scene.cancel_run(run)
    scene.tick_run_ends()
    assert scene.states()[0] == "cancelled"


def test_cancelled_manual_run_cancels_its_batch(scene: DefsScene) -> None:
    """The run has no tags of ours."""
    scene.tick("orders_new_files")
    by_hand = dg.RunRequest(
        job_name=scene.batches.job, tags={"dagster/partition": "00000004-00000006"}
    )
    scene.cancel_run(scene.start_run(by_hand))
    scene.tick_run_ends()
    assert scene.states("orders") == ["planned", "cancelled", "planned", "planned"]
    assert ranges(scene.tick("orders_new_files").run_requests) == [
        ("00000001-00000003", "00000001-00000003"),
        ("00000007-00000009", "00000010-00000012"),
    ]


def test_cancelled_run_of_selected_assets_cancels_its_batch(scene: DefsScene) -> None:
    """Its job is Dagster's, not one of ours."""
    scene.tick(SENSOR)
    selection = frozenset({scene.backfills.asset_key})
    selected = scene.instance.create_run_for_job(
        job_def=scene.definitions.resolve_implicit_global_asset_job_def(),
        asset_selection=selection,
        tags={"dagster/partition": LAUNCHED[1]},
        status=dg.DagsterRunStatus.STARTED,
    )
    scene.cancel_run(selected)
    scene.tick_run_ends()
    assert scene.states() == ["planned", "cancelled", "planned", "planned"]
    assert scene.states("orders") == ["planned"] * 4


def test_cancelled_run_of_another_asset_cancels_nothing(scene: DefsScene) -> None:
    run = scene.start_run(dg.RunRequest(job_name=register_job(scene.stream), tags={}))
    scene.cancel_run(run)
    assert "Batches cancelled: 0" in scene.tick_run_ends()
    assert scene.states() == scene.states("orders") == ["planned"] * 4


def test_cancelled_run_of_a_late_batch_cancels_that_batch_alone(scene: DefsScene) -> None:
    first, second = _late(scene, 2), _late(scene, 3)
    scene.tick("orders_new_files")
    tags = {"dagster/partition": late_key(first)}
    started = scene.start_run(dg.RunRequest(job_name=scene.batches.job, tags=tags))
    scene.cancel_run(started)
    scene.tick_run_ends()
    assert scene.states("orders.late") == ["cancelled", "planned"]
    requests = scene.tick("orders_new_files").run_requests or []
    assert ranges(requests)[-1] == (late_key(second), late_key(second))
    assert int(requests[-1].tags[PRIORITY_TAG]) > 0


def test_failed_run_closes_its_attempt_and_is_launched_again(
    scene: DefsScene, run: dg.DagsterRun
) -> None:
    first = _batches(scene)[0].batch
    with scene.database.attempts.claim(first, run_id=run.run_id, lease=LEASE):
        scene.instance.report_run_failed(run, "killed")
        assert "failed runs closed: 1" in scene.tick_run_ends()
        assert statuses(scene.database) == ["abandoned"]
    assert scene.states()[:2] == ["interrupted", "planned"]
    assert (LAUNCHED[0], LAUNCHED[1]) in ranges(scene.tick(SENSOR).run_requests)


def test_abandoned_run_is_closed_as_cancelled_if_it_was_canceling(
    scene: DefsScene, run: dg.DagsterRun
) -> None:
    """Other abandoned runs are closed as failed."""
    tags = command_run_tags(scene.pipeline)
    other = scene.start_run(dg.RunRequest(job_name=scene.backfills.job, tags=tags))
    scene.instance.add_run_tags(run.run_id, tags)
    scene.instance.report_run_canceling(run)
    assert close_abandoned_runs(scene.pipeline, scene.instance) == 2
    assert scene.reload_run(run).status is dg.DagsterRunStatus.CANCELED
    assert scene.reload_run(other).status is dg.DagsterRunStatus.FAILURE


def _late(scene: DefsScene, item_id: int) -> int:
    """Plan a late batch of one item and return its id."""
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
    [(batch_id,)] = query(scene.database, "SELECT max(id) FROM batch_pipeline.batch")
    return int(batch_id)
