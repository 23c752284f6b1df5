"""Synchronizing partitions and events with Dagster; lost ticks and restarts lose nothing."""

from pathlib import Path

import dagster as dg
import pytest

from batch_pipeline.defs.metadata import generation_of
from batch_pipeline.defs.names import DATA_VERSION_TAG, LAUNCH_TAG
from batch_pipeline.defs.partition_sync import PartitionSync, SyncPlan
from batch_pipeline.defs.partitions import PartitionedAsset
from batch_pipeline.model.location import to_path
from batch_pipeline_tests.defs.defs_fixture import KEYS, DefsHarness, ranges
from batch_pipeline_tests.factories import found_file
from batch_pipeline_tests.inventory.meta_tables.user_tables import record_statements
from batch_pipeline_tests.seeds import claimed, execute, publish

SENSOR = "orders_new_files"


def _requested_keys(result: dg.SensorResult) -> list[str]:
    return [key for add in result.dynamic_partitions_requests or () for key in add.partition_keys]


def test_partitions_of_a_lost_tick_are_requested_again(harness: DefsHarness) -> None:
    first = harness.tick(SENSOR)
    for key in KEYS:  # as if the daemon had died before it added them
        harness.instance.delete_dynamic_partition("orders.batches", key)
    second = harness.tick(SENSOR)
    assert _requested_keys(first) == _requested_keys(second) == KEYS
    assert ranges(first.run_requests) == ranges(second.run_requests)
    assert _requested_keys(harness.tick(SENSOR)) == []


def test_deleted_partition_is_added_again(harness: DefsHarness) -> None:
    """Another process detects it immediately, the same process at its next full comparison."""
    sync = PartitionSync(harness.batches, full_every=3)
    for _ in range(2):
        harness.instance.add_dynamic_partitions("orders.batches", _new_keys(harness, sync))
    harness.instance.delete_dynamic_partition("orders.batches", KEYS[1])
    assert _new_keys(harness, PartitionSync(harness.batches)) == [KEYS[1]]
    assert [_new_keys(harness, sync) for _ in range(2)] == [[], [KEYS[1]]]


def test_partitions_of_a_wide_partition_are_added_again(harness: DefsHarness) -> None:
    """The removed command `roll-up` had replaced them by it."""
    wide = "00000001-00000006"
    harness.instance.add_dynamic_partitions("orders.batches", [*KEYS[2:], wide])
    for status in harness.database.batches.statuses("orders")[:3]:
        publish(harness.database, status.batch)
    for key in (*KEYS[:3], wide):
        event = dg.AssetMaterialization(harness.batches.asset_key, partition=key)
        harness.instance.report_runless_asset_event(event)
    result = harness.tick(SENSOR)
    assert harness.instance.get_dynamic_partitions("orders.batches")[2:] == [wide, *KEYS[:2]]
    assert not any(isinstance(event, dg.AssetMaterialization) for event in result.asset_events)
    assert ranges(result.run_requests) == [(KEYS[3], KEYS[3])]


def _new_keys(harness: DefsHarness, sync: PartitionSync) -> list[str]:
    result = sync.register_and_plan(harness.pipeline, harness.instance)
    return list(result.sync.new_keys)


@pytest.mark.parametrize("name", ["batches", "backfill"])
def test_lost_event_of_a_later_generation_is_repeated_until_it_is_stored(
    harness: DefsHarness, name: str
) -> None:
    """A process that has reported the first generation and a new process both repeat it."""
    harness.plan()
    asset = {"batches": harness.batches, "backfill": harness.backfills}[name]
    sync = PartitionSync(asset)
    keys = _diff(harness, sync).new_keys
    harness.instance.add_dynamic_partitions(asset.set_name, list(keys))
    batch = asset.find(harness.database, keys[0])
    publish(harness.database, batch)
    _report_by_run(harness, asset, keys[0])
    assert [_diff(harness, each).unseen for each in (sync, PartitionSync(asset))] == [[], []]
    publish(harness.database, batch)
    lost = [_diff(harness, each).unseen for each in (sync, sync, PartitionSync(asset))]
    assert [[_generation(event) for event in events] for events in lost] == [[(keys[0], 2)]] * 3
    harness.instance.report_runless_asset_event(lost[0][0])
    assert [_diff(harness, each).unseen for each in (sync, PartitionSync(asset))] == [[], []]


