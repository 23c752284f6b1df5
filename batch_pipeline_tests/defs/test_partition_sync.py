"""Synchronizing partitions and events with Dagster; lost ticks and restarts lose nothing."""

import dagster as dg
import pytest

from batch_pipeline.defs.metadata import generation_of
from batch_pipeline.defs.names import DATA_VERSION_TAG, LAUNCH_TAG
from batch_pipeline.defs.partition_sync import (
    MAX_KEYS_PER_TICK,
    PartitionSync,
    SyncPlan,
)
from batch_pipeline.defs.partitions import PartitionedAsset
from batch_pipeline_tests.defs.defs_fixture import DefsScene, ranges
from batch_pipeline_tests.inventory.meta_tables.user_tables import record_statements
from batch_pipeline_tests.seeds import claimed, execute, publish

SENSOR = "orders_new_files"
KEYS = [
    "00000001-00000003",
    "00000004-00000006",
    "00000007-00000009",
    "00000010-00000012",
]


def _lost_tick(scene: DefsScene) -> dg.SensorResult:
    """Evaluate the sensor in a daemon that dies before it adds the partitions."""
    added = scene.instance.get_dynamic_partitions("orders.batches")
    result = scene.tick(SENSOR)
    for key in scene.instance.get_dynamic_partitions("orders.batches"):
        if key not in added:
            scene.instance.delete_dynamic_partition("orders.batches", key)
    return result


def _requested_keys(result: dg.SensorResult) -> list[str]:
    return [key for add in result.dynamic_partitions_requests or () for key in add.partition_keys]


def test_partitions_of_a_lost_tick_are_requested_again(scene: DefsScene) -> None:
    first, second = _lost_tick(scene), scene.tick(SENSOR)
    assert _requested_keys(first) == _requested_keys(second) == KEYS
    assert ranges(first.run_requests) == ranges(second.run_requests)
    assert _requested_keys(scene.tick(SENSOR)) == []


def test_deleted_partition_is_added_again(scene: DefsScene) -> None:
    """Another process detects it immediately, the same process at its next full comparison."""
    sync = PartitionSync(full_every=3)
    for _ in range(2):
        scene.instance.add_dynamic_partitions("orders.batches", _new_keys(scene, sync))
    scene.instance.delete_dynamic_partition("orders.batches", KEYS[1])
    assert _new_keys(scene, PartitionSync()) == [KEYS[1]]
    assert [_new_keys(scene, sync) for _ in range(2)] == [[], [KEYS[1]]]


def _new_keys(scene: DefsScene, sync: PartitionSync) -> list[str]:
    result = sync.register_and_plan(scene.pipeline, scene.stream, scene.instance, drain=False)
    return list(result.sync.new_keys)


def test_event_of_a_lost_tick_is_reported_again(scene: DefsScene) -> None:
    scene.tick(SENSOR)
    [first, *_] = scene.database.batches.statuses("orders")
    publish(scene.database, first.batch)
    [event], [repeated] = [_materializations(scene.tick(SENSOR)) for _ in range(2)]
    assert event.partition == repeated.partition == KEYS[0]
    scene.instance.report_runless_asset_event(event)
    assert _materializations(scene.tick(SENSOR)) == []


@pytest.mark.parametrize("name", ["batches", "backfill"])
def test_lost_event_of_a_later_generation_is_repeated_until_it_is_stored(
    scene: DefsScene, name: str
) -> None:
    """Both by a process that has reported the first generation and by a new process."""
    scene.plan()
    asset = {"batches": scene.batches, "backfill": scene.backfills}[name]
    sync = PartitionSync()
    keys = _diff(scene, asset, sync).new_keys
    scene.instance.add_dynamic_partitions(asset.set_name, list(keys))
    batch = asset.find(scene.database, keys[0])
    publish(scene.database, batch)
    _report_by_run(scene, asset, keys[0])
    assert [_diff(scene, asset, each).unseen for each in (sync, PartitionSync())] == [[], []]
    publish(scene.database, batch)
    lost = [_diff(scene, asset, each).unseen for each in (sync, sync, PartitionSync())]
    assert [[_generation(event) for event in events] for events in lost] == [[(keys[0], 2)]] * 3
    scene.instance.report_runless_asset_event(lost[0][0])
    assert [_diff(scene, asset, each).unseen for each in (sync, PartitionSync())] == [[], []]


