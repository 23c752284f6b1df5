"""The sensor of backfills: partitions, bounded launches, pause, cancel, and what it tells."""

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


def test_backfill_that_was_planned_by_command_is_added_and_launched(scene: DefsScene) -> None:
    """Expect its batches as partitions in id order, two a run, behind new files."""
    scene.plan()
    result = scene.tick(SENSOR)
    assert scene.instance.get_dynamic_partitions("orders.backfill") == KEYS
    assert ranges(result.run_requests) == [(KEYS[0], KEYS[1]), (KEYS[2], KEYS[3])]
    [first, _] = result.run_requests or []
    assert first.tags[BACKFILL_TAG] == "2023"
    assert int(first.tags[PRIORITY_TAG]) < 0
    assert first.tags[LAUNCH_TAG] == "new"


def test_lost_tick_asks_for_the_same_runs(scene: DefsScene) -> None:
    """Expect the same run keys from the same cursor, and others from the next."""
    scene.plan()
    first, again = scene.tick(SENSOR), scene.tick(SENSOR)
    keys = [request.run_key for request in first.run_requests or []]
    assert keys == [request.run_key for request in again.run_requests or []]
    following = scene.tick(SENSOR, first.cursor)
    assert {*keys}.isdisjoint({request.run_key for request in following.run_requests or []})


def test_batches_of_a_run_that_is_under_way_are_not_launched_again(scene: DefsScene) -> None:
    """Expect the other run only, whoever launched the first and however."""
    scene.plan()
    first = scene.tick(SENSOR)
    scene.started((first.run_requests or [])[0])
    assert ranges(scene.tick(SENSOR, first.cursor).run_requests) == [(KEYS[2], KEYS[3])]
    by_hand = dg.RunRequest(job_name=scene.backfills.job, tags={"dagster/partition": KEYS[2]})
    scene.started(by_hand)
    assert ranges(scene.tick(SENSOR, first.cursor).run_requests) == [(KEYS[3], KEYS[3])]


def _since(cursor: str | None, seconds: float) -> str:
    """Let launches that a cursor remembers be older than they are."""
    memory = LaunchCursor.of_cursor(cursor)
    return replace(
        memory, launched_at={key: at - seconds for key, at in memory.launched_at.items()}
    ).cursor()


def test_batch_that_is_launched_in_vain_comes_again_after_longer_pauses(scene: DefsScene) -> None:
    """Expect three launches of what never comes to an attempt, a fourth a minute later, a fifth
    after two more, and nobody to be needed for that."""
    scene.plan(ids=(1, 3))
    cursor, counts = None, []
    for seconds in (0, 0, 0, 0, 50, 61, 61, 121):
        result = scene.tick(SENSOR, _since(cursor, seconds))
        cursor = result.cursor
        counts.append(len(result.run_requests or []))
    assert counts == [1, 1, 1, 0, 0, 1, 0, 1]
    assert "that wait for another attempt: 1." in str(scene.tick(SENSOR, cursor).skip_reason)


def test_launches_are_counted_while_their_run_goes_on(scene: DefsScene) -> None:
    """Expect ticks beside a run that fails in the end to forget none of the launches."""
    scene.plan(ids=(1, 3))
    cursor: str | None = None
    for _ in range(3):
        result = scene.tick(SENSOR, cursor)
        run = scene.started((result.run_requests or [])[0])
        for _ in range(2):
            result = scene.tick(SENSOR, result.cursor)
        scene.instance.report_run_failed(run)
        cursor = result.cursor
    assert not scene.tick(SENSOR, cursor).run_requests


def test_batch_that_fails_again_and_again_keeps_no_neighbour(scene: DefsScene) -> None:
    """Expect an interrupted batch that was launched in vain to get a run of its own."""
    scene.plan()
    cursor: str | None = None
    for _ in range(3):
        cursor = scene.tick(SENSOR, cursor).cursor
    first = scene.database.backfills.of_all("orders")[0].batch
    with claimed(scene.database, first) as attempt:
        scene.database.attempts.fail(attempt, "no", AttemptStatus.ABANDONED, counts=False)
    requests = scene.tick(SENSOR, _since(cursor, 61)).run_requests
    assert ranges(requests) == [(KEYS[0], KEYS[0]), (KEYS[1], KEYS[2]), (KEYS[3], KEYS[3])]


