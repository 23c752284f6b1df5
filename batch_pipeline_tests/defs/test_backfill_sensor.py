"""The backfill sensor: partitions, bounded launches, pausing, cancelling, and events."""

import time
from dataclasses import replace

import dagster as dg

from batch_pipeline.defs.names import BACKFILL_TAG, LAUNCH_TAG, PRIORITY_TAG
from batch_pipeline.defs.sensors import LaunchCursor
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline_tests.defs.defs_fixture import KEYS as BATCH_KEYS
from batch_pipeline_tests.defs.defs_fixture import DefsHarness, ranges
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.seeds import fail, publish

SENSOR = "orders_backfill"
KEYS = [f"2023:{key}" for key in BATCH_KEYS]


def test_planned_backfill_is_added_and_launched(harness: DefsHarness) -> None:
    """Its runs come after those for new files; a repeated tick requests the same runs."""
    harness.plan()
    first, repeated = harness.tick(SENSOR), harness.tick(SENSOR)
    assert harness.instance.get_dynamic_partitions("orders.backfill") == KEYS
    assert ranges(first.run_requests) == [(KEYS[0], KEYS[1]), (KEYS[2], KEYS[3])]
    [request, _] = first.run_requests or []
    assert request.tags[BACKFILL_TAG] == "2023"
    assert int(request.tags[PRIORITY_TAG]) < 0
    assert request.tags[LAUNCH_TAG] == "new"
    assert _run_keys(first) == _run_keys(repeated)
    assert _run_keys(first).isdisjoint(_run_keys(harness.tick(SENSOR, first.cursor)))


def _run_keys(result: dg.SensorResult) -> set[str | None]:
    return {request.run_key for request in result.run_requests or []}


def test_run_keys_are_not_repeated_after_a_reset_of_the_cursor() -> None:
    """Only the first tick after it may repeat some."""
    before = LaunchCursor(looked_at=1_000).after(KEYS, KEYS, 3)
    reset = LaunchCursor(looked_at=1_060).after(KEYS, KEYS, 3)
    assert reset.runs > before.runs + 3


def test_batches_of_a_started_run_are_not_launched_again(harness: DefsHarness) -> None:
    """Runs that a user started count as well."""
    harness.plan()
    first = harness.tick(SENSOR)
    harness.start_run((first.run_requests or [])[0])
    assert ranges(harness.tick(SENSOR, first.cursor).run_requests) == [(KEYS[2], KEYS[3])]
    by_hand = dg.RunRequest(job_name=harness.backfills.job, tags={"dagster/partition": KEYS[2]})
    harness.start_run(by_hand)
    assert ranges(harness.tick(SENSOR, first.cursor).run_requests) == [(KEYS[3], KEYS[3])]


def _aged(text: str | None, seconds: float) -> str:
    """Return a cursor whose launches are older."""
    cursor = LaunchCursor.of_cursor(text)
    launched_at = {key: at - seconds for key, at in cursor.launched_at.items()}
    return replace(cursor, launched_at=launched_at).cursor()


def test_batch_without_an_attempt_is_launched_again_with_growing_pauses(
    harness: DefsHarness,
) -> None:
    """The first three launches are immediate, the next ones after one and two minutes."""
    harness.plan(ids=(1, 3))
    cursor, counts = None, []
    for seconds in (0, 0, 0, 0, 50, 61, 61, 121):
        result = harness.tick(SENSOR, _aged(cursor, seconds))
        cursor = result.cursor
        counts.append(len(result.run_requests or []))
    assert counts == [1, 1, 1, 0, 0, 1, 0, 1]
    assert "that wait for another attempt: 1." in str(harness.tick(SENSOR, cursor).skip_reason)


def test_launches_are_counted_across_ticks_of_a_started_run(harness: DefsHarness) -> None:
    harness.plan(ids=(1, 3))
    cursor: str | None = None
    for _ in range(3):
        result = harness.tick(SENSOR, cursor)
        run = harness.start_run((result.run_requests or [])[0])
        for _ in range(2):
            result = harness.tick(SENSOR, result.cursor)
        harness.instance.report_run_failed(run)
        cursor = result.cursor
    assert not harness.tick(SENSOR, cursor).run_requests


def test_repeatedly_interrupted_batch_gets_its_own_run(harness: DefsHarness) -> None:
    harness.plan()
    cursor: str | None = None
    for _ in range(3):
        cursor = harness.tick(SENSOR, cursor).cursor
    second = harness.database.backfills.of_all("orders")[1].batch
    fail(harness.database, second, status=AttemptStatus.ABANDONED, counts=False)
    requests = harness.tick(SENSOR, _aged(cursor, 61)).run_requests
    assert ranges(requests) == [(KEYS[0], KEYS[0]), (KEYS[1], KEYS[1]), (KEYS[2], KEYS[3])]


