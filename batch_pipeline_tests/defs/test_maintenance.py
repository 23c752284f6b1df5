"""The jobs `reconcile` and `collect_garbage` and their schedules; one run handles all streams."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.stream import Automation, Storage, Stream
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.factories import encoded, item_report, stream
from batch_pipeline_tests.pipeline.garbage_fixture import GarbageHarness
from batch_pipeline_tests.seeds import claimed, execute, expire, planned, query, statuses

NIGHT = datetime(2026, 3, 1, 3, 23, tzinfo=UTC)
LATE = (
    "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
    "VALUES ('orders', 2, 'file:///landing/late.csv', 10, now())"
)


def garbage(harness: DefsHarness) -> GarbageHarness:
    """Create eight old files of two failed attempts in the storage of the stream."""
    batches = [status.batch for status in harness.database.batches.statuses("orders")]
    storage = GarbageHarness(
        database=harness.database,
        root=Path(to_path(harness.stream.storage.root)),
        batches=batches,
        stream=harness.stream,
    )
    storage.storage.prepare()
    for batch in batches[:2]:
        storage.failed(batch)
    storage.age()
    return storage


def broken(tmp_path: Path) -> Stream:
    """Return a stream whose storage root is a file."""
    (tmp_path / "file").write_text("")
    return stream(name="broken", storage=Storage(root=to_uri(tmp_path / "file")))


def run_job(
    harness: DefsHarness, name: str, op: str, *streams: Stream, **config: Any
) -> dg.ExecuteInProcessResult:
    """Run a maintenance job for `orders` and other streams."""
    definitions = build_definitions([*streams, harness.stream])
    job = definitions.resolve_job_def(name)
    return job.execute_in_process(
        instance=harness.instance,
        run_config={"ops": {op: {"config": config}}},
        raise_on_error=False,
    )


def collected(harness: DefsHarness, *streams: Stream, **config: Any) -> dg.ExecuteInProcessResult:
    """Run the job `collect_garbage`."""
    return run_job(
        harness, "batch_pipeline_collect_garbage", "collect_of_streams", *streams, **config
    )


def reconciled(harness: DefsHarness, *streams: Stream, **config: Any) -> dg.ExecuteInProcessResult:
    """Run the job `reconcile`."""
    return run_job(harness, "batch_pipeline_reconcile", "reconcile_streams", *streams, **config)


def facts(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Return the metadata of a successful or failed run."""
    for event in result.all_events:
        if event.is_successful_output:
            metadata = event.step_output_data.metadata
            return {name: value.value for name, value in metadata.items()}
        if event.is_step_failure:
            failure = event.step_failure_data.user_failure_data
            assert failure is not None, event.step_failure_data.error
            return {name: value.value for name, value in failure.metadata.items()}
    raise AssertionError("the run ended without output or failure")


def test_dry_run_reports_the_same_garbage_and_deletes_nothing(harness: DefsHarness) -> None:
    storage = garbage(harness)
    dry_run = facts(collected(harness, dry_run=True))
    assert dry_run["garbage_files"] == dry_run["garbage_unpublished"] == 8
    assert (dry_run["garbage_bytes"], dry_run["removed_files"]) == (80, 0)
    assert len(storage.there()) == 8
    assert facts(collected(harness)) == dry_run | {"removed_files": 8, "removed_bytes": 80}
    assert storage.there() == []


def failure(result: dg.ExecuteInProcessResult) -> str:
    """Return the message of a failed run."""
    [error] = [one.step_failure_data.error for one in result.all_events if one.is_step_failure]
    assert error is not None
    return error.message


def test_failing_stream_does_not_stop_the_collection_of_others(
    harness: DefsHarness, tmp_path: Path
) -> None:
    """If all fail, it is not claimed that nothing was done: each may have changed something."""
    storage = garbage(harness)
    result = collected(harness, broken(tmp_path))
    metadata = facts(result)
    assert not result.success
    assert (metadata["streams"], metadata["removed_files"], storage.there()) == (1, 8, [])
    assert "not a directory" in metadata["failed: broken"]
    assert "cannot be collected" in metadata["failed: broken"]
    assert "Streams failed: 1 of 2, the others are done: broken: " in failure(result)
    alone = collected(harness, broken(tmp_path), streams=["broken"])
    assert "Streams failed: 1 of 1: broken: " in failure(alone)


