"""Streams on users' own tables: planning, items, audits, backfills and invalid rows."""

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.connection import fetch_column
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.sources import MetaSources, UserMetaTable
from batch_pipeline.inventory.tables import ceiling_candidate
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import Batch, IdRange
from batch_pipeline.model.errors import (
    BadWeightError,
    BatchDataError,
    InvalidValueError,
    JobChangedError,
    MetaTableError,
    MetaTableRestartedError,
    MetaUnreachableError,
    UnknownMetaTableError,
)
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.record_rules import OnBadFile
from batch_pipeline.model.stream import Strategy, TableSource
from batch_pipeline_tests.factories import encoded, item_report, limits, stream
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.test_next_id import RESTART
from batch_pipeline_tests.inventory.meta_tables.user_tables import CREATE_FILES, MARIADB, execute
from batch_pipeline_tests.seeds import claimed, unplanned

DATABASES = ["postgres", "sqlite", *(["mariadb"] if MARIADB else [])]
FILES = TableSource(
    table="files",
    roots=("file:///landing", "s3://bucket/in"),
    uid="id",
    item="file_location",
    weight="size_in_bytes",
)


@dataclass
class UserTableFixture:
    """A stream `orders` on a table in a user's database, and the inventory."""

    database: Database
    engine: sa.Engine
    table: UserMetaTable

    def with_source(self, **changes: Any) -> UserMetaTable:
        """Return the table with a changed configuration."""
        return replace(self.table, table_source=replace(self.table.table_source, **changes))

    def insert(self, *ids: int, **values: Any) -> None:
        """Insert rows of 10 bytes whose files are named after their ids."""
        table = self.table.table_source.table
        for uid in ids:
            row = {"id": uid, "file_location": f"/landing/{uid}.csv", "size_in_bytes": 10} | values
            columns, placeholders = ", ".join(row), ", ".join(f":{name}" for name in row)
            execute(self.engine, f"INSERT INTO {table} ({columns}) VALUES ({placeholders})", **row)  # noqa: S608 - names of this test

    def execute(self, statement: str) -> None:
        """Run a statement in the user's database; `files` stands for the table."""
        execute(self.engine, statement.replace("files", self.table.table_source.table))

    def plan(self, table: UserMetaTable | None = None, **bounds: Any) -> list[Batch]:
        """Plan with three items a batch and return the new batches."""
        done = self.database.batches.plan(
            table or self.table, limits(**({"max_count": 3} | bounds)), drain=True
        )
        if done.ids is None:
            return []
        return [status.batch for status in self.database.batches.statuses("orders", done.ids)]

    def publish(self, batch: Batch) -> list[int]:
        """Publish a batch and return the ids of its items."""
        items = self.table.items(batch)
        with claimed(self.database, batch) as attempt:
            reports = tuple(item_report(item.id) for item in items)
            what = replace(
                encoded(attempt.stem, items=reports), weight=sum(i.weight for i in items)
            )
            self.database.attempts.publish(attempt, what, stream())
        return [item.id for item in items]


def ranges(batches: list[Batch]) -> list[tuple[int, int, int]]:
    """Return first id, last id and item count of each batch."""
    return [(batch.id_range.first_id, batch.id_range.last_id, batch.count) for batch in batches]


def open_user_table(kind: str, engine: sa.Engine, database: Database) -> UserTableFixture:
    """Create an empty table on Postgres; the other databases already have it."""
    table_source = FILES
    if kind == "postgres":
        execute(engine, CREATE_FILES)
        table_source = replace(FILES, table="ops.files")
    sources = MetaSources(engine, database.engine)
    table = UserMetaTable(
        inventory=database.engine, sources=sources, stream="orders", table_source=table_source
    )
    return UserTableFixture(database, engine, table)


ON_SQLITE = pytest.mark.parametrize("orders", ["sqlite"], indirect=True)  # no SQL is tested


@pytest.fixture(params=DATABASES)
def orders(request: pytest.FixtureRequest, database: Database) -> UserTableFixture:
    """A stream on an empty table in each available database."""
    return open_user_table(request.param, request.getfixturevalue(request.param), database)


