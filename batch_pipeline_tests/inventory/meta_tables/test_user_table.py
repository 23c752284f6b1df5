"""Streams whose items are rows of a user's own table, planned and read by the product."""

from datetime import datetime, timedelta

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.errors import InvalidValueError, JobChangedError
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_table_fixture import (
    DATABASES,
    Scene,
    open_scene,
    ranges,
)
from batch_pipeline_tests.seeds import unplanned


@pytest.fixture(params=DATABASES)
def scene(request: pytest.FixtureRequest, database: Database) -> Scene:
    """An empty table in a database of each kind, beside the inventory's."""
    return open_scene(request.param, request.getfixturevalue(request.param), database)


def test_rows_are_planned_up_to_the_ceiling_and_read_as_items(scene: Scene) -> None:
    """Expect ranges that tile the ids, items with URI and weight, and the rest on the next look."""
    scene.insert(1, 2, 5, 8)
    assert unplanned(scene.database, scene.table) == (4, 40)
    assert ranges(scene.plan()) == [(1, 7, 3), (8, 8, 1)]
    assert scene.plan() == []
    scene.insert(9)
    assert unplanned(scene.database, scene.table) == (1, 10)
    [one] = scene.plan()
    [item] = scene.table.items(one)
    assert (item.id, item.weight, item.file.location) == (9, 10, "file:///landing/9.csv")
    assert (item.file.size_bytes, item.file.modified_at) == (None, None)
    assert scene.table.read_high_watermark().value == 9
    check_invariants(scene.database)


def test_rows_inserted_into_the_gap_of_a_batch_are_late_whenever_it_is_encoded(
    scene: Scene,
) -> None:
    scene.insert(1, 2, 5, 8)
    first, second = scene.plan()
    scene.insert(3)  # before the batch is encoded
    assert [item.id for item in scene.table.items(first)] == [1, 2, 5]
    scene.publish(first)
    scene.publish(second)
    scene.insert(6)  # before it is encoded again
    assert [item.id for item in scene.table.items(first)] == [1, 2, 5]
    scene.publish(first)
    reflected = scene.table.reflected()
    audit = scene.database.late_arrivals.audit("orders", reflected)
    assert (audit.late.first, audit.missing.count, audit.changed.count) == ((3, 6), 0, 0)
    [late] = scene.database.batches.late_statuses("orders")
    assert [item.id for item in scene.table.items(late.batch)] == [3, 6]
    assert scene.database.late_arrivals.audit("orders", reflected).late.count == 0
    check_invariants(scene.database)


def test_filter_chooses_the_rows_and_never_changes(scene: Scene) -> None:
    """Expect rows that do not fit to be in no batch, and another filter to be refused."""
    where = parse_filter([{"column": "size_in_bytes", "operator": "<", "value": 100}])
    scene.insert(1, 3)
    scene.insert(2, size_in_bytes=100)
    chosen = scene.described(where=where)
    [one] = scene.plan(chosen)
    assert [item.id for item in chosen.items(one)] == [1, 3]
    assert unplanned(scene.database, chosen) == (0, 0)
    with pytest.raises(JobChangedError, match="its filter differs"):
        scene.plan()


def test_table_without_a_weight_counts_items_only(scene: Scene) -> None:
    """Expect batches by number, of weight 0."""
    scene.insert(1, 2, 3, 4)
    unweighed = scene.described(weight=None)
    planned = scene.plan(unweighed)
    assert [(one.count, one.weight) for one in planned] == [(3, 0), (1, 0)]
    assert [item.weight for item in unweighed.items(planned[1])] == [0]


def test_oldest_row_tells_how_long_a_short_batch_has_waited(scene: Scene) -> None:
    """Expect `max_wait` to count from the time of import, and to be unknown without the column."""
    dated = scene.described(imported="imported")
    scene.insert(1, 2)
    scene.execute("UPDATE files SET imported = '2020-01-01 00:00:00' WHERE id = 1")
    waited = [dated.oldest_age(None), dated.oldest_age(1)]
    assert waited[0] is not None
    assert waited[1] is not None
    assert waited[0] > timedelta(days=2000)
    assert timedelta(seconds=-1) <= waited[1] < timedelta(minutes=5)
    assert dated.oldest_age(2) is None
    assert scene.table.oldest_age(None) is None
    bounds = limits(min_weight=100, max_weight=100)
    assert scene.database.batches.plan(dated, bounds, drain=False).items == 2
    scene.insert(3)
    assert scene.database.batches.plan(dated, bounds, drain=False).items == 0


def test_rows_younger_than_the_delay_are_left_alone(scene: Scene) -> None:
    """Expect the ceiling that the stream file asks for."""
    scene.insert(1, 2)
    scene.execute("UPDATE files SET imported = '2020-01-01 00:00:00' WHERE id = 1")
    settling = scene.described(
        imported="imported", ceiling=Strategy.SETTLE, settle=timedelta(hours=1)
    )
    assert ranges(scene.plan(settling)) == [(1, 1, 1)]
    assert settling.read_high_watermark().strategy is Strategy.SETTLE
    soon = scene.described(
        imported="imported", ceiling=Strategy.SETTLE, settle=timedelta(microseconds=1)
    )
    scene.execute("UPDATE files SET imported = '2020-01-01 00:00:00'")
    assert soon.high_watermark() == 2
    scene.insert(3)
    assert settling.high_watermark() == 2


