"""Job control: pause, resume, cancel and retry, and their effect on workers."""

from datetime import timedelta
from functools import partial

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch, BatchState, late_key
from batch_pipeline.model.errors import (
    AmbiguousJobError,
    FencedError,
    InvalidValueError,
    JobPausedError,
    UnknownBatchError,
    UnknownJobError,
)
from batch_pipeline_tests.concurrency import eventually, together
from batch_pipeline_tests.factories import encoded, limits, stream
from batch_pipeline_tests.inventory.audit_fixture import Feed
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import insert
from batch_pipeline_tests.seeds import (
    claimed,
    execute,
    fail,
    plan,
    planned,
    publish,
    query,
    register,
    statuses,
)


def _states(database: Database) -> list[str]:
    rows = query(database, "SELECT state FROM batch_pipeline.batch_state ORDER BY batch_id")
    return [state for (state,) in rows]


def _publish(database: Database, attempt: Attempt) -> None:
    database.attempts.publish(attempt, encoded(attempt.stem), stream())


def _cancel(database: Database) -> None:
    database.jobs.cancel("orders")


@pytest.fixture
def feed(database: Database, files: ReflectedMetaTable) -> Feed:
    """A job `import` on a table of six items: three batches."""
    insert(files, dict.fromkeys(range(1, 7), 10))
    return Feed(database, files, limits(max_count=2), job="import")


def test_paused_job_acquires_nothing_until_resumed(database: Database, feed: Feed) -> None:
    """A running attempt can still publish."""
    running = feed.acquired()
    assert database.jobs.pause("import", " disk full ").paused == "disk full"
    with pytest.raises(JobPausedError) as caught:
        feed.acquire()
    assert (caught.value.job, caught.value.reason) == ("import", "disk full")
    assert "batch-pipeline jobs resume import" in str(caught.value)
    assert feed.succeed(running) == [1, 2]
    assert database.jobs.resume("import").paused is None
    assert feed.acquired().batch.id_range.first_id == 3
    check_invariants(database)


def test_paused_stream_is_not_planned_until_resumed(database: Database, one: Batch) -> None:
    """A batch can still be claimed explicitly."""
    database.jobs.pause("orders")
    assert database.jobs.paused("orders") == ""
    register(database, 3, first=4)
    with pytest.raises(JobPausedError):
        plan(database, limits(max_count=3))
    with pytest.raises(JobPausedError):
        database.jobs.check_not_paused("orders")
    assert "paused" in (database.jobs.cancellation_reason(one) or "")
    assert publish(database, one).generation == 1
    database.jobs.resume("orders")
    assert (database.jobs.paused("orders"), database.jobs.cancellation_reason(one)) == (None, None)
    assert [batch.count for batch in plan(database, limits(max_count=3))] == [3]
    check_invariants(database)


def test_pause_of_unknown_stream_raises_unknown_job(database: Database) -> None:
    with pytest.raises(UnknownJobError, match="jobs: none"):
        database.jobs.pause("orders")
    database.jobs.check_not_paused("orders")


def test_cancel_fences_running_attempt(database: Database, rival: Database) -> None:
    """Another process cancels; the worker stops renewing that lease only."""
    first, second = planned(database, 2)
    lease = timedelta(seconds=0.6)
    with (
        claimed(database, first, lease=lease) as attempt,
        claimed(database, second, lease=lease) as other,
    ):
        assert database.heartbeat.is_renewing(attempt.token)
        cancelled = rival.jobs.cancel("orders", first.key)
        assert (cancelled.batches, cancelled.attempts) == (1, 1)
        eventually(lambda: not database.heartbeat.is_renewing(attempt.token))
        assert database.heartbeat.is_renewing(other.token)
        with pytest.raises(FencedError):
            database.attempts.publish(attempt, encoded(), stream())
        assert database.attempts.fail(attempt, "fenced", AttemptStatus.FAILED)
        _publish(database, other)
    assert statuses(database) == ["cancelled", "succeeded"]
    assert _states(database) == ["cancelled", "published"]
    check_invariants(database)


def test_cancel_job_keeps_published_batches(database: Database) -> None:
    done, failed, dead, running, _ = planned(database, 5)
    publish(database, done)
    for batch in (failed, dead, dead, dead):
        fail(database, batch)
    assert _states(database) == ["published", "failed", "dead", "planned", "planned"]
    with claimed(database, running), claimed(database, done):
        cancelled = database.jobs.cancel("orders")
    assert (cancelled.batches, cancelled.attempts) == (4, 2)
    assert _states(database) == ["published"] + 4 * ["cancelled"]
    assert database.jobs.cancel("orders").batches == 0
    check_invariants(database)


def test_concurrent_cancel_and_publish_are_serialized(database: Database, rival: Database) -> None:
    """Each batch is either published or cancelled, consistent with the worker's result."""
    for batch in planned(database, 8):
        with claimed(database, batch) as attempt:
            results = together(partial(_publish, database, attempt), partial(_cancel, rival))
        is_published = not isinstance(results[0], Exception)
        assert is_published or isinstance(results[0], FencedError)
        assert results[1] is None
        state = "published" if is_published else "cancelled"
        assert _states(database)[batch.id - 1] == state
        check_invariants(database)


