"""Failed and cancelled runs: open attempts are closed, batches are relaunched or cancelled."""

import time
from contextlib import nullcontext

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from batch_pipeline.defs.instance.dagster_home import close_abandoned_runs, command_run_tags
from batch_pipeline.defs.names import CLOSED_TAG, DRAIN_TAG, PRIORITY_TAG, register_job
from batch_pipeline.defs.runs import close_silent_runs
from batch_pipeline.model.batch import AttemptStatus, BatchStatus
from batch_pipeline_tests.defs.defs_fixture import KEYS, DefsHarness, ranges, start_run
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.seeds import LEASE, execute, publish, statuses

SENSOR = "orders_backfill"
BACKFILL_KEYS = [f"2023:{key}" for key in KEYS]
LAUNCHED = (BACKFILL_KEYS[0], BACKFILL_KEYS[1])


@pytest.fixture
def harness(harness: DefsHarness) -> DefsHarness:
    """A planned backfill of four batches."""
    harness.plan()
    return harness


@pytest.fixture
def run(harness: DefsHarness) -> dg.DagsterRun:
    """A started run of the first two batches, before it claims any."""
    [request, _] = harness.tick(SENSOR).run_requests or []
    return harness.start_run(request)


def _batches(harness: DefsHarness) -> list[BatchStatus]:
    return harness.database.backfills.of_all("orders")


def _interrupt_first_batch(harness: DefsHarness, run: dg.DagsterRun) -> None:
    """Close the run's attempt on its first batch as interrupted."""
    first = _batches(harness)[0].batch
    with harness.database.attempts.claim(first, run_id=run.run_id, lease=LEASE) as attempt:
        harness.database.attempts.fail(attempt, "interrupted", AttemptStatus.ABANDONED)


@pytest.mark.parametrize(("max_attempts", "before"), [(3, "interrupted"), (1, "dead")])
def test_cancelled_run_cancels_its_unfinished_batches(
    harness: DefsHarness, run: dg.DagsterRun, max_attempts: int, before: str
) -> None:
    """Batches of other runs are launched."""
    execute(harness.database, "UPDATE batch_pipeline.job SET max_attempts = :n", n=max_attempts)
    _interrupt_first_batch(harness, run)
    assert harness.states()[0] == before
    harness.cancel_run(run)
    message = harness.tick_run_ends()
    assert "Batches cancelled: 2" in message
    assert "`batch-pipeline jobs retry JOB`" in message
    assert harness.states() == ["cancelled", "cancelled", "planned", "planned"]
    assert ranges(harness.tick(SENSOR).run_requests) == [(BACKFILL_KEYS[2], BACKFILL_KEYS[3])]
    check_invariants(harness.database)


@pytest.mark.parametrize(("status", "cancelled"), [("FAILING", 0), ("CANCELED", 2)])
def test_run_that_a_failed_dagster_backfill_cancelled_cancels_nothing(
    harness: DefsHarness, run: dg.DagsterRun, status: str, cancelled: int
) -> None:
    """A person who cancels the Dagster backfill cancels its batches."""
    backfill = PartitionBackfill(
        backfill_id="of-a-person",
        status=BulkActionStatus(status),
        from_failure=False,
        tags={},
        backfill_timestamp=1_700_000_000.0,
    )
    harness.instance.add_backfill(backfill)
    harness.instance.add_run_tags(run.run_id, {"dagster/backfill": backfill.backfill_id})
    first = _batches(harness)[0].batch
    with harness.database.attempts.claim(first, run_id=run.run_id, lease=LEASE):
        harness.cancel_run(run)
        assert f"Batches cancelled: {cancelled}" in harness.tick_run_ends()
    assert harness.states().count("cancelled") == cancelled
    launched = LAUNCHED in ranges(harness.tick(SENSOR).run_requests)
    assert launched is (cancelled == 0)


def test_cancelled_run_closes_its_open_attempt(harness: DefsHarness, run: dg.DagsterRun) -> None:
    """A later report of the worker does not change its status."""
    first = _batches(harness)[0].batch
    with harness.database.attempts.claim(first, run_id=run.run_id, lease=LEASE) as attempt:
        harness.cancel_run(run)
        harness.tick_run_ends()
        assert statuses(harness.database) == ["cancelled"]
        assert harness.database.attempts.fail(attempt, "too late", AttemptStatus.FAILED)
    assert statuses(harness.database) == ["cancelled"]
    assert harness.states()[:2] == ["cancelled", "cancelled"]


def test_retry_relaunches_batches_that_the_backfill_sensor_cancelled(
    harness: DefsHarness, run: dg.DagsterRun
) -> None:
    """It may be evaluated before the sensor of run ends. Later ticks do not cancel them again."""
    _interrupt_first_batch(harness, run)
    harness.cancel_run(run)
    cancelling = harness.tick(SENSOR)
    assert LAUNCHED[0] not in dict(ranges(cancelling.run_requests))
    assert harness.states()[:2] == ["cancelled", "cancelled"]
    assert harness.reload_run(run).tags[CLOSED_TAG] == run.run_id
    assert harness.database.jobs.retry("orders.2023") == 2
    assert "Batches cancelled: 0" in harness.tick_run_ends()
    assert LAUNCHED in ranges(harness.tick(SENSOR, cancelling.cursor).run_requests)
    assert harness.states()[:2] == ["interrupted", "planned"]