def test_items_are_found_by_id_path_uri_and_name(scene: Scene) -> None:
    """Expect whatever a person has at hand to lead to the row."""
    scene.insert(1, 12)
    scene.insert(3, file_location="file:///landing/a%20b.csv")
    scene.insert(4, file_location="relative.csv")
    scene.insert(5, file_location="file:///landing/big.csv#bytes=0-99")
    scene.insert(6, file_location="file:///landing/big.csv#bytes=100-199")
    scene.insert(7, file_location="s3a://bucket/in/a b.csv")
    scene.insert(8, file_location="s3://bucket/in/big.csv#bytes=0-99")
    for what, ids in (
        ("/landing/big.csv", [5, 6]),
        ("big.csv", [5, 6, 8]),
        ("file:///landing/big.csv#bytes=100-199", [6]),
        ("12", [12]),
        ("/landing/12.csv", [12]),
        ("file:///landing/12.csv", [12]),
        ("12.csv", [12]),
        ("a%20b.csv", [3]),
        ("/landing/a b.csv", [3]),
        ("s3://bucket/in/a b.csv", [7]),
        ("s3n://bucket/in/a b.csv", [7]),
        ("s3://bucket/in/big.csv", [8]),
        ("s3://bucket/in/big.csv#bytes=0-99", [8]),
        ("a b.csv", [7]),
        ("relative.csv", [4]),
        ("2.csv", []),
        ("%", []),
    ):
        assert [item.id for item in scene.table.find(what)] == ids, what


def test_rows_of_objects_name_them_in_one_form(scene: Scene) -> None:
    """Expect Hadoop's names of S3 to mean the same object, and its key to stand as it is."""
    for uid, scheme in enumerate(("s3", "s3a", "s3n"), start=1):
        scene.insert(uid, file_location=f"{scheme}://bucket/in/a b%20.csv")
    [one] = scene.plan()
    locations = {item.file.location for item in scene.table.items(one)}
    assert locations == {"s3://bucket/in/a b%20.csv"}


def test_late_row_is_planned_by_the_audit_and_read_once(scene: Scene) -> None:
    """Expect the late batch to hold it, and a second attempt on the first batch not to."""
    scene.insert(1, 3, 5)
    [one] = scene.plan()
    assert scene.publish(one) == [1, 3, 5]
    scene.insert(2)
    audits = scene.database.late_arrivals
    found = audits.audit("orders", scene.table.reflected(), limits=limits())
    assert (found.late.first, found.batches) == ((2,), 1)
    [status] = scene.database.batches.late_statuses("orders")
    assert scene.database.batches.batch_of_item("orders", 2) == status.batch
    assert scene.database.batches.batch_of_item("orders", 3) == one
    assert scene.publish(status.batch) == [2]
    assert scene.publish(one) == [1, 3, 5]
    again = audits.audit("orders", scene.table.reflected(), limits=limits())
    assert (again.late.count, again.known) == (0, 1)
    check_invariants(scene.database)


def test_backfills_take_ids_and_times_of_the_table(scene: Scene) -> None:
    """Expect the column of imports to be the time that backfills mean."""
    scene.insert(1, 2, 3, 4)
    scene.plan()
    scene.execute("UPDATE files SET imported = '2020-01-01 00:00:00' WHERE id > 2")
    dated = scene.described(imported="imported")
    old = Selection(until=datetime.fromisoformat("2021-01-01T00:00:00+00:00"))
    by_time = Backfill.of_stream("orders", "old", old, limits())
    by_ids = Backfill.of_stream(
        "orders", "middle", Selection(ids=IdRange(first_id=2, last_id=3)), limits()
    )
    assert scene.database.backfills.estimate(by_time, dated).items == 2
    assert scene.database.backfills.plan(by_time, dated).items == 2
    assert scene.database.backfills.plan(by_ids, scene.table).ids == IdRange(first_id=2, last_id=3)
    [status] = scene.database.backfills.statuses("orders.old", dated.name)
    assert [item.id for item in dated.items(status.batch)] == [3, 4]
    unnamed = Backfill.of_stream("orders", "other", old, limits())
    with pytest.raises(InvalidValueError, match="the name of a column of times"):
        scene.database.backfills.plan(unnamed, scene.table)


def test_backfill_of_a_stream_that_was_never_planned_keeps_to_the_filter(scene: Scene) -> None:
    """Expect the stream's job to be made with the filter, so that it can be planned afterwards."""
    scene.insert(1, 3)
    scene.insert(2, size_in_bytes=100)
    where = parse_filter([{"column": "size_in_bytes", "operator": "<", "value": 100}])
    chosen = scene.described(where=where)
    everything = Backfill.of_stream("orders", "all", Selection(), limits())
    assert scene.database.backfills.plan(everything, chosen).items == 2
    assert [one.count for one in scene.plan(chosen)] == [2]
