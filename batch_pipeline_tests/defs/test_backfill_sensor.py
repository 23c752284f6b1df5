"""The backfill sensor: partitions, bounded launches, pausing, cancelling, and events."""

from dataclasses import replace

import dagster as dg

from batch_pipeline.defs.names import BACKFILL_TAG, LAUNCH_TAG, PRIORITY_TAG
from batch_pipeline.defs.sensors import LaunchCursor
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline_tests.defs.defs_fixture import DefsScene, ranges
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.seeds import claimed, publish

SENSOR = "orders_backfill"
KEYS = [
    "2023:00000001-00000003",
    "2023:00000004-00000006",
    "2023:00000007-00000009",
    "2023:00000010-00000012",
]


def test_planned_backfill_is_added_and_launched(scene: DefsScene) -> None:
    """Its runs have a lower priority than those for new files."""
    scene.plan()
    result = scene.tick(SENSOR)
    assert scene.instance.get_dynamic_partitions("orders.backfill") == KEYS
    assert ranges(result.run_requests) == [(KEYS[0], KEYS[1]), (KEYS[2], KEYS[3])]
    [first, _] = result.run_requests or []
    assert first.tags[BACKFILL_TAG] == "2023"
    assert int(first.tags[PRIORITY_TAG]) < 0
    assert first.tags[LAUNCH_TAG] == "new"


def test_tick_with_the_same_cursor_requests_the_same_run_keys(scene: DefsScene) -> None:
    scene.plan()
    first, repeated = scene.tick(SENSOR), scene.tick(SENSOR)
    keys = [request.run_key for request in first.run_requests or []]
    assert keys == [request.run_key for request in repeated.run_requests or []]
    following = scene.tick(SENSOR, first.cursor)
    assert {*keys}.isdisjoint({request.run_key for request in following.run_requests or []})


def test_batches_of_a_started_run_are_not_launched_again(scene: DefsScene) -> None:
    """Also if a user started the run."""
    scene.plan()
    first = scene.tick(SENSOR)
    scene.start_run((first.run_requests or [])[0])
    assert ranges(scene.tick(SENSOR, first.cursor).run_requests) == [(KEYS[2], KEYS[3])]
    by_hand = dg.RunRequest(job_name=scene.backfills.job, tags={"dagster/partition": KEYS[2]})
    scene.start_run(by_hand)
    assert ranges(scene.tick(SENSOR, first.cursor).run_requests) == [(KEYS[3], KEYS[3])]


def _aged(text: str | None, seconds: float) -> str:
    """Return a cursor whose launches are older."""
    cursor = LaunchCursor.of_cursor(text)
    launched_at = {key: at - seconds for key, at in cursor.launched_at.items()}
    return replace(cursor, launched_at=launched_at).cursor()


def test_batch_without_an_attempt_is_launched_again_with_growing_pauses(scene: DefsScene) -> None:
    """The first three launches are immediate, the next ones after one and two minutes."""
    scene.plan(ids=(1, 3))
    cursor, counts = None, []
    for seconds in (0, 0, 0, 0, 50, 61, 61, 121):
        result = scene.tick(SENSOR, _aged(cursor, seconds))
        cursor = result.cursor
        counts.append(len(result.run_requests or []))
    assert counts == [1, 1, 1, 0, 0, 1, 0, 1]
    assert "that wait for another attempt: 1." in str(scene.tick(SENSOR, cursor).skip_reason)


def test_launches_are_counted_across_ticks_of_a_started_run(scene: DefsScene) -> None:
    scene.plan(ids=(1, 3))
    cursor: str | None = None
    for _ in range(3):
        result = scene.tick(SENSOR, cursor)
        run = scene.start_run((result.run_requests or [])[0])
        for _ in range(2):
            result = scene.tick(SENSOR, result.cursor)
        scene.instance.report_run_failed(run)
        cursor = result.cursor
    assert not scene.tick(SENSOR, cursor).run_requests


def test_repeatedly_interrupted_batch_gets_its_own_run(scene: DefsScene) -> None:
    scene.plan()
    cursor: str | None = None
    for _ in range(3):
        cursor = scene.tick(SENSOR, cursor).cursor
    first = scene.database.backfills.of_all("orders")[0].batch
    with claimed(scene.database, first) as attempt:
        scene.database.attempts.fail(attempt, "no", AttemptStatus.ABANDONED, counts=False)
    requests = scene.tick(SENSOR, _aged(cursor, 61)).run_requests
    assert ranges(requests) == [(KEYS[0], KEYS[0]), (KEYS[1], KEYS[2]), (KEYS[3], KEYS[3])]