def test_rows_are_planned_up_to_watermark_and_read_as_items(orders: UserTableFixture) -> None:
    orders.insert(1, 2, 5, 8)
    assert unplanned(orders.database, orders.table) == (4, 40)
    assert ranges(orders.plan()) == [(1, 7, 3), (8, 8, 1)]
    assert orders.plan() == []
    orders.insert(9)
    assert unplanned(orders.database, orders.table) == (1, 10)
    [batch] = orders.plan()
    [item] = orders.table.items(batch)
    assert (item.id, item.weight, item.file.location) == (9, 10, "file:///landing/9.csv")
    assert (item.file.size_bytes, item.file.modified_at) == (None, None)
    assert orders.table.read_high_watermark().value == 9
    check_invariants(orders.database)


def test_rows_inserted_into_range_of_batch_are_late(orders: UserTableFixture) -> None:
    """Before the batch is encoded and before it is encoded again. They are read once."""
    orders.insert(1, 2, 5, 8)
    first, second = orders.plan()
    backfills = orders.database.backfills
    backfills.plan(Backfill.of_stream("orders", "2023", Selection(), limits()), orders.table)
    orders.insert(3)  # before the batch is encoded
    assert orders.publish(first) == [1, 2, 5]
    assert orders.publish(second) == [8]
    assert orders.database.batches.batch_of_item("orders", 3) is None
    assert [len(backfills.of_item("orders", item_id)) for item_id in (2, 3)] == [1, 0]
    orders.insert(6)  # before it is encoded again
    assert orders.publish(first) == [1, 2, 5]
    audits, reflected = orders.database.late_arrivals, orders.table.reflected()
    audit = audits.audit("orders", reflected, limits=limits())
    assert (audit.late.first, audit.missing.count, audit.changed.count) == ((3, 6), 0, 0)
    [late] = orders.database.batches.late_statuses("orders")
    assert orders.database.batches.batch_of_item("orders", 3) == late.batch
    assert orders.database.batches.batch_of_item("orders", 5) == first
    assert orders.publish(late.batch) == [3, 6]
    assert orders.publish(first) == [1, 2, 5]
    again = audits.audit("orders", reflected, limits=limits())
    assert (again.late.count, again.known) == (0, 2)
    orders.execute("UPDATE files SET size_in_bytes = -1 WHERE id = 3")  # fails its own batch only
    assert orders.publish(first) == [1, 2, 5]
    execute(orders.database.engine, "UPDATE batch_pipeline.batch SET id_runs = NULL")
    assert orders.publish(first) == [1, 2, 5]
    with pytest.raises(BatchDataError, match=r"the weight is -1; .* \(id 3\)"):
        orders.table.items(late.batch)
    check_invariants(orders.database)


@ON_SQLITE
def test_filter_selects_rows_and_cannot_change(orders: UserTableFixture) -> None:
    where = parse_filter([{"column": "size_in_bytes", "operator": "<", "value": 100}])
    orders.insert(1, 3)
    orders.insert(2, size_in_bytes=100)
    chosen = orders.with_source(where=where)
    [batch] = orders.plan(chosen)
    assert [item.id for item in chosen.items(batch)] == [1, 3]
    assert unplanned(orders.database, chosen) == (0, 0)
    with pytest.raises(JobChangedError, match="its filter differs"):
        orders.plan()


def test_table_without_weight_plans_by_count(orders: UserTableFixture) -> None:
    orders.insert(1, 2, 3, 4)
    unweighed = orders.with_source(weight=None)
    planned = orders.plan(unweighed)
    assert [(batch.count, batch.weight) for batch in planned] == [(3, 0), (1, 0)]
    assert [item.weight for item in unweighed.items(planned[1])] == [0]
    assert unweighed.backlog(None) == (4, 0)