def test_retry_of_dead_batch_resets_attempt_count(database: Database, feed: Feed) -> None:
    """It gets three more attempts."""
    while (attempt := feed.acquire()) is not None:
        database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
    assert _states(database) == ["dead"] * 3
    assert database.jobs.retry("import", batches=["1..2", 3]) == 2
    assert _states(database) == ["interrupted", "dead", "interrupted"]
    check_invariants(database)
    numbers = []
    while (attempt := feed.acquire()) is not None:
        numbers.append((attempt.batch.id, attempt.number))
        database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
    assert sorted(numbers) == [(1, 4), (1, 5), (1, 6), (3, 4), (3, 5), (3, 6)]
    check_invariants(database)


def test_retry_reverts_cancellation(database: Database) -> None:
    """Batches with attempts become interrupted, others planned."""
    done, failed, fresh = planned(database, 3)
    publish(database, done)
    fail(database, failed)
    database.jobs.cancel("orders")
    check_invariants(database)
    assert database.jobs.retry("orders", states=[BatchState.FAILED]) == 0
    assert database.jobs.retry("orders") == 2
    assert _states(database) == ["published", "interrupted", "planned"]
    check_invariants(database)
    assert publish(database, failed).attempt == 2
    assert publish(database, fresh).attempt == 1
    check_invariants(database)


def test_retry_of_published_or_running_batch_is_rejected(database: Database, one: Batch) -> None:
    for state in (BatchState.PUBLISHED, BatchState.RUNNING, BatchState.SUPERSEDED):
        with pytest.raises(InvalidValueError):
            database.jobs.retry("orders", states=[state])
    publish(database, one)
    assert database.jobs.retry("orders", batches=[one.id]) == 0
    assert _states(database) == ["published"]


def test_ambiguous_job_name_needs_table(database: Database, feed: Feed) -> None:
    for table in ("ops.files", "ops.other"):
        feed.acquired(meta_table=table)
    with pytest.raises(AmbiguousJobError) as caught:
        database.jobs.cancel("import")
    assert caught.value.meta_tables == ("ops.files", "ops.other")
    assert database.jobs.cancel("import", meta_table="ops.other").attempts == 1
    assert _states(database) == ["running", "cancelled"]
    with pytest.raises(UnknownJobError):
        database.jobs.find("import", "ops.third")
    check_invariants(database)


def test_unknown_batch_name_is_rejected(database: Database, one: Batch) -> None:
    names = ("7", "9" * 20, "1-3", "00000001-00000004", "3..1", "-1..3", "x")
    for name in (*names, "9" * 5_000, f"1..{'9' * 5_000}"):
        with pytest.raises(UnknownBatchError) as caught:
            database.jobs.cancel("orders", name)
        assert f"Job 'orders' has no batch {name!r}." in str(caught.value)
    assert _states(database) == ["planned"]


def test_batch_is_found_by_id_key_or_range(database: Database, one: Batch) -> None:
    for name in (one.id, str(one.id), one.key, str(one.id_range)):
        database.jobs.cancel("orders", name)
        assert database.jobs.retry("orders", batches=[name]) == 1


def test_ambiguous_list_batches_need_id(database: Database, one: Batch) -> None:
    for listed in ("{1,2,9}", "{1,8,9}"):
        execute(
            database,
            "INSERT INTO batch_pipeline.batch "
            "(job_id, first_id, last_id, weight, item_count, config, item_ids) "
            "VALUES (1, 1, 9, 30, 3, '{}', :listed)",
            listed=listed,
        )
    with pytest.raises(InvalidValueError, match="2, 3"):
        database.jobs.cancel("orders", "1..9")


def test_jobs_reports_states_backlog_and_pause(database: Database, feed: Feed) -> None:
    done, failed, _, _ = planned(database, 4)
    publish(database, done)
    fail(database, failed)
    feed.acquired()
    database.jobs.pause("import", "disk full")
    first, second = database.jobs.jobs()
    assert (first.job.name, first.job.paused, first.publish_count) == ("import", "disk full", 0)
    assert (first.batches, first.waiting_batches) == ({BatchState.RUNNING: 1}, 0)
    assert (second.job.name, second.job.stream, second.job.paused) == ("orders", "orders", None)
    states = {BatchState.PUBLISHED: 1, BatchState.FAILED: 1, BatchState.PLANNED: 2}
    assert second.batches == states
    assert (second.waiting_batches, second.waiting_items, second.waiting_weight) == (2, 6, 60)
    assert second.publish_count == 1
    listed = database.jobs.unfinished("orders")
    unfinished = [(status.batch.id, status.state.value) for status in listed]
    assert unfinished == [(2, "failed"), (3, "planned"), (4, "planned")]


def test_late_job_is_cancelled_and_retried_with_its_parent(
    database: Database, files: ReflectedMetaTable
) -> None:
    feed = Feed(database, files)
    insert(files, {1: 10, 3: 10})
    feed.drain()
    insert(files, {4: 10})
    feed.acquired()
    insert(files, {2: 10})
    assert feed.audit().late.first == (2,)
    assert database.jobs.cancel("job").batches == 2
    assert database.jobs.retry("job", batches=["2..2"]) == 1
    assert database.jobs.batch("job", late_key(3)) == database.jobs.batch("job", "2..2")
    assert _states(database) == ["published", "cancelled", "planned"]
    jobs = [(report.job.name, report.parent) for report in database.jobs.jobs()]
    assert jobs == [("job", None), ("job.late", "job")]
    check_invariants(database)
