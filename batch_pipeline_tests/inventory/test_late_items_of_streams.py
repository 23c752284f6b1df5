"""Streams on the product's own meta table are audited like any other job."""

from dataclasses import replace

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.audit import Audit
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.job import JobKind
from batch_pipeline_tests.factories import encoded, item_report, stream
from batch_pipeline_tests.inventory.audit_fixture import row_counts
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.seeds import claimed, execute, planned, query

ROW = (
    "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
    "VALUES ('orders', :id, 'file:///landing/late.csv', 10, now())"
)


def publish(database: Database, one: Batch) -> list[int]:
    """Publish what a batch has, and give the ids of its items."""
    ids = [item.id for item in database.meta_table("orders").items(one)]
    with claimed(database, one) as attempt:
        reports = tuple(item_report(uid) for uid in ids)
        what = encoded(attempt.stem, items=reports)
        database.attempts.publish(attempt, what, stream())
    return ids


def audit(database: Database) -> Audit:
    """Audit the stream `orders`."""
    table = database.meta_table("orders").reflected()
    return database.late_arrivals.audit("orders", table)


def late_batch(database: Database) -> Batch:
    """Read the only late batch."""
    [(batch_id, job, first_id, last_id, ids)] = query(
        database,
        "SELECT b.id, j.name, b.first_id, b.last_id, b.item_ids FROM batch_pipeline.batch b "
        "JOIN batch_pipeline.job j ON j.id = b.job_id WHERE b.item_ids IS NOT NULL",
    )
    id_range = IdRange(first_id=first_id, last_id=last_id)
    return Batch(
        id=batch_id, job=job, id_range=id_range, weight=10, count=len(ids), item_ids=tuple(ids)
    )


def test_registered_stream_has_no_late_items(database: Database) -> None:
    """Expect a clean report, and no neighbour's items in it."""
    for one in (*planned(database, 2), *planned(database, 1, name="other")):
        if one.job == "orders":
            assert len(publish(database, one)) == 3
    before = row_counts(database)
    found = audit(database)
    assert (found.batches, found.is_clean) == (2, True)
    assert row_counts(database) == before


def test_item_inserted_below_the_bookmark_is_in_one_batch_only(database: Database) -> None:
    """Expect the late batch to hold it, and a second generation of the first batch not to."""
    first, second = planned(database, 2)
    execute(database, "DELETE FROM batch_pipeline.item WHERE id = 2")
    assert publish(database, first) == [1, 3]
    assert publish(database, second) == [4, 5, 6]
    execute(database, ROW, id=2)
    found = audit(database)
    assert (found.late.first, found.changed.count) == ((2,), 1)
    late = late_batch(database)
    assert (late.job, late.item_ids) == ("orders.late", (2,))
    assert publish(database, late) == [2]
    assert publish(database, first) == [1, 3]
    again = audit(database)
    assert (again.late.count, again.known) == (0, 1)
    check_invariants(database)


def test_late_job_of_a_stream_belongs_to_it_and_goes_with_it(database: Database) -> None:
    """Expect stream and parent to be set, the stream's batches to be as before, and nothing left
    once the stream is forgotten.
    """
    [one] = planned(database)
    execute(database, "DELETE FROM batch_pipeline.item WHERE id = 2")
    publish(database, one)
    execute(database, ROW, id=2)
    audit(database)
    jobs = query(
        database, "SELECT name, kind, stream, parent_id IS NOT NULL FROM batch_pipeline.job"
    )
    assert ("orders.late", JobKind.LATE, "orders", True) in jobs
    assert [status.batch.id for status in database.batches.statuses("orders")] == [one.id]
    database.delete_stream("orders")
    assert row_counts(database) == [(0, 0, 0, 0, 0)]


def test_item_whose_change_was_accepted_counts_as_changed_until_it_is_published_again(
    database: Database,
) -> None:
    """Expect the weight of the items as they were read to be what is compared."""
    [one] = planned(database)
    publish(database, one)
    execute(database, "UPDATE batch_pipeline.item SET size_bytes = 11 WHERE id = 2")
    assert audit(database).changed.first == (one.key,)
    with claimed(database, one) as attempt:
        reports = tuple(item_report(uid) for uid in (1, 2, 3))
        result = encoded(attempt.stem, items=reports).result
        what = replace(encoded(), result=result, weight=31)
        database.attempts.publish(attempt, what, stream())
    assert audit(database).is_clean