def test_max_wait_counts_from_import_time_of_oldest_row(orders: UserTableFixture) -> None:
    """Without such a column the age is unknown."""
    dated = orders.with_source(imported="imported")
    orders.insert(1, 2)
    orders.execute("UPDATE files SET imported = '2020-01-01 00:00:00' WHERE id = 1")
    waited = [dated.oldest_age(None), dated.oldest_age(1)]
    assert waited[0] is not None
    assert waited[1] is not None
    assert waited[0] > timedelta(days=2000)
    assert timedelta(seconds=-1) <= waited[1] < timedelta(minutes=5)
    assert dated.oldest_age(2) is None
    assert orders.table.oldest_age(None) is None
    bounds = limits(min_weight=100, max_weight=100)
    assert orders.database.batches.plan(dated, bounds, drain=False).items == 2
    orders.insert(3)
    assert orders.database.batches.plan(dated, bounds, drain=False).items == 0


def test_watermark_is_stored_for_the_database_not_for_its_address(
    orders: UserTableFixture,
) -> None:
    orders.insert(1)
    orders.plan()
    identity = orders.table.reflected().database
    assert identity is not None
    scopes = fetch_column(orders.database.engine, sa.select(ceiling_candidate.c.scope))
    assert scopes == ([] if orders.engine.dialect.name == "sqlite" else [identity.shown])


def test_age_by_column_without_times_is_refused(orders: UserTableFixture) -> None:
    orders.insert(1)
    with pytest.raises(MetaTableError, match="file_location"):
        orders.with_source(imported="file_location").oldest_age(None)
    dated = orders.with_source(imported="imported")
    kind = orders.engine.dialect.name
    if kind == "sqlite":
        orders.execute("UPDATE files SET imported = '2020-01-01T00:00:00Z'")
        waited = dated.oldest_age(None)
        assert waited is not None
        assert waited > timedelta(days=2000)
    elif kind == "postgresql":
        orders.execute("UPDATE files SET imported = '-infinity'")
        with pytest.raises(MetaTableError, match=r"imported.*infinity"):
            dated.oldest_age(None)
    else:
        orders.execute("UPDATE IGNORE files SET imported = '0000-00-00'")
        with pytest.raises(MetaTableError, match="imported"):
            dated.oldest_age(None)


def test_rows_younger_than_settle_delay_are_not_planned(orders: UserTableFixture) -> None:
    orders.insert(1, 2)
    orders.execute("UPDATE files SET imported = '2020-01-01 00:00:00' WHERE id = 1")
    settling = orders.with_source(
        imported="imported", ceiling=Strategy.SETTLE, settle=timedelta(hours=1)
    )
    assert ranges(orders.plan(settling)) == [(1, 1, 1)]
    assert settling.read_high_watermark().strategy is Strategy.SETTLE
    soon = orders.with_source(
        imported="imported", ceiling=Strategy.SETTLE, settle=timedelta(microseconds=1)
    )
    orders.execute("UPDATE files SET imported = '2020-01-01 00:00:00'")
    assert soon.high_watermark() == 2
    orders.insert(3)
    assert settling.high_watermark() == 2
    assert soon.high_watermark() is not None
    orders.execute("UPDATE files SET imported = CURRENT_TIMESTAMP WHERE id = 2")
    assert settling.high_watermark() == 2  # each delay has its own state


