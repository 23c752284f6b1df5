"""Published manifests: round trips, order, jobs of a stream, and the SQL views."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory import manifests as module
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.audit import Audit
from batch_pipeline.model.batch import AttemptStatus, Batch, IdRange
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.singer.messages import Bookmark
from batch_pipeline_tests.factories import (
    encoded,
    item_report,
    part_file,
    record_schema,
    stream,
)
from batch_pipeline_tests.inventory.audit_fixture import row_counts
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.seeds import (
    claimed,
    execute,
    fail,
    insert_item,
    planned,
    planned_backfill,
    publish,
    query,
    register,
)

TABLES = ("item", "job", "batch", "schema_version", "attempt", "part_file", "attempt_item")


def test_manifest_round_trips(database: Database, one: Batch) -> None:
    parts = tuple(part_file(f"part-{n}", records=1, size_bytes=2**40 + n) for n in range(12))
    bad = (part_file("bad", records=2),)
    items = (
        item_report(1, read=9, written=6, quarantined=2, filtered=1),
        item_report(2, read=6, written=6, quarantined=0),
        item_report(3, read=0, written=0, quarantined=0, bad_file="begins with \0"),
    )
    what = encoded(part_files=parts, quarantine_files=bad, items=items)
    with claimed(database, one) as attempt:
        manifest = database.attempts.publish(attempt, what, stream())
    assert (manifest.job, manifest.batch, manifest.token) == ("orders", one, attempt.token)
    assert manifest.encoding == Encoding(format=Format.JSONL, compression=Compression.GZIP)
    assert (manifest.schema, manifest.schema_version) == (record_schema("order_id"), 1)
    assert manifest.key_properties == ("order_id",)
    assert manifest.part_files == parts
    assert manifest.quarantine_files == bad
    assert (manifest.items, manifest.records) == (3, 12)
    counters = (manifest.records_read, manifest.records_filtered, manifest.records_quarantined)
    assert counters == (15, 1, 2)
    assert database.manifests.of_batch(one) == manifest
    assert database.manifests.of_attempt(attempt.id) == manifest
    reasons = query(database, "SELECT bad_file FROM batch_pipeline.attempt_item ORDER BY item_id")
    assert reasons == [(None,), (None,), ("begins with \\x00",)]


def test_manifest_of_batch_is_newest_generation(database: Database, one: Batch) -> None:
    """A generation without records has no files."""
    assert database.manifests.of_batch(one) is None
    publish(database, one)
    empty = item_report(read=0, written=0)
    second = publish(database, one, encoded(part_files=(), items=(empty,)))
    assert database.manifests.of_batch(one) == second
    assert (second.part_files, second.records, second.generation) == ((), 0, 2)


def test_without_pointer_returns_unrecorded_manifests(database: Database) -> None:
    first, second = planned(database, 2)
    manifests = [publish(database, second), publish(database, first)]
    assert list(database.manifests.without_pointer("orders")) == manifests
    database.attempts.record_pointer(manifests[0], "file:///batches/manifests/x.json")
    assert list(database.manifests.without_pointer("orders")) == manifests[1:]
    assert list(database.manifests.without_pointer("clicks")) == []


def test_published_after_number_beyond_last_is_rejected(database: Database) -> None:
    """The bookmark belongs to another inventory, and new batches would be skipped."""
    for batch in planned(database, 2):
        publish(database, batch)
    for name, job, number, published in (
        ("orders", "orders", 3, 2),
        ("orders", "orders.2023", 1, 0),
        ("clicks", "clicks", 1, 0),
    ):
        message = f"'{job}' was read up to publish number {number}, .* published {published}"
        with pytest.raises(ConfigurationError, match=message):
            list(database.manifests.published_after(name, {job: number}, backfills=False))


def test_published_after_other_manifest_at_number_is_rejected(database: Database) -> None:
    """A recreated inventory has published as many batches as the old one."""
    first, second = planned(database, 2)
    for batch in (first, second):
        publish(database, batch)
    read, manifests = {"orders": 1}, database.manifests
    [entry] = manifests.published_after("orders", read, last=("orders", first.label, 1))
    assert entry[0] == 2
    for label, generation in ((second.label, 1), (first.label, 2)):
        message = (
            f"number 1 of 'orders' was generation {generation} of {label}, .* 1 of {first.label}"
        )
        with pytest.raises(ConfigurationError, match=message):
            next(manifests.published_after("orders", read, last=("orders", label, generation)))


def test_count_removed_after_counts_manifests_with_removed_files(database: Database) -> None:
    for batch in planned(database, 3):
        publish(database, batch)
    execute(
        database,
        'UPDATE batch_pipeline.attempt SET facts = facts || \'{"files_removed_at": ""}\' '
        "WHERE publish_number = 2",
    )
    manifests = database.manifests
    assert [number for number, _ in manifests.published_after("orders", {})] == [1, 3]
    counts = [
        manifests.count_removed_after("orders", {"orders": number}) for number in (0, 1, 2, 3)
    ]
    assert counts == [1, 1, 0, 0]
    assert manifests.count_removed_after("orders", {}, backfills=False) == 1
    assert manifests.count_removed_after("clicks", {}) == 0


def test_inventory_view_columns(database: Database) -> None:
    columns = query(
        database,
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema || '.' ||"
        " table_name = 'batch_pipeline.inventory' ORDER BY ordinal_position",
    )
    assert [name for name, _ in columns] == [
        *("id", "meta_table", "job", "job_identifier", "job_result_item"),
        *("processing_start", "processing_end", "batch_id_start", "batch_id_end"),
        *("batch_weight", "batch_count", "attempt", "status", "logging", "config", "batch_id"),
    ]
    ids = {"id", "batch_id_start", "batch_id_end", "batch_weight", "batch_count", "batch_id"}
    assert {name for name, data_type in columns if data_type == "bigint"} == ids
    assert {name for name, data_type in columns if data_type == "json"} == {
        *("job_result_item", "config")
    }
    types = dict(columns)
    assert types["processing_start"] == types["processing_end"] == "timestamp with time zone"


def test_inventory_view_row_of_published_attempt(database: Database, one: Batch) -> None:
    fail(database, one, "line 3 is broken")
    parts = (part_file("b"), part_file("a", records=0))
    publish(database, one, encoded(part_files=parts))
    view = sa.text("SELECT * FROM batch_pipeline.inventory ORDER BY id")
    with database.engine.connect() as connection:
        failed, published = map(dict, connection.execute(view).mappings())
    times = published.pop("processing_start"), published.pop("processing_end")
    assert all(isinstance(time, datetime) for time in times)
    assert times[0] < times[1]
    assert published == {
        "id": failed["id"] + 1,
        "meta_table": "batch_pipeline.item",
        "job": "orders",
        "job_identifier": "run-1",
        "job_result_item": ["file:///batches/b", "file:///batches/a"],
        "batch_id_start": 1,
        "batch_id_end": 3,
        "batch_weight": 30,
        "batch_count": 3,
        "attempt": 2,
        "status": "succeeded",
        "logging": None,
        "config": {"max_weight": "100", "max_count": "3", "min_weight": "0", "max_wait": "0:05:00"},
        "batch_id": one.id,
    }
    assert (failed["attempt"], failed["status"], failed["job_result_item"]) == (1, "failed", [])
    assert failed["logging"] == "line 3 is broken"


def test_history_of_item_lists_all_attempts_of_its_batch(database: Database, one: Batch) -> None:
    """For objects, the version that was read is included."""
    fail(database, one, "line 3 is broken")
    object_read = item_report(2, read=0, written=0, etag="9a0364b9", version="v1")
    publish(database, one, encoded(items=(item_report(1), object_read)))
    failed, succeeded = database.history.of_item(one, 1)
    assert (failed.number, failed.status) == (1, AttemptStatus.FAILED)
    assert failed.error == "line 3 is broken"
    assert (failed.read, failed.generation) == (None, None)
    assert (succeeded.status, succeeded.generation) == (AttemptStatus.SUCCEEDED, 1)
    assert (succeeded.read, succeeded.written, succeeded.quarantined) == (5, 5, 0)
    assert (succeeded.read_etag, succeeded.read_version) == (None, None)
    second = database.history.of_item(one, 2)[1]
    assert (second.read_etag, second.read_version) == ("9a0364b9", "v1")
    assert database.history.of_item(one, 3)[1].read is None


def test_history_of_batch_has_billions_of_records(database: Database, one: Batch) -> None:
    publish(database, one)
    many = """UPDATE batch_pipeline.attempt SET facts = facts || '{"read": 3000000000}'"""
    execute(database, many)
    [published] = database.history.of_batch(one)
    assert published.read == 3_000_000_000


def test_delete_stream_keeps_other_streams(database: Database) -> None:
    for name in ("orders", "clicks"):
        publish(database, planned(database, name=name)[0])
    database.delete_stream("orders")
    for table in TABLES:
        (count,) = query(database, f"SELECT count(*) FROM batch_pipeline.{table}")[0]  # noqa: S608 - names from above
        assert count == (3 if table == "item" else 1), table
    register(database, 1)
    assert [item.id for item in database.meta_table("orders").find("1")] == [1]


def publish_items(database: Database, batch: Batch) -> list[int]:
    """Publish a batch and return the ids of its items."""
    ids = [item.id for item in database.meta_table("orders").items(batch)]
    with claimed(database, batch) as attempt:
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
    [status] = database.batches.late_statuses("orders")
    return status.batch


def test_item_inserted_below_bookmark_is_in_one_batch_only(database: Database) -> None:
    first, second = planned(database, 2)
    execute(database, "DELETE FROM batch_pipeline.item WHERE id = 2")
    assert publish_items(database, first) == [1, 3]
    assert publish_items(database, second) == [4, 5, 6]
    insert_item(database, 2)
    result = audit(database)
    assert (result.late.first, result.changed.count) == ((2,), 1)
    late = late_batch(database)
    assert (late.job, late.item_ids) == ("orders.late", (2,))
    assert publish_items(database, late) == [2]
    assert publish_items(database, first) == [1, 3]
    again = audit(database)
    assert (again.late.count, again.known) == (0, 1)
    check_invariants(database)
    late_job = database.jobs.jobs()[1]
    assert (late_job.job.name, late_job.job.kind) == ("orders.late", "late")
    assert (late_job.job.stream, late_job.parent) == ("orders", "orders")
    own = [status.batch.id for status in database.batches.statuses("orders")]
    assert own == [first.id, second.id]
    database.delete_stream("orders")
    assert row_counts(database) == [(0, 0, 0, 0, 0)]


def test_accepted_change_is_reported_until_republished(database: Database) -> None:
    [batch] = planned(database)
    publish_items(database, batch)
    execute(database, "UPDATE batch_pipeline.item SET size_bytes = 11 WHERE id = 2")
    assert audit(database).changed.first == (batch.key,)
    with claimed(database, batch) as attempt:
        during = audit(database)
        assert (during.batches, during.left_out) == (0, 1)
        reports = tuple(item_report(uid) for uid in (1, 2, 3))
        result = encoded(attempt.stem, items=reports).result
        what = replace(encoded(), result=result, weight=31)
        database.attempts.publish(attempt, what, stream())
    planned(database, 1, name="other")
    before, found = row_counts(database), audit(database)
    assert (found.batches, found.is_clean) == (1, True)
    assert row_counts(database) == before


def published_late_batch(database: Database, first: Batch) -> Batch:
    """Publish a batch without its second item, and plan that item as late."""
    execute(database, "DELETE FROM batch_pipeline.item WHERE id = 2")
    publish_items(database, first)
    insert_item(database, 2)
    audit(database)
    return late_batch(database)


def sent_generations(
    published: Iterator[tuple[int, Manifest]],
) -> list[tuple[str, int, str, int]]:
    """Return job, publish number, id range and generation of each manifest."""
    return [
        (manifest.batch.job, number, str(manifest.batch.id_range), manifest.generation)
        for number, manifest in published
    ]


@pytest.mark.parametrize("page", [1, 200])
def test_published_after_returns_stream_then_late_then_backfills(
    database: Database, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """And in publish order within each job, whichever job is older."""
    monkeypatch.setattr(module, "_PAGE", page)
    first, second, third = planned(database, 3)
    [old] = planned_backfill(database, "b", ids=IdRange(first_id=4, last_id=6))
    late = published_late_batch(database, first)
    [older] = planned_backfill(database, "a", ids=IdRange(first_id=1, last_id=3))
    for batch in (older, old, late, third, second):
        publish(database, batch)
    planned(database, name="clicks")
    manifests = database.manifests
    sent = sent_generations(manifests.published_after("orders", {}))
    assert sent == [
        ("orders", 1, "1..3", 1),
        ("orders", 2, "7..9", 1),
        ("orders", 3, "4..6", 1),
        ("orders.late", 1, "2..2", 1),
        ("orders.b", 1, "4..6", 1),
        ("orders.a", 1, "1..3", 1),
    ]
    own = manifests.published_after("orders", {}, backfills=False)
    assert sent_generations(own) == sent[:4]
    assert list(manifests.published_after("clicks", {})) == []


def test_published_after_bookmark_returns_exactly_the_rest(database: Database) -> None:
    first, second = planned(database, 2)
    late = published_late_batch(database, first)
    backfill = planned_backfill(database, "b", ids=IdRange(first_id=4, last_id=6))
    for batch in (second, late, *backfill):
        publish(database, batch)
    sent = list(database.manifests.published_after("orders", {}))
    bookmark = Bookmark()
    for position, (number, manifest) in enumerate(sent, start=1):
        bookmark = bookmark.after(manifest, number)
        rest = database.manifests.published_after("orders", bookmark.numbers)
        assert list(rest) == sent[position:]
    publish(database, first)
    publish(database, late)
    assert sent_generations(database.manifests.published_after("orders", bookmark.numbers)) == [
        ("orders", 3, "1..3", 2),
        ("orders.late", 2, "2..2", 2),
    ]


def test_generation_marked_superseded_is_not_sent(database: Database) -> None:
    """The next generation is sent instead, also to a new consumer."""
    first, second = planned(database, 2)
    for batch in (first, second, first):
        publish(database, batch)
    oldest = "SELECT min(id) FROM batch_pipeline.attempt"
    [(superseded,)] = query(database, oldest)
    assert database.stored_attempts.mark_superseded([superseded]) == {superseded}
    sent = sent_generations(database.manifests.published_after("orders", {}))
    assert sent == [("orders", 2, "4..6", 1), ("orders", 3, "1..3", 2)]


def test_slow_consumer_is_not_sent_replaced_generation(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that was read long ago is read again, because its files may be gone."""
    first, second, third = planned(database, 3)
    for batch in (first, second, third):
        publish(database, batch)
    monkeypatch.setattr(module, "_PAGE_MAX_AGE_SECONDS", -1)
    sent = database.manifests.published_after("orders", {})
    assert next(sent)[0] == 1
    publish(database, second)
    assert sent_generations(sent) == [("orders", 3, "7..9", 1), ("orders", 4, "4..6", 2)]