def test_generation_reported_by_an_earlier_release_is_not_repeated(harness: DefsHarness) -> None:
    """Without a data version, the metadata `generation` is used.

    Without both, the event counts for the first generation, as manually reported events do.
    """
    keys = _new_keys(harness, PartitionSync(harness.batches))
    first, second = (harness.batches.find(harness.database, key) for key in keys[:2])
    for batch in (first, first, second):
        publish(harness.database, batch)
    for key, metadata in ((keys[0], {"generation": 2}), (keys[1], {})):
        event = dg.AssetMaterialization(harness.batches.asset_key, partition=key, metadata=metadata)
        harness.instance.report_runless_asset_event(event)
    assert _diff(harness, PartitionSync(harness.batches)).unseen == []
    publish(harness.database, second)
    [event] = _diff(harness, PartitionSync(harness.batches)).unseen
    assert _generation(event) == (keys[1], 2)


def test_lost_event_is_found_without_reading_all_manifests(
    harness: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process reads one manifest although all batches have several generations.

    With 100,000 batches, one query per batch would take minutes.
    """
    for name in ("_MAX_KEYS_PER_LOOKUP", "_MAX_KEYS_ONE_BY_ONE"):
        monkeypatch.setattr(f"batch_pipeline.defs.partition_sync.{name}", 5)
    _land(harness, up_to=20)
    keys = _new_keys(harness, PartitionSync(harness.batches))
    execute(
        harness.database, "UPDATE batch_pipeline.batch_state SET state='published', generation=2"
    )
    for key in keys:
        event = dg.AssetMaterialization(
            harness.batches.asset_key, partition=key, tags={DATA_VERSION_TAG: "2"}
        )
        harness.instance.report_runless_asset_event(event)
    publish(harness.database, harness.batches.find(harness.database, keys[10]))
    sync = PartitionSync(harness.batches)
    with record_statements(harness.pipeline.database.engine) as statements:
        plan = sync.diff(harness.pipeline, harness.instance)
    assert [_generation(event) for event in plan.unseen] == [(keys[10], 3)]
    newest = "ORDER BY batch_pipeline.attempt.generation DESC"
    assert sum(newest in text for text, _ in statements) == 1


def test_result_of_a_library_worker_is_not_reported(harness: DefsHarness) -> None:
    """The previous manifest is not reported again either."""
    [key, *_] = _new_keys(harness, PartitionSync(harness.batches))
    batch = harness.batches.find(harness.database, key)
    publish(harness.database, batch)
    [event] = _diff(harness, PartitionSync(harness.batches)).unseen
    harness.instance.report_runless_asset_event(event)
    with claimed(harness.database, batch) as attempt:
        harness.database.attempts.succeed(attempt, result="done", logging=None, seen=None)
    assert _diff(harness, PartitionSync(harness.batches)).unseen == []


def test_comparing_with_dagster_writes_no_manifest_file(harness: DefsHarness) -> None:
    """So it works even if the name of one is taken."""
    [key, *_] = _new_keys(harness, PartitionSync(harness.batches))
    batch = harness.batches.find(harness.database, key)
    publish(harness.database, batch)
    [event] = PartitionSync(harness.batches).diff(harness.pipeline, harness.instance).unseen
    manifest = Path(to_path(str(event.metadata["dagster/uri"].value)))
    assert not manifest.exists()
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text("{}")
    result = PartitionSync(harness.batches).register_and_plan(harness.pipeline, harness.instance)
    assert _generation(result.sync.unseen[0]) == (key, 1)
    assert manifest.read_text() == "{}"


def test_partitions_per_tick_are_bounded(
    harness: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are only requested for added partitions."""
    monkeypatch.setattr("batch_pipeline.defs.partition_sync.MAX_KEYS_PER_TICK", 4)
    _land(harness, up_to=16)
    first, second = harness.tick(SENSOR), harness.tick(SENSOR)
    keys = harness.instance.get_dynamic_partitions("orders.batches")
    assert _requested_keys(first) == KEYS
    assert [*KEYS, *_requested_keys(second)] == keys == sorted(keys)
    assert len(keys) == 8
    assert ranges(first.run_requests) == [(KEYS[0], KEYS[1]), (KEYS[2], KEYS[3])]
    assert _requested_keys(harness.tick(SENSOR)) == []


def _land(harness: DefsHarness, *, up_to: int) -> None:
    """Register items that each fill a batch."""
    files = [found_file(number, size_bytes=2048) for number in range(13, up_to + 1)]
    harness.database.meta_table("orders").register(files)


def _diff(harness: DefsHarness, sync: PartitionSync) -> SyncPlan:
    return sync.reconcile_and_diff(harness.pipeline, harness.instance)


def _generation(event: dg.AssetMaterialization) -> tuple[str | None, int]:
    return event.partition, generation_of(event)


def _report_by_run(harness: DefsHarness, asset: PartitionedAsset, key: str) -> None:
    """Report a published batch with a run for new batches, which does not encode it again."""
    job = harness.definitions.resolve_job_def(asset.job)
    tags = {LAUNCH_TAG: "new"}
    assert job.execute_in_process(instance=harness.instance, partition_key=key, tags=tags).success