def test_find_by_id_path_uri_or_name(orders: UserTableFixture) -> None:
    orders.insert(1, 12)
    orders.insert(3, file_location="file:///landing/a%20b.csv")
    orders.insert(4, file_location="relative.csv")
    orders.insert(5, file_location="file:///landing/big.csv#bytes=0-99")
    orders.insert(6, file_location="file:///landing/big.csv#bytes=100-199")
    orders.insert(7, file_location="s3a://bucket/in/a b.csv")
    orders.insert(8, file_location="s3://bucket/in/big.csv#bytes=0-99")
    orders.insert(9, file_location="file:///landing/12")
    orders.insert(10, file_location="file:///landing/caf%E9.csv")
    for text, ids in (
        ("/landing/big.csv", [5, 6]),
        ("big.csv", [5, 6, 8]),
        ("file:///landing/big.csv#bytes=100-199", [6]),
        ("12", [9, 12]),
        ("/landing/12.csv", [12]),
        ("file:///landing/12.csv", [12]),
        ("12.csv", [12]),
        ("a%20b.csv", [3]),
        ("/landing/a b.csv", [3]),
        ("s3://bucket/in/a b.csv", [7]),
        ("s3n://bucket/in/a b.csv", [7]),
        ("s3://bucket/in/big.csv", [8]),
        ("s3://bucket/in/big.csv#bytes=0-99", [8]),
        ("a b.csv", [3, 7]),
        ("caf\udce9.csv", [10]),
        ("s3://bucket/\udce9", []),
        ("", []),
        ("relative.csv", [4]),
        ("2.csv", []),
        ("2", []),
        ("1_.csv", []),
        ("%", []),
        ("9" * 30, []),
        ("²", []),
    ):
        assert [item.id for item in orders.table.find(text)] == ids, text


def test_backfill_selects_by_id_and_import_time(orders: UserTableFixture) -> None:
    orders.insert(1, 2, 3, 4)
    orders.plan()
    orders.execute("UPDATE files SET imported = '2020-01-01 00:00:00' WHERE id > 2")
    dated = orders.with_source(imported="imported")
    old = Selection(until=datetime.fromisoformat("2021-01-01T00:00:00+00:00"))
    by_time = Backfill.of_stream("orders", "old", old, limits())
    middle = Selection(ids=IdRange(first_id=2, last_id=3))
    by_ids = Backfill.of_stream("orders", "middle", middle, limits())
    assert orders.database.backfills.estimate(by_time, dated).items == 2
    assert orders.database.backfills.plan(by_time, dated).items == 2
    assert str(orders.database.backfills.plan(by_ids, orders.table).ids) == "2..3"
    [status] = orders.database.backfills.statuses("orders.old", dated.name)
    assert [item.id for item in dated.items(status.batch)] == [3, 4]
    unnamed = Backfill.of_stream("orders", "other", old, limits())
    with pytest.raises(InvalidValueError, match="the name of a column of times"):
        orders.database.backfills.plan(unnamed, orders.table)


@ON_SQLITE
def test_stream_with_items_of_another_table_is_rejected(orders: UserTableFixture) -> None:
    orders.database.batches.plan(orders.database.meta_table("orders"), limits(), drain=True)
    orders.insert(1)
    with pytest.raises(MetaTableError, match=r"come from batch_pipeline\.item, but .* now names"):
        orders.plan()


@ON_SQLITE
def test_invalid_location_fails_batch(orders: UserTableFixture) -> None:
    """The message names table, id and value, without the password."""
    locations = ("relative.csv", "s3://key:hunter2@bucket/x", "", None)
    for uid, location in enumerate(locations, start=1):
        orders.insert(uid, file_location=location)
    orders.insert(5)
    *bad, good = orders.plan(max_count=1)
    for batch, location in zip(bad, locations, strict=True):
        with pytest.raises(BatchDataError, match="Correct the row and run again") as caught:
            orders.table.items(batch)
        message = str(caught.value)
        assert orders.table.name in message
        assert f"(id {batch.id_range.first_id})" in message
        assert str(location or "").partition("key")[0] in message
        assert "hunter2" not in message
    assert [item.id for item in orders.table.items(good)] == [5]


@pytest.mark.guarantee("S1")
@ON_SQLITE
def test_location_outside_roots_fails_batch(orders: UserTableFixture) -> None:
    """The message names the location and the setting that would allow it."""
    locations = ("/etc/passwd", "/landing-of-others/2.csv", "s3://bucket/2.csv", "file:///landing")
    for uid, location in enumerate(locations, start=1):
        orders.insert(uid, file_location=location)
    everywhere = orders.with_source(roots=("file:///", "s3://bucket"))
    for batch, location in zip(orders.plan(max_count=1), locations, strict=True):
        outside = "is outside `source.meta_table.roots`"
        with pytest.raises(BatchDataError, match=re.escape(outside)) as caught:
            orders.table.items(batch)
        assert f"the location is {location}, which is outside" in str(caught.value)
        assert len(everywhere.items(batch)) == 1


