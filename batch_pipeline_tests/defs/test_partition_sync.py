"""Ticks that remember: what a quiet one leaves out; losing a tick or a memory is harmless."""

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
    """Evaluate the sensor in a daemon that dies before it does what the tick asks for."""
    added = scene.instance.get_dynamic_partitions("orders.batches")
    result = scene.tick(SENSOR)
    for key in scene.instance.get_dynamic_partitions("orders.batches"):
        if key not in added:
            scene.instance.delete_dynamic_partition("orders.batches", key)
    return result


def _asked(result: dg.SensorResult) -> list[str]:
    return [key for add in result.dynamic_partitions_requests or () for key in add.partition_keys]


def test_partitions_of_a_lost_tick_are_asked_for_again(scene: DefsScene) -> None:
    """Expect the same keys and runs until Dagster has the keys, and then none."""
    first, second = _lost_tick(scene), scene.tick(SENSOR)
    assert _asked(first) == _asked(second) == KEYS
    assert ranges(first.run_requests) == ranges(second.run_requests)
    assert _asked(scene.tick(SENSOR)) == []


def test_partition_that_was_removed_by_hand_comes_back(scene: DefsScene) -> None:
    """Expect a full comparison after so many looks, and at once in another process."""
    look = PartitionSync(full_every=3)
    for _ in range(2):
        scene.instance.add_dynamic_partitions("orders.batches", _new_keys(scene, look))
    scene.instance.delete_dynamic_partition("orders.batches", KEYS[1])
    assert _new_keys(scene, PartitionSync()) == [KEYS[1]]
    assert [_new_keys(scene, look) for _ in range(2)] == [[], [KEYS[1]]]


def _new_keys(scene: DefsScene, look: PartitionSync) -> list[str]:
    found = look.register_and_plan(scene.pipeline, scene.stream, scene.instance, drain=False)
    return list(found.sync.new_keys)


def test_event_of_a_lost_tick_is_told_again(scene: DefsScene) -> None:
    """Expect a published batch to be told until Dagster shows its materialization."""
    scene.tick(SENSOR)
    [first, *_] = scene.database.batches.statuses("orders")
    publish(scene.database, first.batch)
    told = [_told(scene.tick(SENSOR)) for _ in range(2)]
    assert [keys for keys, _ in told] == [[KEYS[0]], [KEYS[0]]]
    scene.instance.report_runless_asset_event(told[0][1][0])
    assert _told(scene.tick(SENSOR))[0] == []


@pytest.mark.parametrize("name", ["batches", "backfill"])
def test_lost_event_of_a_later_generation_is_told_until_dagster_shows_it(
    scene: DefsScene, name: str
) -> None:
    """Expect the second generation to be told although the first was heard of, of a process that
    has looked before and of a new one; nothing, once it was reported."""
    scene.plan()
    asset = {"batches": scene.batches, "backfill": scene.backfills}[name]
    look = PartitionSync()
    keys = _known(scene, asset, look).new_keys
    scene.instance.add_dynamic_partitions(asset.set_name, list(keys))
    batch = asset.find(scene.database, keys[0])
    publish(scene.database, batch)
    _tell_in_a_run(scene, asset, keys[0])
    assert [_known(scene, asset, one).unseen for one in (look, PartitionSync())] == [[], []]
    publish(scene.database, batch)
    lost = [_known(scene, asset, one).unseen for one in (look, look, PartitionSync())]
    assert [[_generation(event) for event in events] for events in lost] == [[(keys[0], 2)]] * 3
    scene.instance.report_runless_asset_event(lost[0][0])
    assert [_known(scene, asset, one).unseen for one in (look, PartitionSync())] == [[], []]


def test_generation_that_an_earlier_release_told_is_not_told_again(scene: DefsScene) -> None:
    """Expect the numbers of an event to count where it has no data version, and an event without
    either, which a person reports by hand, to stand for the first generation only."""
    keys = _new_keys(scene, PartitionSync())
    first, second = (scene.batches.find(scene.database, key) for key in keys[:2])
    for batch in (first, first, second):
        publish(scene.database, batch)
    for key, metadata in ((keys[0], {"generation": 2}), (keys[1], {})):
        event = dg.AssetMaterialization(scene.batches.asset_key, partition=key, metadata=metadata)
        scene.instance.report_runless_asset_event(event)
    assert _known(scene, scene.batches, PartitionSync()).unseen == []
    publish(scene.database, second)
    assert [_generation(one) for one in _known(scene, scene.batches, PartitionSync()).unseen] == [
        (keys[1], 2)
    ]


