"""Ticks that remember: what a quiet one leaves out; losing a tick or a memory is harmless."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from batch_pipeline.defs.discover import Look, discover
from batch_pipeline.defs.heard import MOST_KEYS
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.integration.defs_scene import DefsScene, open_defs_scene, ranges
from batch_pipeline_tests.integration.seeds import execute, publish

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]

SENSOR = "orders_new_files"
KEYS = [
    "000000000001-000000000003",
    "000000000004-000000000006",
    "000000000007-000000000009",
    "000000000010-000000000012",
]


@pytest.fixture
def scene(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsScene]:
    """The stream `orders` with twelve items in four batches that wait."""
    with open_defs_scene(database, database_url, tmp_path, monkeypatch) as opened:
        yield opened


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
    look = Look(full_every=3)
    for _ in range(2):
        scene.instance.add_dynamic_partitions("orders.batches", _new_keys(scene, look))
    scene.instance.delete_dynamic_partition("orders.batches", KEYS[1])
    assert _new_keys(scene, Look()) == [KEYS[1]]
    assert [_new_keys(scene, look) for _ in range(2)] == [[], [KEYS[1]]]


def _new_keys(scene: DefsScene, look: Look) -> list[str]:
    found = discover(scene.pipeline, scene.stream, scene.instance, drain=False, look=look)
    return list(found.known.new_keys)


def test_event_of_a_lost_tick_is_told_again(scene: DefsScene) -> None:
    """Expect a published batch to be told until Dagster shows its materialization."""
    scene.tick(SENSOR)
    [first, *_] = scene.database.batches.statuses("orders")
    publish(scene.database, first.batch)
    told = [_told(scene.tick(SENSOR)) for _ in range(2)]
    assert [keys for keys, _ in told] == [[KEYS[0]], [KEYS[0]]]
    scene.instance.report_runless_asset_event(told[0][1][0])
    assert _told(scene.tick(SENSOR))[0] == []


def test_event_is_left_to_the_run_that_is_about_to_tell_it(scene: DefsScene) -> None:
    """Expect no second materialization while the run that published is under way, and one once it
    has ended without a word."""
    [request, *_] = scene.tick(SENSOR).run_requests or []
    run = scene.started(request)
    [first, *_] = scene.database.batches.statuses("orders")
    publish(scene.database, first.batch)
    assert _told(scene.tick(SENSOR))[0] == []
    scene.instance.report_run_failed(run)
    assert _told(scene.tick(SENSOR))[0] == [KEYS[0]]


def test_many_partitions_are_added_in_order_and_in_bounds(scene: DefsScene) -> None:
    """Expect a tick to take so many keys, the next the rest, and runs of added keys only."""
    execute(
        scene.database,
        "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
        "SELECT 'orders', n, 'file:///landing/' || n, 2048, now() "
        "FROM generate_series(13, :last) n",
        last=12 + MOST_KEYS,
    )
    first, second = scene.tick(SENSOR), scene.tick(SENSOR)
    assert (len(_asked(first)), len(_asked(second))) == (MOST_KEYS, 4)
    keys = scene.instance.get_dynamic_partitions("orders.batches")
    assert keys == sorted(keys)
    assert len(keys) == MOST_KEYS + 4
    assert len(first.run_requests or []) == 3
    assert _asked(scene.tick(SENSOR)) == []


def _told(result: dg.SensorResult) -> tuple[list[str], list[dg.AssetMaterialization]]:
    events = [
        event
        for event in result.asset_events
        if isinstance(event, dg.AssetMaterialization) and event.partition is not None
    ]
    return [str(event.partition) for event in events], events