def test_generation_reported_by_an_earlier_release_is_not_repeated(scene: DefsScene) -> None:
    """Without a data version, the metadata `generation` counts, and without both the event counts
    for the first generation, as manually reported events do."""
    keys = _new_keys(scene, PartitionSync())
    first, second = (scene.batches.find(scene.database, key) for key in keys[:2])
    for batch in (first, first, second):
        publish(scene.database, batch)
    for key, metadata in ((keys[0], {"generation": 2}), (keys[1], {})):
        event = dg.AssetMaterialization(scene.batches.asset_key, partition=key, metadata=metadata)
        scene.instance.report_runless_asset_event(event)
    assert _diff(scene, scene.batches, PartitionSync()).unseen == []
    publish(scene.database, second)
    [event] = _diff(scene, scene.batches, PartitionSync()).unseen
    assert _generation(event) == (keys[1], 2)


def test_lost_event_is_found_without_reading_all_manifests(scene: DefsScene) -> None:
    """A new process reads one manifest although all 504 batches have several generations.

    With 100,000 batches, one query per batch would take minutes.
    """
    _land(scene, up_to=512)
    keys = _new_keys(scene, PartitionSync())
    execute(scene.database, "UPDATE batch_pipeline.batch_state SET state='published', generation=2")
    for key in keys:
        event = dg.AssetMaterialization(
            scene.batches.asset_key, partition=key, tags={DATA_VERSION_TAG: "2"}
        )
        scene.instance.report_runless_asset_event(event)
    publish(scene.database, scene.batches.find(scene.database, keys[500]))
    sync = PartitionSync(in_ticks=True)
    with record_statements(scene.pipeline.database.engine) as statements:
        plan = sync.diff(scene.pipeline, scene.stream, scene.batches, scene.instance)
    assert [_generation(event) for event in plan.unseen] == [(keys[500], 3)]
    newest = "ORDER BY batch_pipeline.attempt.generation DESC"
    assert sum(newest in text for text, _ in statements) == 1


def test_result_of_a_library_worker_is_not_reported(scene: DefsScene) -> None:
    """Also the previous manifest is not reported again."""
    [key, *_] = _new_keys(scene, PartitionSync())
    batch = scene.batches.find(scene.database, key)
    publish(scene.database, batch)
    [event] = _diff(scene, scene.batches, PartitionSync()).unseen
    scene.instance.report_runless_asset_event(event)
    with claimed(scene.database, batch) as attempt:
        scene.database.attempts.succeed(attempt, result="done", logging=None, seen=None)
    assert _diff(scene, scene.batches, PartitionSync()).unseen == []


def test_sensor_leaves_the_event_to_a_started_run(scene: DefsScene) -> None:
    """The sensor reports it once the run has failed without reporting."""
    [request, *_] = scene.tick(SENSOR).run_requests or []
    run = scene.start_run(request)
    [first, *_] = scene.database.batches.statuses("orders")
    publish(scene.database, first.batch)
    assert _materializations(scene.tick(SENSOR)) == []
    scene.instance.report_run_failed(run)
    [event] = _materializations(scene.tick(SENSOR))
    assert event.partition == KEYS[0]


def test_partitions_per_tick_are_bounded(scene: DefsScene) -> None:
    """Runs are only requested for added partitions."""
    _land(scene, up_to=12 + MAX_KEYS_PER_TICK)
    first, second = scene.tick(SENSOR), scene.tick(SENSOR)
    assert (len(_requested_keys(first)), len(_requested_keys(second))) == (MAX_KEYS_PER_TICK, 4)
    keys = scene.instance.get_dynamic_partitions("orders.batches")
    assert keys == sorted(keys)
    assert len(keys) == MAX_KEYS_PER_TICK + 4
    assert len(first.run_requests or []) == 3
    assert _requested_keys(scene.tick(SENSOR)) == []


def _land(scene: DefsScene, *, up_to: int) -> None:
    """Register items that each fill a batch."""
    execute(
        scene.database,
        "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
        "SELECT 'orders', n, 'file:///landing/' || n, 2048, now() "
        "FROM generate_series(13, :last) n",
        last=up_to,
    )


def _diff(scene: DefsScene, asset: PartitionedAsset, sync: PartitionSync) -> SyncPlan:
    return sync.reconcile_and_diff(scene.pipeline, scene.stream, asset, scene.instance)


def _generation(event: dg.AssetMaterialization) -> tuple[str | None, int]:
    return event.partition, generation_of(event)


def _report_by_run(scene: DefsScene, asset: PartitionedAsset, key: str) -> None:
    """Report a published batch with a run for new batches, which does not encode it again."""
    job = scene.definitions.resolve_job_def(asset.job)
    tags = {LAUNCH_TAG: "new"}
    assert job.execute_in_process(instance=scene.instance, partition_key=key, tags=tags).success


def _materializations(result: dg.SensorResult) -> list[dg.AssetMaterialization]:
    return [
        event
        for event in result.asset_events
        if isinstance(event, dg.AssetMaterialization) and event.partition is not None
    ]
