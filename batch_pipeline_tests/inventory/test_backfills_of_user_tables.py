"""Backfills of users' meta tables: planned at once, handed out by acquire, never added to."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.acquire import AcquireRequest
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.inventory.meta_tables.watermarks import choose_watermark
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import Attempt, AttemptStatus, BatchState
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    JobChangedError,
    MetaTableError,
)
from batch_pipeline.model.filter import Condition, Filter, Operator
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.job import JobTerms
from batch_pipeline.model.planning import Planned
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    execute,
    insert,
)

NAME = "history"


@pytest.fixture
def table(database: Database) -> ReflectedMetaTable:
    """A table `ops.files` beside the inventory, with the ids 1..100 of weight 10."""
    execute(database.engine, "CREATE SCHEMA ops", CREATE_FILES)
    opened = ReflectedMetaTable.open(database.engine, "ops.files", FILES)
    insert(opened, dict.fromkeys(range(1, 101), 10))
    return opened


def source(table: ReflectedMetaTable, where: Filter | None = None) -> MetaSource:
    """The table below its ceiling, through a filter."""
    opened = ReflectedMetaTable.open(table.engine, table.canonical_name, FILES, where)
    return MetaSource(table=opened, choice=choose_watermark(opened))


def request(parent: str | None = None, **what: object) -> Backfill:
    """The backfill `history`, ten items a batch."""
    selection = Selection(**what)  # type: ignore[arg-type] # keywords of the tests
    return Backfill(name=NAME, limits=limits(), selection=selection, parent=parent)


def acquire(
    database: Database, table: MetaSource, name: str = NAME, **more: object
) -> Attempt | None:
    """Acquire as somebody who knows the job by its name only."""
    terms = JobTerms(name=name, meta_table=table.name, **more)  # type: ignore[arg-type] # likewise
    wish = AcquireRequest(terms=terms, limits=limits(), config={})
    return database.acquisitions.acquire(wish, table)


def acquired(database: Database, table: MetaSource) -> Iterator[str]:
    """Acquire and succeed until nothing is left; gives lists where there are some."""
    while (attempt := acquire(database, table)) is not None:
        database.attempts.succeed(attempt, logging=None, seen=None)
        one = attempt.batch
        yield str(one.id_range if one.item_ids is None else list(one.item_ids))


def days(table: ReflectedMetaTable, **moments: str) -> None:
    """Let items have been imported at some times; the others at none."""
    execute(table.engine, f"UPDATE {table.table.fullname} SET imported = NULL")  # noqa: S608 - a table of the tests
    for item_id, moment in moments.items():
        execute(
            table.engine,
            f"UPDATE {table.table.fullname} SET imported = :moment WHERE id = :id",  # noqa: S608 - likewise
            moment=moment,
            id=int(item_id.removeprefix("id")),
        )


def test_acquire_of_a_backfill_hands_out_its_plan_and_nothing_more(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Expect 20..80 and no id outside, however often one asks and however many items there are."""
    files = source(table)
    database.backfills.plan(request(ids=IdRange(first_id=20, last_id=80)), files)
    assert list(acquired(database, files)) == [
        "20..29", "30..39", "40..49", "50..59", "60..69", "70..79", "80..80",
    ]  # fmt: skip
    insert(table, dict.fromkeys(range(101, 150), 10))
    assert acquire(database, files) is None
    check_invariants(database)