def test_launches_of_a_long_backfill_are_bounded(scene: DefsScene) -> None:
    """Expect no more runs at once than are allowed, those under way included."""
    scene.plan(most=1)
    first = scene.tick(SENSOR)
    assert len(first.run_requests or []) == 3
    assert len(scene.instance.get_dynamic_partitions("orders.backfill")) == 12
    for request in (first.run_requests or [])[:2]:
        scene.started(request)
    assert len(scene.tick(SENSOR, first.cursor).run_requests or []) == 1


def test_paused_and_cancelled_backfills_are_not_launched(scene: DefsScene) -> None:
    """Expect the paused one's partitions alone, the cancelled batch nowhere, then what is left."""
    scene.plan()
    jobs = scene.database.jobs
    jobs.pause("orders.2023", "disk full")
    paused = scene.tick(SENSOR)
    assert not paused.run_requests
    assert scene.instance.get_dynamic_partitions("orders.backfill") == KEYS
    jobs.resume("orders.2023")
    jobs.cancel_batch("orders.2023", "00000004-00000006")
    going = scene.tick(SENSOR, paused.cursor)
    assert ranges(going.run_requests) == [(KEYS[0], KEYS[0]), (KEYS[2], KEYS[3])]
    jobs.cancel("orders.2023")
    assert not scene.tick(SENSOR, going.cursor).run_requests
    check_invariants(scene.database)


def test_backfills_of_a_paused_stream_are_launched_after_it_is_resumed(scene: DefsScene) -> None:
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


def test_runs_have_batches_of_one_backfill_only(scene: DefsScene) -> None:
    """Expect no run over two backfills, nor over keys that another's were added between."""
    scene.plan("a", ids=(1, 3))
    scene.plan("b", ids=(1, 3))
    scene.tick(SENSOR)
    scene.plan("c", ids=(1, 6))
    requests = scene.tick(SENSOR).run_requests
    (a, b, c, d) = scene.instance.get_dynamic_partitions("orders.backfill")
    assert ranges(requests) == [(a, a), (b, b), (c, d)]
    assert [request.tags[BACKFILL_TAG] for request in requests or []] == ["a", "b", "c"]


def test_published_batch_that_dagster_has_not_heard_of_is_told(scene: DefsScene) -> None:
    """Expect a materialization of its partition, which says which job it is of."""
    scene.plan()
    [first, *_] = scene.database.backfills.of_all("orders")
    publish(scene.database, first.batch)
    [event] = scene.tick(SENSOR).asset_events
    assert isinstance(event, dg.AssetMaterialization)
    assert (event.asset_key, event.partition) == (dg.AssetKey(["orders", "backfill"]), KEYS[0])
    assert event.metadata["job"].value == "orders.2023"
    scene.instance.report_runless_asset_event(event)
    assert scene.tick(SENSOR).asset_events == []


def test_end_of_a_backfill_is_told_once(scene: DefsScene) -> None:
    """Expect an observation when all is published or dead, and no second one."""
    scene.plan(ids=(1, 6))
    cursor = scene.tick(SENSOR).cursor
    first, second = scene.database.backfills.of_all("orders")
    publish(scene.database, first.batch)
    assert not _observations(scene.tick(SENSOR, cursor))
    scene.database.jobs.cancel_batch("orders.2023", second.batch.id)
    result = scene.tick(SENSOR, cursor)
    [told] = _observations(result)
    assert told.metadata["finished"].value is True
    assert told.metadata["batches_published"].value == 1
    assert told.metadata["batches_cancelled"].value == 1
    assert not _observations(scene.tick(SENSOR, result.cursor))


def test_cursor_of_an_earlier_release_is_forgotten(scene: DefsScene) -> None:
    """Expect a cursor with other fields to be read as none."""
    scene.plan()
    assert len(scene.tick(SENSOR, f'{{"{KEYS[0]}": 3}}').run_requests or []) == 2


def test_batch_that_is_being_tried_is_left_to_who_tries_it(scene: DefsScene) -> None:
    """Expect no launch of a batch with a live attempt."""
    scene.plan(ids=(1, 3))
    [one] = scene.database.backfills.of_all("orders")
    with claimed(scene.database, one.batch):
        assert not scene.tick(SENSOR).run_requests


def _observations(result: dg.SensorResult) -> list[dg.AssetObservation]:
    return [event for event in result.asset_events if isinstance(event, dg.AssetObservation)]
