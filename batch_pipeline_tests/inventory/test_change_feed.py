"""The change feed of batches: planned, published, due; and what cursors skip."""

from collections.abc import Mapping

import pytest

from batch_pipeline.inventory import change_feed
from batch_pipeline.inventory.change_feed import Changes, Cursor
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import AttemptStatus, BatchState, IdRange
from batch_pipeline.model.job import JobKind
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.seeds import (
    claimed,
    execute,
    fail,
    plan,
    planned,
    planned_backfill,
    publish,
    register,
)


def _changes(database: Database, cursors: Mapping[int, Cursor] | None = None) -> Changes:
    return database.change_feed.since("orders", [JobKind.INCREMENTAL], cursors or {})


def test_changes_since_cursors_include_only_new_batches(database: Database) -> None:
    """Without cursors all batches are included."""
    first, second = planned(database, 2)
    publish(database, first)
    changes = _changes(database)
    assert (list(changes.planned), list(changes.published)) == ([first, second], [first])
    no_changes = Changes(planned=[], published=[], generations={}, cursors=changes.cursors)
    assert _changes(database, changes.cursors) == no_changes
    publish(database, second)
    register(database, 3, first=7)
    [third] = plan(database, limits(max_count=3))
    changes = _changes(database, changes.cursors)
    assert (list(changes.planned), list(changes.published)) == ([third], [second])
    assert _changes(database, changes.cursors).published == []


def test_republished_batch_is_reported_once_with_newest_generation(database: Database) -> None:
    [batch] = planned(database)
    publish(database, batch)
    publish(database, batch)
    changes = _changes(database)
    assert (list(changes.published), changes.generations) == ([batch], {batch.id: 2})
    publish(database, batch)
    publish(database, batch)
    later = _changes(database, changes.cursors)
    assert (list(later.published), later.generations) == ([batch], {batch.id: 4})


def test_batch_that_is_processed_again_is_reported_as_published(database: Database) -> None:
    """If the new attempt fails, later reads do not report the batch."""
    [batch] = planned(database)
    publish(database, batch)
    with claimed(database, batch):
        changes = _changes(database)
    assert (list(changes.published), changes.generations) == ([batch], {batch.id: 1})
    assert _changes(database, changes.cursors).published == []


def test_changes_of_younger_job_do_not_hide_those_of_older_job(database: Database) -> None:
    """A batch of the older job is split after the cursor has passed batches of the younger one.

    Its halves are reported; the superseded batch is not.
    """
    planned(database, 2)
    [split] = planned_backfill(database, "a", ids=IdRange(first_id=1, last_id=3))
    cursors = database.change_feed.since("orders", [JobKind.BACKFILL], {}).cursors
    planned_backfill(database, "b", ids=IdRange(first_id=1, last_id=6))
    further = database.change_feed.since("orders", [JobKind.BACKFILL], cursors)
    table = database.meta_table("orders").reflected()
    halves = database.jobs.split("orders.a", split.id, table)
    changes = database.change_feed.since("orders", [JobKind.BACKFILL], further.cursors)
    assert {batch.job for batch in further.planned} == {"orders.b"}
    assert list(changes.planned) == list(halves)
    everything = database.change_feed.since("orders", [JobKind.BACKFILL], {})
    assert split not in everything.planned


def test_due_batches_are_planned_or_interrupted(database: Database) -> None:
    """None are due while the job is paused."""
    first, second, third, fourth, fifth = planned(database, 5)
    publish(database, first)
    for batch, status in ((second, AttemptStatus.ABANDONED), (third, AttemptStatus.FAILED)):
        fail(database, batch, status=status)
    with claimed(database, fourth):
        due = list(database.change_feed.due("orders", [JobKind.INCREMENTAL]))
    assert [(status.batch, status.state, status.attempts) for status in due] == [
        (second, BatchState.INTERRUPTED, 1),
        (fifth, BatchState.PLANNED, 0),
    ]
    database.jobs.pause("orders", "disk full")
    assert list(database.change_feed.due("orders", [JobKind.INCREMENTAL])) == []


def test_due_batches_span_pages_without_gaps(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_feed, "_PAGE", 2)
    batches = planned(database, 5)
    due = database.change_feed.due("orders", [JobKind.INCREMENTAL])
    assert [status.batch for status in due] == batches


@pytest.mark.parametrize("ends_with", ["publish", "cancel"])
def test_backfill_is_open_until_its_last_batch_ends(database: Database, ends_with: str) -> None:
    planned(database)
    [batch] = planned_backfill(database, "a")
    assert database.change_feed.open_backfills("orders") == ["orders.a"]
    with claimed(database, batch) as attempt:
        assert database.change_feed.open_backfills("orders") == ["orders.a"]
        database.attempts.fail(attempt, "why", AttemptStatus.ABANDONED)
    if ends_with == "publish":
        publish(database, batch)
    else:
        database.jobs.cancel("orders.a")
    assert database.change_feed.open_backfills("orders") == []


def test_recent_runs_are_those_of_attempts_of_the_last_two_minutes(database: Database) -> None:
    first, second = planned(database, 2)
    publish(database, first)
    assert len(database.change_feed.recent_runs("orders")) == 1
    assert database.change_feed.recent_runs("refunds") == []
    execute(database, "UPDATE batch_pipeline.attempt SET started_at = now() - interval '3 minutes'")
    assert database.change_feed.recent_runs("orders") == []
    with claimed(database, second):
        assert len(database.change_feed.recent_runs("orders")) == 1