def test_lost_event_among_many_generations_is_found_without_reading_the_others(
    scene: DefsScene,
) -> None:
    """Expect a look that begins anew to read one manifest, though all 504 batches were published
    more than once: at 100,000 of them, one query for each would take minutes."""
    _land(scene, up_to=512)
    keys = _new_keys(scene, PartitionSync())
    execute(scene.database, "UPDATE batch_pipeline.batch_state SET state='published', generation=2")
    for key in keys:
        event = dg.AssetMaterialization(
            scene.batches.asset_key, partition=key, tags={DATA_VERSION_TAG: "2"}
        )
        scene.instance.report_runless_asset_event(event)
    publish(scene.database, scene.batches.find(scene.database, keys[500]))
    heard = PartitionSync(in_ticks=True)
    with record_statements(scene.pipeline.database.engine) as statements:
        known = heard.diff(scene.pipeline, scene.stream, scene.batches, scene.instance)
    assert [_generation(one) for one in known.unseen] == [(keys[500], 3)]
    newest = "ORDER BY batch_pipeline.attempt.generation DESC"
    assert sum(newest in text for text, _ in statements) == 1


def test_later_result_of_a_worker_of_the_library_has_nothing_to_tell(scene: DefsScene) -> None:
    """Expect no event, not even that of the manifest before it once more."""
    [key, *_] = _new_keys(scene, PartitionSync())
    batch = scene.batches.find(scene.database, key)
    publish(scene.database, batch)
    [event] = _known(scene, scene.batches, PartitionSync()).unseen
    scene.instance.report_runless_asset_event(event)
    with claimed(scene.database, batch) as attempt:
        scene.database.attempts.succeed(attempt, result="done", logging=None, seen=None)
    assert _known(scene, scene.batches, PartitionSync()).unseen == []


def test_event_is_left_to_the_run_that_is_about_to_tell_it(scene: DefsScene) -> None:
    """Expect no second materialization while the run that published is under way, and one once it
    has exited without reporting."""
    [request, *_] = scene.tick(SENSOR).run_requests or []
    run = scene.started(request)
    [first, *_] = scene.database.batches.statuses("orders")
    publish(scene.database, first.batch)
    assert _told(scene.tick(SENSOR))[0] == []
    scene.instance.report_run_failed(run)
    assert _told(scene.tick(SENSOR))[0] == [KEYS[0]]


def test_many_partitions_are_added_in_order_and_in_bounds(scene: DefsScene) -> None:
    """Expect a tick to take so many keys, the next the rest, and runs of added keys only."""
    _land(scene, up_to=12 + MAX_KEYS_PER_TICK)
    first, second = scene.tick(SENSOR), scene.tick(SENSOR)
    assert (len(_asked(first)), len(_asked(second))) == (MAX_KEYS_PER_TICK, 4)
    keys = scene.instance.get_dynamic_partitions("orders.batches")
    assert keys == sorted(keys)
    assert len(keys) == MAX_KEYS_PER_TICK + 4
    assert len(first.run_requests or []) == 3
    assert _asked(scene.tick(SENSOR)) == []


def _land(scene: DefsScene, *, up_to: int) -> None:
    """Register items that weigh a batch each."""
    execute(
        scene.database,
        "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
        "SELECT 'orders', n, 'file:///landing/' || n, 2048, now() "
        "FROM generate_series(13, :last) n",
        last=up_to,
    )


def _known(scene: DefsScene, asset: PartitionedAsset, look: PartitionSync) -> SyncPlan:
    return look.reconcile_and_diff(scene.pipeline, scene.stream, asset, scene.instance)


def _generation(event: dg.AssetMaterialization) -> tuple[str | None, int]:
    return event.partition, generation_of(event)


def _tell_in_a_run(scene: DefsScene, asset: PartitionedAsset, key: str) -> None:
    """Let a run for what is new come to a batch that is published: it only tells of it."""
    job = scene.definitions.resolve_job_def(asset.job)
    tags = {LAUNCH_TAG: "new"}
    assert job.execute_in_process(instance=scene.instance, partition_key=key, tags=tags).success


def _told(result: dg.SensorResult) -> tuple[list[str], list[dg.AssetMaterialization]]:
    events = [
        event
        for event in result.asset_events
        if isinstance(event, dg.AssetMaterialization) and event.partition is not None
    ]
    return [str(event.partition) for event in events], events
