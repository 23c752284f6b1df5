"""The Dagster jobs over streams: `reconcile`, `collect_garbage` and `plan_backfill`."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.inventory import backfills
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.stream import Automation, Storage, Stream
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.factories import encoded, item_report, stream
from batch_pipeline_tests.pipeline.garbage_fixture import GarbageHarness
from batch_pipeline_tests.seeds import (
    claimed,
    execute,
    expire,
    insert_item,
    planned,
    publish,
    query,
    statuses,
)

NIGHT = datetime(2026, 3, 1, 3, 23, tzinfo=UTC)


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
    harness: DefsHarness, name: str, op: str, streams: Sequence[Stream], config: Mapping[str, Any]
) -> dg.ExecuteInProcessResult:
    """Run a maintenance job for `orders` and other streams."""
    definitions = build_definitions([*streams, harness.stream])
    return definitions.resolve_job_def(f"batch_pipeline_{name}").execute_in_process(
        instance=harness.instance,
        run_config={"ops": {op: {"config": config}}},
        raise_on_error=False,
    )


def collected(harness: DefsHarness, *streams: Stream, **config: Any) -> dg.ExecuteInProcessResult:
    """Run the job `collect_garbage`."""
    return run_job(harness, "collect_garbage", "collect_of_streams", streams, config)


def reconciled(harness: DefsHarness, *streams: Stream, **config: Any) -> dg.ExecuteInProcessResult:
    """Run the job `reconcile`."""
    return run_job(harness, "reconcile", "reconcile_streams", streams, config)


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
    unknown = failure(collected(harness, idle, streams=["order"]))
    assert "'order'" in unknown
    assert "idle, orders" in unknown


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
        insert_item(harness.database, 2)
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
    names = ("batch_pipeline_reconcile_hourly", "batch_pipeline_collect_garbage_daily")
    schedules = [repository.get_schedule_def(name) for name in names]
    for schedule in schedules:
        assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
        with dg.build_schedule_context(harness.instance, NIGHT) as context:
            [request] = schedule.evaluate_tick(context).run_requests or []
        job = repository.get_job(schedule.job_name)
        result = job.execute_in_process(instance=harness.instance, run_config=request.run_config)
        metadata = facts(result)
        assert (metadata.pop("streams"), {*metadata.values()}) == (2, {0})
    minutes = {str(schedule.cron_schedule).split()[0] for schedule in schedules}
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


def run_plan_backfill(harness: DefsHarness, **config: Any) -> dg.ExecuteInProcessResult:
    """Run the job `plan_backfill` for the backfill `2023` of `orders`."""
    op_config = {"stream": "orders", "name": "2023", **config}
    return run_job(harness, "plan_backfill", "plan_or_estimate", (), op_config)


def job_names(harness: DefsHarness) -> list[str]:
    """Return the names of all jobs of the inventory."""
    names = query(harness.database, "SELECT name FROM batch_pipeline.job ORDER BY id")
    return [name for (name,) in names]


def test_estimate_of_a_backfill_is_the_default_and_stores_nothing(harness: DefsHarness) -> None:
    """The estimate is shown on the run and, as an observation, on the asset."""
    estimate = facts(run_plan_backfill(harness, first_id=2, last_id=11, max_count=4))
    expected = {"backfill": "2023", "batches": 3, "items": 10, "weight_bytes": 100}
    assert estimate.items() >= expected.items()
    assert "batches_planned" not in estimate
    [record] = harness.instance.fetch_observations(harness.backfills.asset_key, limit=5).records
    assert record.asset_observation is not None
    assert record.asset_observation.metadata["batches"].value == 3
    assert job_names(harness) == ["orders"]
    assert harness.instance.get_dynamic_partitions("orders.backfill") == []


def test_duration_of_a_backfill_is_estimated_from_published_batches(harness: DefsHarness) -> None:
    assert "estimated_seconds" not in facts(run_plan_backfill(harness))
    publish(harness.database, harness.database.batches.statuses("orders")[0].batch)
    estimate = facts(run_plan_backfill(harness))
    assert estimate["estimated_seconds"] >= 0
    assert estimate["estimated_by"] == "attempts of orders: 1"


def test_planned_backfill_is_launched_by_the_sensor(harness: DefsHarness) -> None:
    """A second plan adds nothing, and one with another selection is rejected."""
    config = {"items": [2, 3, 11], "max_weight": "20B", "dry_run": False}
    plan = facts(run_plan_backfill(harness, **config))
    assert (plan["batches"], plan["batches_planned"], plan["partitions_added"]) == (2, 2, 2)
    keys = harness.instance.get_dynamic_partitions("orders.backfill")
    assert keys == ["2023:00000002-00000003", "2023:00000011-00000011"]
    assert len(harness.tick("orders_backfill").run_requests or []) == 1
    plan = facts(run_plan_backfill(harness, **config))
    assert (plan["batches"], plan["batches_planned"], plan["partitions_added"]) == (0, 0, 0)
    assert "its selection differs" in failure(run_plan_backfill(harness, dry_run=False))
    assert harness.states() == ["planned"] * 2
    assert job_names(harness) == ["orders", "orders.2023"]


INVALID: list[tuple[dict[str, Any], list[str]]] = [
    ({"stream": "order"}, ["'order'", "orders"]),
    ({"first_id": 1, "since": "2026-03-01"}, ["ids and times", "one of them"]),
    ({"last_id": 9, "items": [1]}, ["ids and items", "one of them"]),
    ({"max_weight": "much"}, ["max_weight", "much"]),
    ({"max_count": 0}, ["max_count", "at least 1"]),
    ({"items": [99]}, ["99"]),
    ({"name": "a b"}, ["'a b'", "letters"]),
]


def test_invalid_backfill_fails_with_the_expected_values(harness: DefsHarness) -> None:
    for config, words in INVALID:
        text = failure(run_plan_backfill(harness, dry_run=False, **config))
        assert [word for word in words if word not in text] == []
    assert job_names(harness) == ["orders"]


def test_failure_after_planning_a_backfill_says_that_batches_are_planned(
    harness: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest that the inventory does not know appears after the batches were committed."""
    files = PartFileStorage(harness.stream.storage)
    files.prepare()
    unknown = Path(
        to_path(harness.stream.storage.root), "manifests/orders-00000001-00000002.g9.json"
    )

    def write_manifest(point: str) -> None:
        if point == "backfill.after_commit":
            unknown.write_text("{}")

    monkeypatch.setattr(backfills, "failpoint", write_manifest)
    text = failure(run_plan_backfill(harness, dry_run=False, max_count=4))
    assert "Batches planned: 3; the stream's sensor adds their partitions" in text
    assert "the inventory is older than the storage" in text
    assert job_names(harness) == ["orders", "orders.2023"]
