"""What is new of batches since somebody looked: planned, published, due; and what marks miss."""

from collections.abc import Mapping

import pytest

from batch_pipeline.inventory.change_feed import Changes, Cursor
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import AttemptStatus, BatchState
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.job import JobKind
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.seeds import claimed, plan, planned, publish, register


def _since(database: Database, marks: Mapping[int, Cursor] | None = None) -> Changes:
    return database.change_feed.since("orders", [JobKind.INCREMENTAL], marks or {})


def _plan_backfill(database: Database, name: str, last_id: int) -> None:
    selection = Selection(ids=IdRange(first_id=1, last_id=last_id))
    request = Backfill.of_stream("orders", name, selection, limits(max_count=3))
    database.backfills.plan(request, database.meta_table("orders"))


def test_news_without_marks_are_all_batches(database: Database) -> None:
    """Expect every batch as planned, in order, and the published one as published too."""
    first, second = planned(database, 2)
    publish(database, first)
    news = _since(database)
    assert list(news.planned) == [first, second]
    assert list(news.published) == [first]


def test_news_above_marks_are_what_came_since(database: Database) -> None:
    """Expect nothing twice: not the batches, not what was published, nor what never moved."""
    first, second = planned(database, 2)
    publish(database, first)
    marks = _since(database).cursors
    nothing = Changes(planned=[], published=[], generations={}, cursors=marks)
    assert _since(database, marks) == nothing
    publish(database, second)
    register(database, 3, first=7)
    [third] = plan(database, limits(max_count=3))
    news = _since(database, marks)
    assert (list(news.planned), list(news.published)) == ([third], [second])
    assert _since(database, news.cursors).published == []


def test_news_tell_once_what_was_published_twice(database: Database) -> None:
    """Expect a batch of two generations to be there once, and again after two more, each time with
    the newest."""
    [one] = planned(database)
    publish(database, one)
    publish(database, one)
    news = _since(database)
    assert (list(news.published), news.generations) == ([one], {one.id: 2})
    publish(database, one)
    publish(database, one)
    later = _since(database, news.cursors)
    assert (list(later.published), later.generations) == ([one], {one.id: 4})


def test_news_of_one_job_do_not_hide_those_of_another(database: Database) -> None:
    """Expect the halves of a batch of an older job to be news, though a younger job has been read
    further before they were made; the batch that they took the place of is none."""
    planned(database, 2)
    _plan_backfill(database, "a", 3)
    marks = database.change_feed.since("orders", [JobKind.BACKFILL], {}).cursors
    _plan_backfill(database, "b", 6)
    further = database.change_feed.since("orders", [JobKind.BACKFILL], marks)
    [split, *_] = database.backfills.of_all("orders")
    table = database.meta_table("orders").reflected()
    halves = database.jobs.split("orders.a", split.batch.id, table)
    news = database.change_feed.since("orders", [JobKind.BACKFILL], further.cursors)
    assert {one.job for one in further.planned} == {"orders.b"}
    assert list(news.planned) == list(halves)
    everything = database.change_feed.since("orders", [JobKind.BACKFILL], {})
    assert split.batch not in everything.planned


def test_due_batches_are_the_planned_and_the_interrupted_ones(database: Database) -> None:
    """Expect neither running, failed nor published ones, and interrupted ones in their place."""
    first, second, third, fourth, fifth = planned(database, 5)
    publish(database, first)
    for one, status in ((second, AttemptStatus.ABANDONED), (third, AttemptStatus.FAILED)):
        with claimed(database, one) as attempt:
            database.attempts.fail(attempt, "why", status)
    with claimed(database, fourth):
        due = list(database.change_feed.due("orders", [JobKind.INCREMENTAL]))
    assert [(one.batch, one.state, one.attempts) for one in due] == [
        (second, BatchState.INTERRUPTED, 1),
        (fifth, BatchState.PLANNED, 0),
    ]


def test_due_batches_of_a_paused_job_wait(database: Database) -> None:
    """Expect none while the job is paused."""
    planned(database)
    database.jobs.pause("orders", "disk full")
    assert list(database.change_feed.due("orders", [JobKind.INCREMENTAL])) == []


def test_due_batches_come_in_pages_without_a_gap(database: Database) -> None:
    """Expect more batches than a page has, each once and in order."""
    register(database, 1_005)
    batches = plan(database, limits(max_count=1))
    due = database.change_feed.due("orders", [JobKind.INCREMENTAL])
    assert [one.batch for one in due] == batches


@pytest.mark.parametrize("ends_with", ["publish", "cancel"])
def test_backfill_is_open_until_its_last_batch_ends(database: Database, ends_with: str) -> None:
    """Expect a backfill to be named while a batch of it waits or runs, and no longer."""
    planned(database)
    _plan_backfill(database, "a", 3)
    [status] = database.backfills.of_all("orders")
    assert database.change_feed.open_backfills("orders") == ["orders.a"]
    with claimed(database, status.batch) as attempt:
        assert database.change_feed.open_backfills("orders") == ["orders.a"]
        database.attempts.fail(attempt, "why", AttemptStatus.ABANDONED)
    if ends_with == "publish":
        publish(database, status.batch)
    else:
        database.jobs.cancel("orders.a")
    assert database.change_feed.open_backfills("orders") == []
