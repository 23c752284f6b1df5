"""Streams whose items are rows of a user's own table, and what can be wrong with it."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.sources import MetaSources, UserMetaTable
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import Batch
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
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.record_rules import OnBadFile
from batch_pipeline.model.stream import Strategy, TableSource
from batch_pipeline_tests.factories import encoded, item_report, limits, stream
from batch_pipeline_tests.inventory.invariants import check_invariants
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
class Scene:
    """An inventory, a user's database, and the table of the stream `orders` there."""

    database: Database
    engine: sa.Engine
    table: UserMetaTable

    def described(self, **changes: Any) -> UserMetaTable:
        """Give the table as another stream file describes it."""
        return replace(self.table, table_source=replace(self.table.table_source, **changes))

    def insert(self, *ids: int, **values: Any) -> None:
        """Insert rows of 10 bytes whose files are named after their ids."""
        table = self.table.table_source.table
        for uid in ids:
            row = {"id": uid, "file_location": f"/landing/{uid}.csv", "size_in_bytes": 10} | values
            columns, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
            execute(self.engine, f"INSERT INTO {table} ({columns}) VALUES ({marks})", **row)  # noqa: S608 - names of this test

    def execute(self, statement: str) -> None:
        """Run a statement in the user's database; `files` stands for the table."""
        execute(self.engine, statement.replace("files", self.table.table_source.table))

    def plan(self, table: UserMetaTable | None = None, **bounds: Any) -> list[Batch]:
        """Plan with three items a batch, and give the new batches."""
        done = self.database.batches.plan(
            table or self.table, limits(**({"max_count": 3} | bounds)), drain=True
        )
        if done.ids is None:
            return []
        return [one.batch for one in self.database.batches.statuses("orders", done.ids)]

    def publish(self, one: Batch) -> list[int]:
        """Publish what a batch has, and give the ids of its items."""
        items = self.table.items(one)
        with claimed(self.database, one) as attempt:
            reports = tuple(item_report(item.id) for item in items)
            what = replace(
                encoded(attempt.stem, items=reports), weight=sum(i.weight for i in items)
            )
            self.database.attempts.publish(attempt, what, stream())
        return [item.id for item in items]


def ranges(batches: list[Batch]) -> list[tuple[int, int, int]]:
    """Give first id, last id and number of items of batches."""
    return [(one.id_range.first_id, one.id_range.last_id, one.count) for one in batches]


def open_scene(kind: str, engine: sa.Engine, database: Database) -> Scene:
    """Make an empty table on Postgres; the others have one."""
    described = FILES
    if kind == "postgres":
        execute(engine, CREATE_FILES)
        described = replace(FILES, table="ops.files")
    sources = MetaSources(engine, database.engine)
    table = UserMetaTable(
        inventory=database.engine, sources=sources, stream="orders", table_source=described
    )
    return Scene(database, engine, table)


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


def test_stream_that_was_listed_by_another_table_is_refused(scene: Scene) -> None:
    """Expect an error that names both tables, since their ids have nothing in common."""
    scene.database.batches.plan(scene.database.meta_table("orders"), limits(), drain=True)
    scene.insert(1)
    with pytest.raises(MetaTableError, match=r"listed by batch_pipeline\.item so far, and .* now"):
        scene.plan()


@pytest.mark.parametrize("written", ["relative.csv", "s3://key:hunter2@bucket/x", "", None])
def test_row_without_a_usable_location_fails_its_batch(scene: Scene, written: str | None) -> None:
    """Expect table, id and value in the message, no password, and the neighbours to be read."""
    scene.insert(1, 4)
    scene.insert(2, file_location=written)
    bad, good = scene.plan(max_count=2)
    with pytest.raises(BatchDataError, match="Correct the row and run again") as caught:
        scene.table.items(bad)
    told = str(caught.value)
    assert scene.table.name in told
    assert "(id 2)" in told
    assert str(written or "").partition("key")[0] in told
    assert "hunter2" not in told
    assert [item.id for item in scene.table.items(good)] == [4]


def test_row_without_a_usable_location_can_be_set_aside(scene: Scene) -> None:
    """Expect `on_bad_file: quarantine` to leave the refusal to whoever opens the file."""
    scene.insert(1)
    scene.insert(2, file_location="relative.csv")
    [one] = scene.plan()
    items = replace(scene.table, on_bad_file=OnBadFile.QUARANTINE).items(one)
    assert [item.file.location for item in items] == ["file:///landing/1.csv", "relative.csv"]


@pytest.mark.guarantee("S1")
@pytest.mark.parametrize(
    "written", ["/etc/passwd", "/landing-of-others/2.csv", "s3://bucket/2.csv", "file:///landing"]
)
def test_row_of_a_file_outside_of_the_roots_fails_its_batch(scene: Scene, written: str) -> None:
    """Expect the location, and the key that would let it in, before anything is opened."""
    scene.insert(1)
    scene.insert(2, file_location=written)
    [one] = scene.plan()
    with pytest.raises(
        BatchDataError, match=r"lies outside of `source\.meta_table\.roots`"
    ) as caught:
        scene.table.items(one)
    assert f"the location is {written}, which lies outside" in str(caught.value)
    roots = ("file:///", "s3://bucket")
    items = scene.described(roots=roots).items(one)
    assert [item.id for item in items] == [1, 2]


