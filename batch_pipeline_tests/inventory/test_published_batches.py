"""What consumers are sent: all jobs of a stream, each once, and no file that was given up."""

from collections.abc import Iterator

import pytest

from batch_pipeline.inventory import manifests as module
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.singer.bookmarks import Bookmark
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory import test_late_items_of_streams as late_items
from batch_pipeline_tests.seeds import execute, planned, publish, query


def backfill(database: Database, name: str, first_id: int, last_id: int) -> Batch:
    """Plan a backfill of one batch."""
    selection = Selection(ids=IdRange(first_id=first_id, last_id=last_id))
    request = Backfill.of_stream("orders", name, selection, limits(max_count=10))
    table = database.meta_table("orders")
    database.backfills.plan(request, table)
    [status] = database.backfills.statuses(f"orders.{name}", table.name)
    return status.batch


def late_batch(database: Database, first: Batch) -> Batch:
    """Publish a batch that lacks its second item, and plan the item as a late one."""
    execute(database, "DELETE FROM batch_pipeline.item WHERE id = 2")
    late_items.publish(database, first)
    execute(database, late_items.ROW, id=2)
    late_items.audit(database)
    return late_items.late_batch(database)


def told(
    published: Iterator[tuple[int, Manifest]],
) -> list[tuple[str, int, str, int]]:
    """Give job, publish number, batch and generation of what is sent."""
    return [
        (one.batch.job, number, str(one.batch.id_range), one.generation)
        for number, one in published
    ]


def attempt_ids(database: Database, generation: int) -> list[int]:
    """Read the ids of the attempts that published a generation."""
    rows = query(
        database,
        "SELECT id FROM batch_pipeline.attempt WHERE generation = :generation ORDER BY id",
        generation=generation,
    )
    return [attempt_id for (attempt_id,) in rows]


def test_published_after_gives_the_streams_own_then_late_then_backfills(database: Database) -> None:
    """Expect the jobs in this order, backfills as they were made, whatever was published first."""
    first, second = planned(database, 2)
    late = late_batch(database, first)
    old, older = backfill(database, "b", 4, 6), backfill(database, "a", 1, 3)
    for one in (older, old, late, second):
        publish(database, one)
    planned(database, name="clicks")
    sent = told(database.manifests.published_after("orders", {}))
    assert sent == [
        ("orders", 1, "1..3", 1),
        ("orders", 2, "4..6", 1),
        ("orders.late", 1, "2..2", 1),
        ("orders.b", 1, "4..6", 1),
        ("orders.a", 1, "1..3", 1),
    ]
    assert told(database.manifests.published_after("orders", {}, backfills=False)) == sent[:3]


def test_published_after_a_bookmark_gives_exactly_the_rest(database: Database) -> None:
    """Expect to be able to stop behind any manifest, and what is published later to come once."""
    first, second = planned(database, 2)
    late = late_batch(database, first)
    for one in (second, late, backfill(database, "b", 4, 6)):
        publish(database, one)
    sent = list(database.manifests.published_after("orders", {}))
    bookmark = Bookmark()
    for place, (number, manifest) in enumerate(sent, start=1):
        bookmark = bookmark.after(manifest, number)
        rest = database.manifests.published_after("orders", bookmark.numbers)
        assert list(rest) == sent[place:]
    publish(database, first)
    publish(database, late)
    assert told(database.manifests.published_after("orders", bookmark.numbers)) == [
        ("orders", 3, "1..3", 2),
        ("orders.late", 2, "2..2", 2),
    ]


def test_published_after_the_number_of_an_old_state_gives_other_jobs_whole(
    database: Database,
) -> None:
    """Expect a consumer that was never sent late items and backfills to get them now."""
    (first,) = planned(database)
    late = late_batch(database, first)
    publish(database, late)
    publish(database, backfill(database, "b", 1, 3))
    sent = told(database.manifests.published_after("orders", {"orders": 1}))
    assert sent == [("orders.late", 1, "2..2", 1), ("orders.b", 1, "1..3", 1)]


def test_generation_whose_files_were_given_up_is_never_sent(database: Database) -> None:
    """Expect the next generation in its place, also for a consumer that starts anew."""
    first, second = planned(database, 2)
    for one in (first, second, first):
        publish(database, one)
    [superseded, _] = attempt_ids(database, 1)
    assert database.stored_attempts.mark_superseded([superseded]) == {superseded}
    sent = told(database.manifests.published_after("orders", {}))
    assert sent == [("orders", 2, "4..6", 1), ("orders", 3, "1..3", 2)]


def test_slow_consumer_is_not_sent_what_was_replaced_meanwhile(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect a page that was read long ago to be read again: its files may be gone by now."""
    first, second, third = planned(database, 3)
    for one in (first, second, third):
        publish(database, one)
    monkeypatch.setattr(module, "_PAGE_MAX_AGE_SECONDS", -1)
    sent = database.manifests.published_after("orders", {})
    assert next(sent)[0] == 1
    publish(database, second)
    assert told(sent) == [("orders", 3, "7..9", 1), ("orders", 4, "4..6", 2)]