def test_cancelled_run_keeps_published_batches(harness: DefsHarness, run: dg.DagsterRun) -> None:
    """Batches that another run has claimed continue, too."""
    first, second = (status.batch for status in _batches(harness)[:2])
    publish(harness.database, first)
    with harness.database.attempts.claim(second, run_id="another", lease=LEASE):
        harness.cancel_run(run)
        harness.tick_run_ends()
        assert harness.states()[:2] == ["published", "running"]
    check_invariants(harness.database)


def test_cancelled_manual_run_cancels_its_batch(harness: DefsHarness) -> None:
    """The run has no tags of ours. A re-execution of it, with its tags, does the same."""
    harness.tick("orders_new_files")
    tags = {"dagster/partition": KEYS[1]}
    for _ in range(2):
        by_hand = harness.start_run(dg.RunRequest(job_name=harness.batches.job, tags=tags))
        harness.cancel_run(by_hand)
        harness.tick_run_ends()
        assert harness.states("orders") == ["planned", "cancelled", "planned", "planned"]
        assert harness.database.jobs.retry("orders") == 1
        tags = dict(harness.reload_run(by_hand).tags)
    harness.tick_run_ends()
    assert ranges(harness.tick("orders_new_files").run_requests) == [
        (KEYS[0], KEYS[1]),
        (KEYS[2], KEYS[3]),
    ]


def test_cancelled_run_of_selected_assets_cancels_its_batch(harness: DefsHarness) -> None:
    """Its job is Dagster's, not one of ours. A run of another asset cancels nothing."""
    harness.tick(SENSOR)
    job = harness.definitions.resolve_implicit_global_asset_job_def()
    selection = frozenset({harness.backfills.asset_key})
    tags = {"dagster/partition": LAUNCHED[1]}
    selected = start_run(harness.instance, job, tags, asset_selection=selection)
    register = dg.RunRequest(job_name=register_job(harness.stream), tags=tags)
    for run in (selected, harness.start_run(register)):
        harness.cancel_run(run)
    assert "Batches cancelled: 1" in harness.tick_run_ends()
    assert harness.states() == ["planned", "cancelled", "planned", "planned"]
    assert harness.states("orders") == ["planned"] * 4


def test_cancelled_run_of_a_late_batch_cancels_that_batch_alone(harness: DefsHarness) -> None:
    first, second = harness.plan_late(2, 3)
    tags = {"dagster/partition": first}
    started = harness.start_run(dg.RunRequest(job_name=harness.batches.job, tags=tags))
    harness.cancel_run(started)
    harness.tick_run_ends()
    assert harness.states("orders.late") == ["cancelled", "planned"]
    requests = harness.tick("orders_new_files").run_requests or []
    assert ranges(requests)[-1] == (second, second)
    assert int(requests[-1].tags[PRIORITY_TAG]) > 0


def test_failed_run_closes_its_attempt_and_is_launched_again(
    harness: DefsHarness, run: dg.DagsterRun
) -> None:
    first = _batches(harness)[0].batch
    with harness.database.attempts.claim(first, run_id=run.run_id, lease=LEASE):
        harness.instance.report_run_failed(run, "killed")
        assert "failed runs closed: 1" in harness.tick_run_ends()
        assert statuses(harness.database) == ["abandoned"]
    assert harness.states()[:2] == ["interrupted", "planned"]
    assert LAUNCHED in ranges(harness.tick(SENSOR).run_requests)


def test_abandoned_run_is_closed_as_cancelled_if_it_was_canceling(
    harness: DefsHarness, run: dg.DagsterRun
) -> None:
    """Other abandoned runs are closed as failed."""
    tags = command_run_tags(harness.pipeline)
    other = harness.start_run(dg.RunRequest(job_name=harness.backfills.job, tags=tags))
    harness.instance.add_run_tags(run.run_id, tags)
    harness.instance.report_run_canceling(run)
    assert close_abandoned_runs(harness.pipeline, harness.instance) == 2
    assert harness.reload_run(run).status is dg.DagsterRunStatus.CANCELED
    assert harness.reload_run(other).status is dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize("evidence", ["none", "an attempt", "an event"])
def test_run_of_a_command_elsewhere_is_closed_only_without_a_sign_of_life(
    harness: DefsHarness, run: dg.DagsterRun, evidence: str
) -> None:
    """Nothing else ends a run whose process was killed in a container that is gone."""
    harness.instance.add_run_tags(run.run_id, {DRAIN_TAG: "another home"})
    by_daemon = harness.start_run(dg.RunRequest(job_name=harness.backfills.job))
    now = time.time() + 901
    if evidence == "an event":
        entry = dg.EventLogEntry(  # type: ignore[no-untyped-call]
            error_info=None, level="info", user_message="", run_id=run.run_id, timestamp=now - 890
        )
        harness.instance.handle_new_event(entry)
    first = _batches(harness)[0].batch
    claims = harness.database.attempts.claim(first, run_id=run.run_id, lease=LEASE)
    with claims if evidence == "an attempt" else nullcontext():
        close_silent_runs(harness.pipeline, harness.instance, now)
        closed = harness.reload_run(run).status is dg.DagsterRunStatus.FAILURE
    assert closed is (evidence == "none")
    assert harness.reload_run(by_daemon).status is dg.DagsterRunStatus.STARTED