@pytest.mark.guarantee("S1")
def test_location_that_is_cut_to_be_shown_is_none_any_more(scene: Scene) -> None:
    """Expect what is set aside for its location not to become another file by losing its end."""
    long = f"file:///landing/{'a' * 300}/../../etc/passwd"
    scene.insert(1, file_location=long)
    [one] = scene.plan()
    [item] = replace(scene.table, on_bad_file=OnBadFile.QUARANTINE).items(one)
    assert item.file.location == f"<{long[:300]}>"


def test_refused_weight_stops_planning_right_before_it(scene: Scene) -> None:
    """Expect all rows before it to be planned, then the error, and the rest once it is mended."""
    scene.insert(1, 2, 3, 4, 6)
    scene.insert(5, size_in_bytes=None)
    assert ranges(scene.plan()) == [(1, 3, 3), (4, 4, 1)]
    with pytest.raises(BadWeightError, match="the weight of id 5 is NULL"):
        scene.plan()
    assert ranges(scene.plan(scene.described(on_bad_weight=7))) == [(5, 6, 2)]
    check_invariants(scene.database)


def test_weight_that_went_bad_after_planning_fails_its_batch(scene: Scene) -> None:
    """Expect an error of the batch alone, with the id."""
    scene.insert(1, 2)
    [one] = scene.plan()
    scene.execute("UPDATE files SET size_in_bytes = -1 WHERE id = 2")
    with pytest.raises(BatchDataError, match=r"the weight is -1; .* \(id 2\)"):
        scene.table.items(one)


def test_negative_ids_are_refused_unless_the_filter_hides_them(scene: Scene) -> None:
    """Expect an error that says what to do, and after that batches from 0 on."""
    scene.insert(-3, 0, 2)
    with pytest.raises(MetaTableError, match="the id -3 is negative"):
        scene.plan()
    where = parse_filter([{"column": "id", "operator": ">=", "value": 0}])
    [one] = scene.plan(scene.described(where=where))
    assert one.key == "00000000-00000002"


def test_table_that_starts_again_is_told(scene: Scene) -> None:
    """Expect an error in place of new rows that would never be looked at."""
    scene.insert(1, 2, 3)
    scene.plan()
    if scene.engine.dialect.name == "postgresql":
        scene.execute("SELECT setval(pg_get_serial_sequence('files', 'id'), 3)")
        scene.execute("TRUNCATE files RESTART IDENTITY")
    elif scene.engine.dialect.name == "mysql":
        scene.execute("TRUNCATE files")
    else:
        scene.execute("DELETE FROM files")
        scene.execute("DELETE FROM sqlite_sequence")
    scene.execute("INSERT INTO files (file_location, size_in_bytes) VALUES ('/a.csv', 1)")
    with pytest.raises(MetaTableRestartedError, match="truncated or replaced"):
        scene.plan()


def test_column_that_is_renamed_under_way_is_noticed_at_once(scene: Scene) -> None:
    """Expect the table to be opened anew, and the missing column to be named."""
    scene.insert(1)
    [one] = scene.plan()
    scene.execute("ALTER TABLE files RENAME COLUMN file_location TO place")
    with pytest.raises(MetaTableError, match="no column 'file_location'"):
        scene.table.items(one)
    renamed = scene.described(item="place")
    assert [item.id for item in renamed.items(one)] == [1]


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"table": "fils"}, UnknownMetaTableError, "No table or view"),
        ({"uid": "no"}, MetaTableError, "has no column 'no'"),
        ({"imported": "no", "ceiling": Strategy.SETTLE}, MetaTableError, "has no column 'no'"),
        ({"uid": "size_in_bytes"}, MetaTableError, "cannot be the uid"),
    ],
)
def test_table_that_cannot_be_used_as_described_is_refused(
    scene: Scene, changes: dict[str, Any], error: type[Exception], told: str
) -> None:
    """Expect an error before anything is planned."""
    with pytest.raises(error, match=told):
        scene.plan(scene.described(**changes))
    assert scene.database.batches.statuses("orders") == []


def test_ceiling_that_the_database_does_not_have_is_refused(scene: Scene) -> None:
    """Expect the way of another database not to be taken."""
    is_sqlite = scene.engine.dialect.name == "sqlite"
    wrong = Strategy.LOCKS if is_sqlite else Strategy.SQLITE
    with pytest.raises(MetaTableError, match="Leave the strategy out"):
        scene.plan(scene.described(ceiling=wrong))


def test_database_that_does_not_answer_is_told_and_nothing_is_burnt(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Expect an error that can be waited out, and no job."""
    folder = tmp_path_factory.mktemp("gone")
    engine = sa.create_engine(f"sqlite:///file:{folder}/no.db?mode=rw&uri=true")
    table = UserMetaTable(
        inventory=database.engine,
        sources=MetaSources(engine, database.engine),
        stream="orders",
        table_source=FILES,
    )
    with pytest.raises(MetaUnreachableError):
        database.batches.plan(table, limits(), drain=True)
    assert database.jobs.jobs() == []