@pytest.mark.guarantee("S1")
@ON_SQLITE
def test_truncated_location_is_no_valid_location(orders: UserTableFixture) -> None:
    """A quarantined location must not become another file when it is truncated."""
    long = f"file:///landing/{'a' * 300}/../../etc/passwd"
    orders.insert(1, file_location=long)
    orders.insert(2, file_location="relative.csv")
    [batch] = orders.plan()
    items = replace(orders.table, on_bad_file=OnBadFile.QUARANTINE).items(batch)
    assert [item.file.location for item in items] == [f"<{long[:300]}>", "relative.csv"]


@ON_SQLITE
def test_bad_weight_stops_planning_before_its_row(orders: UserTableFixture) -> None:
    orders.insert(1, 2, 3, 4, 6)
    orders.insert(5, size_in_bytes=None)
    assert ranges(orders.plan()) == [(1, 3, 3), (4, 4, 1)]
    with pytest.raises(BadWeightError, match="the weight of id 5 is NULL"):
        orders.plan()
    assert ranges(orders.plan(orders.with_source(on_bad_weight=7))) == [(5, 6, 2)]
    check_invariants(orders.database)


def test_negative_ids_are_rejected_unless_filtered_out(orders: UserTableFixture) -> None:
    orders.insert(-3, 0, 2)
    with pytest.raises(MetaTableError, match="the id -3 is negative"):
        orders.plan()
    where = parse_filter([{"column": "id", "operator": ">=", "value": 0}])
    [batch] = orders.plan(orders.with_source(where=where))
    assert batch.key == "00000000-00000002"
    listed = Backfill.of_stream("orders", "2023", Selection(item_ids=(-3, 2)), limits())
    with pytest.raises(MetaTableError, match="the id -3 is negative"):
        orders.database.backfills.plan(listed, orders.table)


def test_restarted_ids_are_reported(orders: UserTableFixture) -> None:
    orders.insert(1, 2, 3)
    orders.plan()
    execute(orders.engine, *RESTART[orders.engine.dialect.name])
    orders.execute("INSERT INTO files (file_location, size_in_bytes) VALUES ('/a.csv', 1)")
    with pytest.raises(MetaTableRestartedError, match="truncated or replaced"):
        orders.plan()


def test_renamed_column_is_detected(orders: UserTableFixture) -> None:
    orders.insert(1)
    [batch] = orders.plan()
    orders.execute("ALTER TABLE files RENAME COLUMN file_location TO place")
    with pytest.raises(MetaTableError, match="no column 'file_location'"):
        orders.table.items(batch)
    renamed = orders.with_source(item="place")
    assert [item.id for item in renamed.items(batch)] == [1]


def test_unusable_table_source_is_rejected(orders: UserTableFixture) -> None:
    is_sqlite = orders.engine.dialect.name == "sqlite"
    invalid: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"table": "fils"}, UnknownMetaTableError, "No table or view"),
        ({"imported": "no", "ceiling": Strategy.SETTLE}, MetaTableError, "has no column 'no'"),
        ({"uid": "size_in_bytes"}, MetaTableError, "cannot be the uid"),
        (
            {"ceiling": Strategy.LOCKS if is_sqlite else Strategy.SQLITE},
            MetaTableError,
            "Omit the strategy",
        ),
    ]
    for changes, error, message in invalid:
        with pytest.raises(error, match=message):
            orders.plan(orders.with_source(**changes))
    assert orders.database.batches.statuses("orders") == []


def test_unreachable_database_raises_and_creates_no_job(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("gone")
    engine = sa.create_engine(f"sqlite:///file:{folder}/no.db?mode=rw&uri=true")
    orders = open_user_table("sqlite", engine, database)
    with pytest.raises(MetaUnreachableError):
        orders.plan()
    assert database.jobs.jobs() == []