def test_acquire_of_a_backfill_of_everything_takes_no_later_items(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Expect a plan from the first id on to end where it was planned."""
    files = source(table)
    database.backfills.plan(request(), files)
    assert len(list(acquired(database, files))) == 10
    insert(table, dict.fromkeys(range(101, 150), 10))
    for _ in range(2):
        assert acquire(database, source(table)) is None  # which knows a ceiling above them
    assert database.backfills.plan(request(), source(table)).items == 49
    check_invariants(database)


def test_acquire_of_a_failed_backfill_batch_tries_it_again(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Expect attempts two and three on the same batch, and then no more."""
    files = source(table)
    database.backfills.plan(request(ids=IdRange(first_id=1, last_id=10)), files)
    numbers = []
    while (attempt := acquire(database, files)) is not None:
        numbers.append(attempt.number)
        database.attempts.fail(attempt, "bad", AttemptStatus.FAILED)
    assert numbers == [1, 2, 3]
    assert database.backfills.progress(NAME, files.name).states == {BatchState.DEAD: 1}


def test_backfill_beside_the_job_it_takes_after_leaves_it_alone(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Expect the parent to go on at its own bookmark."""
    files = source(table)
    first = acquire(database, files, "daily")
    assert first is not None
    database.backfills.plan(request(parent="daily"), files)
    second = acquire(database, files, "daily")
    assert second is not None
    assert (str(first.batch.id_range), str(second.batch.id_range)) == ("1..10", "11..20")
    database.attempts.fail(first, "bad", AttemptStatus.FAILED)
    database.attempts.fail(second, "bad", AttemptStatus.FAILED)
    check_invariants(database)


def test_backfill_keeps_the_filter_of_its_table(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Expect only rows that fit to count, and another filter to be refused by plan and acquire."""
    even = source(table, Condition("id", Operator.IN, tuple(range(2, 101, 2))))
    done = database.backfills.plan(request(), even)
    assert (done.batches, done.items) == (5, 50)
    for refused in (
        lambda: database.backfills.plan(request(), source(table)),
        lambda: acquire(database, source(table)),
    ):
        with pytest.raises(JobChangedError, match="its filter differs"):
            refused()
    assert acquire(database, even, where=even.table.where) is not None


def test_backfill_by_an_import_time_takes_the_rows_of_that_time(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Expect `since` included, `until` not, NULL never, and a filter kept beside it."""
    days(
        table,
        id90="2026-03-01 00:00Z",
        id3="2026-03-01 23:59:59Z",
        id5="2026-03-02 00:00Z",
        id7="2026-02-28 23:59:59Z",
    )
    march = Selection(
        since=datetime(2026, 3, 1, tzinfo=UTC),
        until=datetime(2026, 3, 2, tzinfo=UTC),
        time_column="imported",
    )
    asked = Backfill(name=NAME, limits=limits(), selection=march)
    assert database.backfills.estimate(asked, source(table)).items == 2
    database.backfills.plan(asked, source(table))
    assert list(acquired(database, source(table))) == ["[3, 90]"]
    below = source(table, Condition("id", Operator.LESS, 50))
    other = Backfill(name="below", limits=limits(), selection=march)
    assert database.backfills.plan(other, below).items == 1


def test_backfill_by_an_import_time_on_sqlite_takes_both_ends_right(
    database: Database, sqlite_files: ReflectedMetaTable
) -> None:
    """Expect the same where times are texts, with and without fractions of a second."""
    insert(sqlite_files, dict.fromkeys(range(1, 7), 10))
    days(
        sqlite_files,
        id1="2026-02-28 23:59:59",
        id2="2026-03-01 00:00:00",
        id3="2026-03-01 00:00:00.000000",
        id4="2026-03-01 23:59:59.999999",
        id5="2026-03-02 00:00:00",
        id6="2026-03-02 00:00:00.000000",
    )
    files = MetaSource(table=sqlite_files, choice=choose_watermark(sqlite_files))
    march = request(
        since=datetime(2026, 3, 1, tzinfo=UTC),
        until=datetime(2026, 3, 2, tzinfo=UTC),
        time_column="imported",
    )
    assert database.backfills.plan(march, files).items == 3
    assert list(acquired(database, files)) == ["[2, 3, 4]"]


def test_backfill_by_a_column_of_days_takes_whole_days(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Expect days to be compared as days, and a time within a day to be refused."""
    execute(
        table.engine,
        "ALTER TABLE ops.files ADD day date",
        "UPDATE ops.files SET day = date '2026-03-01' + (id / 10)::int",
    )
    since = datetime(2026, 3, 10, tzinfo=UTC)
    database.backfills.plan(request(since=since, time_column="day"), source(table))
    assert list(acquired(database, source(table))) == [
        str(list(range(90, 100))), "[100]",
    ]  # fmt: skip
    with pytest.raises(InvalidValueError, match="a whole day"):
        database.backfills.estimate(
            Backfill(
                name="noon",
                limits=limits(),
                selection=Selection(since=since.replace(hour=12), time_column="day"),
            ),
            source(table),
        )


@pytest.mark.parametrize(
    ("column", "error", "told"),
    [
        (None, InvalidValueError, "time"),
        ("imported_at", MetaTableError, "has no column 'imported_at'"),
        ("file_location", MetaTableError, "'file_location' cannot be the time"),
    ],
)
def test_backfill_by_no_time_column_is_refused(
    database: Database,
    table: ReflectedMetaTable,
    column: str | None,
    error: type[Exception],
    told: str,
) -> None:
    """Expect the column to be named, to be there, and to hold times."""
    since = datetime(2026, 3, 1, tzinfo=UTC)
    with pytest.raises(error, match=told):
        database.backfills.plan(request(since=since, time_column=column), source(table))


def test_backfill_of_listed_items_is_read_through_the_filter(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Expect 3,000 ids to be found in a few reads, and those that the filter hides to be named."""
    insert(table, dict.fromkeys(range(101, 3001), 0))
    everything = request(item_ids=tuple(range(3000, 0, -1)))
    assert database.backfills.plan(everything, source(table)).items == 3000
    below = source(table, Condition("id", Operator.LESS, 50))
    other = Backfill(name="below", limits=limits(), selection=Selection(item_ids=(49, 50, 51)))
    with pytest.raises(ConfigurationError, match="has no items") as caught:
        database.backfills.plan(other, below)
    assert "has no items 50, 51 " in str(caught.value)


def test_backfill_plans_nothing_above_the_ceiling(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Expect rows beside an open insert to wait until it is over, also rows that were named."""
    files = source(table)
    files.read_high_watermark()
    with database.engine.connect() as writer:
        writer.execute(sa.text("INSERT INTO ops.files (id, size_in_bytes) VALUES (150, 10)"))
        insert(table, {160: 10})
        asked = request(ids=IdRange(first_id=91, last_id=200))
        assert database.backfills.plan(asked, files).ids == IdRange(first_id=91, last_id=100)
        named = Backfill(name="named", limits=limits(), selection=Selection(item_ids=(160,)))
        with pytest.raises(ConfigurationError, match="up to its high watermark 100"):
            database.backfills.plan(named, files)
        writer.commit()
    assert database.backfills.plan(asked, files).ids == IdRange(first_id=101, last_id=160)
    assert database.backfills.plan(named, files) == Planned(
        batches=1, items=1, weight=10, ids=IdRange(first_id=160, last_id=160)
    )


def test_backfill_of_failed_batches_needs_to_know_whose(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Expect a job of the table to be named as parent, and its failed items to be taken."""
    files = source(table)
    attempt = acquire(database, files, "daily")
    assert attempt is not None
    database.attempts.fail(attempt, "bad", AttemptStatus.FAILED)
    with pytest.raises(InvalidValueError, match="with the failed batches"):
        database.backfills.plan(request(failed_only=True), files)
    database.backfills.plan(request(failed_only=True, parent="daily"), files)
    assert list(acquired(database, files)) == [str(list(range(1, 11)))]


def test_estimate_knows_the_pace_of_kin_only(database: Database, table: ReflectedMetaTable) -> None:
    """Expect the parent's past to tell the time, and nothing that strangers did."""
    files = source(table)
    attempt = acquire(database, files, "daily")
    assert attempt is not None
    database.attempts.succeed(attempt, logging=None, seen=None)
    assert database.backfills.estimate(request(), files).pace is None
    told = database.backfills.estimate(request(parent="daily"), files)
    assert told.pace is not None
    assert (told.pace.job, told.pace.attempts, told.batches) == ("daily", 1, 10)