def test_number_of_runs_is_bounded(scene: DefsScene) -> None:
    """Runs that have started count."""
    scene.plan(max_count=1)
    first = scene.tick(SENSOR)
    assert len(first.run_requests or []) == 3
    assert len(scene.instance.get_dynamic_partitions("orders.backfill")) == 12
    for request in (first.run_requests or [])[:2]:
        scene.start_run(request)
    assert len(scene.tick(SENSOR, first.cursor).run_requests or []) == 1


def test_paused_and_cancelled_backfills_are_not_launched(scene: DefsScene) -> None:
    """The partitions of a paused backfill are added."""
    scene.plan()
    jobs = scene.database.jobs
    jobs.pause("orders.2023", "disk full")
    paused = scene.tick(SENSOR)
    assert not paused.run_requests
    assert scene.instance.get_dynamic_partitions("orders.backfill") == KEYS
    jobs.resume("orders.2023")
    jobs.cancel_batch("orders.2023", "00000004-00000006")
    resumed = scene.tick(SENSOR, paused.cursor)
    assert ranges(resumed.run_requests) == [(KEYS[0], KEYS[0]), (KEYS[2], KEYS[3])]
    jobs.cancel("orders.2023")
    assert not scene.tick(SENSOR, resumed.cursor).run_requests
    check_invariants(scene.database)


def test_backfills_of_a_paused_stream_are_launched_once_it_is_resumed(scene: DefsScene) -> None:
    scene.plan()
    scene.database.jobs.pause("orders", "schema change")
    paused = scene.tick(SENSOR)
    assert not paused.run_requests
    assert scene.database.backfills.paused("orders") == {"orders.2023": "schema change"}
    [first, *_] = scene.database.backfills.of_all("orders")
    assert "schema change" in str(scene.database.jobs.cancellation_reason(first.batch))
    scene.database.jobs.resume("orders")
    assert len(scene.tick(SENSOR, paused.cursor).run_requests or []) == 2
    assert scene.database.backfills.paused("orders") == {}


def test_run_has_batches_of_one_backfill_only(scene: DefsScene) -> None:
    """A key range must not span partitions of another backfill."""
    scene.plan("a", ids=(1, 3))
    scene.plan("b", ids=(1, 3))
    scene.tick(SENSOR)
    scene.plan("c", ids=(1, 6))
    requests = scene.tick(SENSOR).run_requests
    (a, b, c, d) = scene.instance.get_dynamic_partitions("orders.backfill")
    assert ranges(requests) == [(a, a), (b, b), (c, d)]
    assert [request.tags[BACKFILL_TAG] for request in requests or []] == ["a", "b", "c"]


def test_unreported_batch_is_reported(scene: DefsScene) -> None:
    scene.plan()
    [first, *_] = scene.database.backfills.of_all("orders")
    publish(scene.database, first.batch)
    [event] = scene.tick(SENSOR).asset_events
    assert isinstance(event, dg.AssetMaterialization)
    assert (event.asset_key, event.partition) == (dg.AssetKey(["orders", "backfill"]), KEYS[0])
    assert event.metadata["job"].value == "orders.2023"
    scene.instance.report_runless_asset_event(event)
    assert scene.tick(SENSOR).asset_events == []


def test_end_of_a_backfill_is_reported_once(scene: DefsScene) -> None:
    scene.plan(ids=(1, 6))
    cursor = scene.tick(SENSOR).cursor
    first, second = scene.database.backfills.of_all("orders")
    publish(scene.database, first.batch)
    assert not _observations(scene.tick(SENSOR, cursor))
    scene.database.jobs.cancel_batch("orders.2023", second.batch.id)
    result = scene.tick(SENSOR, cursor)
    [observation] = _observations(result)
    assert observation.metadata["finished"].value is True
    assert observation.metadata["batches_published"].value == 1
    assert observation.metadata["batches_cancelled"].value == 1
    assert not _observations(scene.tick(SENSOR, result.cursor))


def test_cursor_of_an_earlier_release_is_ignored(scene: DefsScene) -> None:
    scene.plan()
    assert len(scene.tick(SENSOR, f'{{"{KEYS[0]}": 3}}').run_requests or []) == 2


def test_batch_with_a_running_attempt_is_not_launched(scene: DefsScene) -> None:
    scene.plan(ids=(1, 3))
    [status] = scene.database.backfills.of_all("orders")
    with claimed(scene.database, status.batch):
        assert not scene.tick(SENSOR).run_requests


def _observations(result: dg.SensorResult) -> list[dg.AssetObservation]:
    return [event for event in result.asset_events if isinstance(event, dg.AssetObservation)]