def test_maintenance_is_limited_to_the_given_streams(harness: DefsHarness, tmp_path: Path) -> None:
    """An unknown stream is rejected."""
    storage = garbage(harness)
    idle = stream(name="idle", storage=Storage(root=to_uri(tmp_path / "idle")))
    assert facts(collected(harness, idle, streams=["idle"]))["garbage_files"] == 0
    assert facts(reconciled(harness, broken(tmp_path), streams=["orders"]))["streams"] == 1
    assert len(storage.there()) == 8
    with pytest.raises(dg.Failure, match=r"'order'.*idle, orders"):
        build_definitions([idle, harness.stream]).resolve_job_def(
            "batch_pipeline_collect_garbage"
        ).execute_in_process(
            instance=harness.instance,
            run_config={"ops": {"collect_of_streams": {"config": {"streams": ["order"]}}}},
        )


@pytest.mark.guarantee("G8")
def test_reconcile_closes_attempts_writes_manifests_and_plans_late_items(
    harness: DefsHarness,
) -> None:
    execute(harness.database, "DELETE FROM batch_pipeline.item WHERE id = 2")
    first, second, *_ = harness.database.batches.statuses("orders")
    with claimed(harness.database, first.batch) as attempt:
        reports = (item_report(1), item_report(3))
        harness.database.attempts.publish(attempt, encoded(items=reports), stream())
    execute(
        harness.database, """UPDATE batch_pipeline.attempt SET seen = seen || '{"weight": 20}'"""
    )
    with claimed(harness.database, second.batch) as attempt:
        expire(harness.database, attempt)
        execute(harness.database, LATE)
        metadata = facts(reconciled(harness))
    assert (metadata["attempts_closed"], metadata["pointers_written"]) == (1, 1)
    assert (metadata["batches_audited"], metadata["late"], metadata["refused"]) == (1, 1, 0)
    assert statuses(harness.database) == ["succeeded", "abandoned"]
    assert harness.states("orders.late") == ["planned"]
    second_run = facts(reconciled(harness, days=0))
    assert second_run == {"streams": 1, "attempts_closed": 0, "pointers_written": 0}


def test_maintenance_schedules_request_one_run_for_all_streams(harness: DefsHarness) -> None:
    """They run at different minutes. `clicks` has no batches yet."""
    other = stream(name="clicks")
    repository = build_definitions(
        [harness.stream, other], automation=Automation.RUNNING
    ).get_repository_def()
    names = {"batch_pipeline_reconcile_hourly", "batch_pipeline_collect_garbage_daily"}
    schedules = {
        schedule.name: schedule for schedule in repository.schedule_defs if schedule.name in names
    }
    assert schedules.keys() == names
    for schedule in schedules.values():
        assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
        with dg.build_schedule_context(harness.instance, NIGHT) as context:
            [request] = schedule.evaluate_tick(context).run_requests or []
        job = repository.get_job(schedule.job_name)
        result = job.execute_in_process(instance=harness.instance, run_config=request.run_config)
        metadata = facts(result)
        assert (metadata.pop("streams"), {*metadata.values()}) == (2, {0})
    minutes = {str(schedule.cron_schedule).split()[0] for schedule in schedules.values()}
    assert len(minutes) == 2


def test_files_of_streams_with_a_common_root_are_counted_once(harness: DefsHarness) -> None:
    """Temporary probe files belong to no stream."""
    storage = garbage(harness)
    storage.put(f".probe-{'0' * 32}", b"")
    storage.age()
    clicks = stream(name="clicks", storage=harness.stream.storage)
    planned(harness.database, name="clicks")
    dry_run = facts(collected(harness, clicks, dry_run=True))
    assert (dry_run["garbage_files"], dry_run["garbage_temporary"]) == (9, 1)
    assert facts(collected(harness, clicks))["removed_files"] == 9
    assert query(harness.database, "SELECT count(*) FROM batch_pipeline.attempt") == [(2,)]