def test_number_of_runs_is_bounded(harness: DefsHarness) -> None:
    """Runs that have started count."""
    harness.plan(max_count=1)
    first = harness.tick(SENSOR)
    assert len(first.run_requests or []) == 3
    assert len(harness.instance.get_dynamic_partitions("orders.backfill")) == 12
    for request in (first.run_requests or [])[:2]:
        harness.start_run(request)
    assert len(harness.tick(SENSOR, first.cursor).run_requests or []) == 1


def test_paused_and_cancelled_backfills_are_not_launched(harness: DefsHarness) -> None:
    """The partitions of a paused backfill are added."""
    harness.plan()
    jobs = harness.database.jobs
    jobs.pause("orders.2023", "disk full")
    paused = harness.tick(SENSOR)
    assert not paused.run_requests
    assert harness.instance.get_dynamic_partitions("orders.backfill") == KEYS
    jobs.resume("orders.2023")
    jobs.cancel("orders.2023", "00000004-00000006")
    resumed = harness.tick(SENSOR, paused.cursor)
    assert ranges(resumed.run_requests) == [(KEYS[0], KEYS[0]), (KEYS[2], KEYS[3])]
    jobs.cancel("orders.2023")
    assert not harness.tick(SENSOR, resumed.cursor).run_requests
    check_invariants(harness.database)


def test_backfills_of_a_paused_stream_are_launched_once_it_is_resumed(harness: DefsHarness) -> None:
    """A backfill can be planned while the stream is paused."""
    harness.database.jobs.pause("orders", "schema change")
    harness.plan()
    paused = harness.tick(SENSOR)
    assert not paused.run_requests
    assert harness.database.backfills.paused("orders") == {"orders.2023": "schema change"}
    [first, *_] = harness.database.backfills.of_all("orders")
    assert "schema change" in str(harness.database.jobs.cancellation_reason(first.batch))
    harness.database.jobs.resume("orders")
    assert len(harness.tick(SENSOR, paused.cursor).run_requests or []) == 2
    assert harness.database.backfills.paused("orders") == {}


def test_tick_of_a_paused_stream_updates_the_time_in_the_cursor(harness: DefsHarness) -> None:
    """Otherwise, each tick would read all runs that were cancelled since the stream was paused."""
    harness.database.jobs.pause("orders", "schema change")
    before = LaunchCursor(stream="orders", tries={KEYS[0]: 1}, looked_at=time.time() - 3_600)
    contexts: list[dg.SensorEvaluationContext] = []
    result = harness.evaluate("orders_new_files", before.cursor(), contexts.append)
    assert isinstance(result, dg.SkipReason)
    assert "schema change" in str(result.skip_message)
    after = LaunchCursor.of_cursor(contexts[0].cursor)
    assert after.looked_at > before.looked_at + 3_000
    assert (after.stream, after.tries) == (before.stream, before.tries)


def test_run_has_batches_of_one_backfill_only(harness: DefsHarness) -> None:
    """A key range must not span partitions of another backfill."""
    harness.plan("a", ids=(1, 3))
    harness.plan("b", ids=(1, 3))
    harness.tick(SENSOR)
    harness.plan("c", ids=(1, 6))
    requests = harness.tick(SENSOR).run_requests
    (a, b, c, d) = harness.instance.get_dynamic_partitions("orders.backfill")
    assert ranges(requests) == [(a, a), (b, b), (c, d)]
    assert [request.tags[BACKFILL_TAG] for request in requests or []] == ["a", "b", "c"]


def test_published_batch_and_end_of_a_backfill_are_reported_once(harness: DefsHarness) -> None:
    harness.plan(ids=(1, 6))
    cursor = harness.tick(SENSOR).cursor
    first, second = harness.database.backfills.of_all("orders")
    publish(harness.database, first.batch)
    [event] = harness.tick(SENSOR, cursor).asset_events
    assert isinstance(event, dg.AssetMaterialization)
    assert (event.asset_key, event.partition) == (harness.backfills.asset_key, KEYS[0])
    assert event.metadata["job"].value == "orders.2023"
    harness.instance.report_runless_asset_event(event)
    harness.database.jobs.cancel("orders.2023", second.batch.id)
    result = harness.tick(SENSOR, cursor)
    [observation] = result.asset_events
    assert isinstance(observation, dg.AssetObservation)
    names = ("finished", "batches_published", "batches_cancelled")
    assert [observation.metadata[name].value for name in names] == [True, 1, 1]
    assert harness.tick(SENSOR, result.cursor).asset_events == []


def test_cursor_of_an_earlier_release_is_ignored(harness: DefsHarness) -> None:
    harness.plan()
    assert len(harness.tick(SENSOR, f'{{"{KEYS[0]}": 3}}').run_requests or []) == 2
