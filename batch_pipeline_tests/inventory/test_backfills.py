"""Backfills of streams and of users' tables: selections, limits, estimates, progress."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.acquire import AcquireRequest
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.own_table import OwnMetaTable
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.inventory.meta_tables.watermarks import choose_watermark
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch, BatchState, IdRange
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    JobChangedError,
    MetaTableError,
)
from batch_pipeline.model.filter import Condition, Filter, Operator
from batch_pipeline.model.job import JobTerms
from batch_pipeline.model.planning import Limits, Planned
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    insert,
)
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    execute as execute_on,
)
from batch_pipeline_tests.pipeline.attempt_fixture import EncodeHarness
from batch_pipeline_tests.seeds import (
    ORDER_ID,
    claimed,
    execute,
    plan,
    publish,
    query,
    register,
    unplanned,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TABLES = ("job", "bookmark", "batch", "batch_state", "attempt")


def request(
    *, name: str = "2023", bounds: Limits | None = None, ids: IdRange | None = None, **what: object
) -> Backfill:
    """Return a backfill of `orders`, ten items a batch."""
    selection = Selection(**({} if ids is None else {"ids": ids}), **what)  # type: ignore[arg-type] # keywords of the tests
    return Backfill.of_stream("orders", name, selection, bounds or limits())


def window(first_id: int, last_id: int) -> IdRange:
    """Return a range of ids."""
    return IdRange(first_id=first_id, last_id=last_id)


def orders(database: Database, count: int = 0) -> OwnMetaTable:
    """Return the table of `orders`; add `count` items of 10 bytes and plan them, 7 per batch."""
    if count:
        register(database, count)
        plan(database, limits(max_count=7))
        database.schemas.widen("orders", [ORDER_ID], text_source=True)
    return database.meta_table("orders")


def batches(database: Database, name: str = "2023") -> list[Batch]:
    """Return the batches of a backfill of `orders`."""
    name, table = f"orders.{name}", orders(database)
    return [status.batch for status in database.backfills.statuses(name, table.name)]


def ranges(database: Database, name: str = "2023") -> list[str]:
    """Return the id ranges of a backfill's batches."""
    return [str(batch.id_range) for batch in batches(database, name)]


def item_lists(database: Database, name: str = "2023") -> list[tuple[int, ...] | None]:
    """Return the item lists of a backfill's batches."""
    return [batch.item_ids for batch in batches(database, name)]


def row_counts(database: Database) -> list[int]:
    """Return the row count of each table."""
    return [query(database, f"SELECT count(*) FROM batch_pipeline.{name}")[0][0] for name in TABLES]  # noqa: S608 - names from above


def set_registered_at(database: Database, item_id: int, moment: datetime) -> None:
    """Change the registration time of an item."""
    execute(
        database,
        "UPDATE batch_pipeline.item SET registered_at = :moment WHERE id = :id",
        moment=moment,
        id=item_id,
    )


def fail(database: Database, batch: Batch) -> None:
    """Claim a batch and fail it."""
    with claimed(database, batch) as attempt:
        database.attempts.fail(attempt, "bad", AttemptStatus.FAILED)


def test_backfill_of_window_covers_exactly_the_window(database: Database) -> None:
    table = orders(database, 100)
    done = database.backfills.plan(request(ids=window(20, 80)), table)
    assert done == Planned(batches=7, items=61, weight=610, ids=window(20, 80))
    assert ranges(database) == [
        "20..29", "30..39", "40..49", "50..59", "60..69", "70..79", "80..80",
    ]  # fmt: skip
    assert {status.state for status in database.backfills.statuses("orders.2023", table.name)} == {
        BatchState.PLANNED
    }
    check_invariants(database)


def test_backfill_beyond_watermark_continues_later(database: Database) -> None:
    """The next call plans only the new items."""
    table = orders(database, 25)
    backfill = request(ids=window(20, 40))
    assert database.backfills.plan(backfill, table).ids == window(20, 25)
    register(database, 30, first=26)
    assert database.backfills.plan(backfill, table).ids == window(26, 40)
    assert database.backfills.plan(backfill, table) == Planned()
    assert ranges(database) == ["20..25", "26..35", "36..40"]
    check_invariants(database)


def test_backfill_without_items_creates_no_job(database: Database) -> None:
    """The name stays available."""
    table = orders(database, 5)
    before = row_counts(database)
    assert database.backfills.plan(request(ids=window(50, 60)), table) == Planned()
    assert row_counts(database) == before
    assert database.backfills.plan(request(ids=window(1, 5)), table).items == 5


def test_backfill_of_unplanned_stream_creates_its_job(database: Database) -> None:
    """The incremental job is the parent."""
    register(database, 5)
    database.backfills.plan(request(), orders(database))
    assert [str(batch.id_range) for batch in plan(database, limits())] == ["1..5"]
    assert query(
        database,
        "SELECT job.name, job.kind, parent.name FROM batch_pipeline.job "
        "LEFT JOIN batch_pipeline.job parent ON parent.id = job.parent_id ORDER BY job.id",
    ) == [("orders", "incremental", None), ("orders.2023", "backfill", "orders")]


def test_backfills_do_not_affect_incremental_job(database: Database) -> None:
    table = orders(database, 20)
    publish(database, database.batches.statuses("orders")[0].batch)
    before = database.batches.statuses("orders")
    manifests = list(database.manifests.published_after("orders", {}))
    for name in ("one", "two"):
        database.backfills.plan(request(name=name), table)
        for batch in batches(database, name):
            publish(database, batch)
    assert database.batches.statuses("orders") == before
    own = database.manifests.published_after("orders", {}, backfills=False)
    assert list(own) == manifests
    sent = list(database.manifests.published_after("orders", {}))
    assert sent[: len(manifests)] == manifests
    later = [(manifest.batch.job, number) for number, manifest in sent[len(manifests) :]]
    assert later == [(f"orders.{name}", n) for name in ("one", "two") for n in (1, 2)]
    assert unplanned(database, table) == (0, 0)
    register(database, 3, first=21)
    assert [str(batch.id_range) for batch in plan(database, limits())] == ["21..23"]
    check_invariants(database)


def test_planning_backfill_does_not_block_stream(database: Database, rival: Database) -> None:
    """The stream plans, publishes and widens its schema before the backfill commits."""
    table = orders(database, 20)
    first = database.batches.statuses("orders")[0].batch
    done: list[int] = []

    def work_on_stream(
        _connection: object, _cursor: object, statement: str, *_rest: object
    ) -> None:
        if "INSERT INTO batch_pipeline.batch_state" in statement and not done:
            done.append(1)
            register(rival, 3, first=21)
            assert len(plan(rival, limits())) == 1
            publish(rival, first)
            rival.schemas.widen("orders", [ORDER_ID], text_source=True)

    sa.event.listen(database.engine, "before_cursor_execute", work_on_stream)
    database.backfills.plan(request(), table)
    assert done == [1]


def test_backfill_by_time_selects_half_open_interval(database: Database) -> None:
    """`since` is included, `until` is not. Batches are lists, because times do not follow ids."""
    table = orders(database, 10)
    for item_id, hours in ((2, 0), (3, 1), (5, 2), (9, 3), (7, 4)):
        set_registered_at(database, item_id, NOON + timedelta(hours=hours))
    backfill = request(since=NOON, until=NOON + timedelta(hours=4), bounds=limits(max_count=3))
    done = database.backfills.plan(backfill, table)
    assert done == Planned(batches=2, items=4, weight=40, ids=window(2, 9))
    assert item_lists(database) == [(2, 3, 5), (9,)]
    set_registered_at(database, 7, NOON)
    assert database.backfills.plan(backfill, table).items == 1
    assert item_lists(database) == [(2, 3, 5), (7,), (9,)]
    assert database.backfills.plan(backfill, table) == Planned()
    database.backfills.plan(request(name="both", ids=window(3, 6), since=NOON), table)
    assert item_lists(database, "both") == [(3, 4, 5, 6)]
    check_invariants(database)


def test_backfill_of_listed_items_selects_only_them(database: Database) -> None:
    """All of them must exist."""
    table = orders(database, 100)
    before = row_counts(database)
    with pytest.raises(ConfigurationError, match="no items 101, 999 up to its high watermark 100"):
        database.backfills.plan(request(item_ids=(1, 101, 999)), table)
    assert row_counts(database) == before
    backfill = request(item_ids=(70, 3, 5, 3, 41), bounds=limits(max_weight=30))
    assert database.backfills.plan(backfill, table).items == 4
    assert item_lists(database) == [(3, 5, 41), (70,)]
    assert [batch.weight for batch in batches(database)] == [30, 10]
    assert [item.id for item in table.items(batches(database)[0])] == [3, 5, 41]
    assert database.backfills.plan(backfill, table) == Planned()
    check_invariants(database)


def test_backfill_of_failed_batches_uses_its_own_limits(
    database: Database,
) -> None:
    table = orders(database, 28)
    first, second, third, fourth = (s.batch for s in database.batches.statuses("orders"))
    fail(database, first)
    for _ in range(3):
        fail(database, third)
    publish(database, fourth)
    backfill = request(failed_only=True, bounds=limits(max_count=4))
    database.backfills.plan(backfill, table)
    assert item_lists(database) == [(1, 2, 3, 4), (5, 6, 7, 15), (16, 17, 18, 19), (20, 21)]
    fail(database, second)
    assert database.backfills.plan(backfill, table).ids == window(8, 14)
    states = [status.state for status in database.batches.statuses("orders")]
    assert states == [
        BatchState.FAILED, BatchState.FAILED, BatchState.DEAD, BatchState.PUBLISHED,
    ]  # fmt: skip
    check_invariants(database)


def test_changed_backfill_is_rejected(database: Database) -> None:
    table = orders(database, 30)
    database.backfills.plan(request(ids=window(1, 20)), table)
    before = row_counts(database)
    for backfill, problem in (
        (request(ids=window(1, 21)), 'its selection differs \\({"first_id": 1, "last_id": 20}'),
        (request(ids=window(1, 20), bounds=limits(max_count=9)), "its limits differ"),
    ):
        with pytest.raises(JobChangedError, match=problem):
            database.backfills.plan(backfill, table)
        with pytest.raises(JobChangedError):
            database.backfills.estimate(backfill, table)
    assert row_counts(database) == before


@pytest.mark.parametrize("name", ["", "late", "a b", "x" * 51, "../x"])
def test_invalid_backfill_name_is_rejected(name: str) -> None:
    """The name must suit file names and differ from the late job's."""
    with pytest.raises(InvalidValueError, match="backfill is"):
        request(name=name)


def test_concurrent_backfills_are_planned_once(database: Database, rival: Database) -> None:
    table = orders(database, 30)
    results = together(
        partial(database.backfills.plan, request(), table),
        partial(rival.backfills.plan, request(), rival.meta_table("orders")),
    )
    assert sorted(result.batches for result in results if isinstance(result, Planned)) == [0, 3]
    check_invariants(database)


@pytest.mark.long
def test_backfill_of_100_000_batches_becomes_visible_at_once(
    database: Database, rival: Database
) -> None:
    execute(
        database,
        "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
        "SELECT 'orders', id, 'file:///landing/' || id, 10, now() "
        "FROM generate_series(1, 100000) id",
    )
    visible_batches = []

    def count_visible_batches(
        _connection: object, _cursor: object, statement: str, *_rest: object
    ) -> None:
        if "INSERT INTO batch_pipeline.b" in statement:
            visible_batches.append(query(rival, "SELECT count(*) FROM batch_pipeline.batch")[0][0])

    sa.event.listen(database.engine, "after_cursor_execute", count_visible_batches)
    done = database.backfills.plan(request(bounds=limits(max_count=1)), orders(database))
    assert done.batches == 100_000
    # Counted when all batches are written, and when all states and the bookmark are written.
    assert visible_batches == [0, 0]
    assert query(rival, "SELECT count(*) FROM batch_pipeline.batch_state") == [(100_000,)]


def test_estimate_matches_plan_and_writes_nothing(
    database: Database,
) -> None:
    table = orders(database, 60)
    fail(database, database.batches.statuses("orders")[2].batch)
    for name, backfill in {
        "window": request(name="window", ids=window(7, 44)),
        "time": request(name="time", since=NOON),
        "list": request(name="list", item_ids=(1, 2, 50)),
        "failed": request(name="failed", failed_only=True, bounds=limits(max_count=2)),
        "heavy": request(name="heavy", ids=window(1, 9), bounds=limits(max_weight=9)),
    }.items():
        before = row_counts(database)
        estimate = database.backfills.estimate(backfill, table)
        assert row_counts(database) == before
        assert query(database, "SELECT FROM pg_locks WHERE locktype = 'advisory'") == [()]
        done = database.backfills.plan(backfill, table)
        assert (estimate.batches, estimate.items, estimate.weight) == (
            done.batches,
            done.items,
            done.weight,
        )
        assert estimate.oversized == sum(batch.oversized for batch in batches(database, name))
        assert database.backfills.estimate(backfill, table).batches == 0


def test_estimate_uses_median_throughput(database: Database) -> None:
    """Without a published batch there is no estimate of time."""
    table = orders(database, 21)
    backfill = request(bounds=limits(max_count=3))
    assert database.backfills.estimate(backfill, table).seconds is None
    for seconds, status in zip((1, 2, 9), database.batches.statuses("orders"), strict=True):
        publish(database, status.batch)
        execute(
            database,
            "UPDATE batch_pipeline.attempt SET started_at = finished_at - :took * interval '1 s' "
            "WHERE batch_id = :id",
            took=seconds,
            id=status.batch.id,
        )
    estimate = database.backfills.estimate(backfill, table)
    assert estimate.pace is not None
    assert (estimate.pace.job, estimate.pace.attempts, estimate.pace.seconds_per_batch) == (
        "orders",
        3,
        2,
    )
    assert estimate.seconds == pytest.approx(6)
    assert database.batches.estimate(table, limits()).batches == 0


def test_estimate_of_incremental_plan_matches_it(database: Database) -> None:
    register(database, 13)
    table = orders(database)
    before = row_counts(database)
    estimate = database.batches.estimate(table, limits(max_count=5))
    assert (estimate.batches, estimate.items, estimate.weight, estimate.seconds) == (
        3,
        13,
        130,
        None,
    )
    assert row_counts(database) == before
    assert len(plan(database, limits(max_count=5))) == 3


def test_progress_counts_done_and_remaining_work(database: Database) -> None:
    table = orders(database, 40)
    database.backfills.plan(request(), table)
    assert database.backfills.progress("orders.2023", table.name).remaining is None
    first, second, *_ = batches(database)
    publish(database, first)
    fail(database, second)
    execute(
        database,
        "UPDATE batch_pipeline.attempt SET started_at = finished_at - interval '2 s' "
        "WHERE status = 'succeeded'",
    )
    (progress,) = database.backfills.of_stream("orders")
    assert progress == database.backfills.progress("orders.2023", table.name)
    assert progress.states == {
        BatchState.PUBLISHED: 1, BatchState.FAILED: 1, BatchState.PLANNED: 2,
    }  # fmt: skip
    assert (progress.batches, progress.items, progress.items_done) == (4, 40, 10)
    assert (progress.weight, progress.weight_done) == (400, 100)
    assert progress.remaining is not None
    assert progress.remaining.total_seconds() == pytest.approx(6)


def test_progress_counts_halves_instead_of_split_batch(database: Database) -> None:
    table = orders(database, 20)
    database.backfills.plan(request(), table)
    database.jobs.split("orders.2023", batches(database)[0].id, table.reflected())
    progress = database.backfills.progress("orders.2023", table.name)
    assert (progress.states, progress.items) == ({BatchState.PLANNED: 3}, 20)
    assert ranges(database) == ["1..5", "6..10", "11..20"]


def test_encode_of_backfill_writes_separate_files(harness: EncodeHarness) -> None:
    """They are named after the backfill."""
    database, published = harness.database, harness.encode()
    database.backfills.plan(request(item_ids=(2,)), database.meta_table("orders"))
    harness.batch = batches(database)[0]
    manifest = harness.encode()
    assert [item.id for item in harness.encoder.requests[-1].items] == [2]
    assert harness.pointers() == [
        "orders-00000001-00000002.g1.json",
        "orders.2023-00000002-00000002.g1.json",
    ]
    assert (manifest.schema_version, manifest.job) == (published.schema_version, "orders.2023")
    assert list(database.manifests.published_after("orders", {})) == [
        (1, published),
        (1, manifest),
    ]
    check_invariants(database)


NAME = "history"


@pytest.fixture
def table(database: Database) -> ReflectedMetaTable:
    """A table `ops.files` in the inventory's database, with the ids 1..100 of weight 10."""
    execute_on(database.engine, "CREATE SCHEMA ops", CREATE_FILES)
    opened = ReflectedMetaTable.open(database.engine, "ops.files", FILES)
    insert(opened, dict.fromkeys(range(1, 101), 10))
    return opened


def source(table: ReflectedMetaTable, where: Filter | None = None) -> MetaSource:
    """Return the table with an optional filter and its high watermark."""
    opened = ReflectedMetaTable.open(table.engine, table.canonical_name, FILES, where)
    return MetaSource(table=opened, choice=choose_watermark(opened))


def history(parent: str | None = None, **what: object) -> Backfill:
    """Return a backfill `history`, ten items a batch."""
    selection = Selection(**what)  # type: ignore[arg-type] # keywords of the tests
    return Backfill(name=NAME, limits=limits(), selection=selection, parent=parent)


def acquire(
    database: Database, table: MetaSource, name: str = NAME, **more: object
) -> Attempt | None:
    """Acquire with the job's name as the only term."""
    terms = JobTerms(name=name, meta_table=table.name, **more)  # type: ignore[arg-type] # keywords of the tests
    acquire_request = AcquireRequest(terms=terms, limits=limits(), config={})
    return database.acquisitions.acquire(acquire_request, table)


def acquire_all(database: Database, table: MetaSource) -> Iterator[str]:
    """Acquire and publish until nothing is left; yield id ranges or item lists."""
    while (attempt := acquire(database, table)) is not None:
        database.attempts.succeed(attempt, logging=None, seen=None)
        batch = attempt.batch
        yield str(batch.id_range if batch.item_ids is None else list(batch.item_ids))


def set_imported(table: ReflectedMetaTable, **moments: str) -> None:
    """Set the import times of items; the others get NULL."""
    execute_on(table.engine, f"UPDATE {table.table.fullname} SET imported = NULL")  # noqa: S608 - constant name
    for item_id, moment in moments.items():
        execute_on(
            table.engine,
            f"UPDATE {table.table.fullname} SET imported = :moment WHERE id = :id",  # noqa: S608 - constant name
            moment=moment,
            id=int(item_id.removeprefix("id")),
        )


def test_acquire_of_full_backfill_skips_later_items(
    database: Database, table: ReflectedMetaTable
) -> None:
    files = source(table)
    database.backfills.plan(history(), files)
    assert len(list(acquire_all(database, files))) == 10
    insert(table, dict.fromkeys(range(101, 150), 10))
    for _ in range(2):
        assert acquire(database, source(table)) is None  # the high watermark includes them
    assert database.backfills.plan(history(), source(table)).items == 49
    check_invariants(database)


def test_backfill_uses_filter_and_rejects_other_filter(
    database: Database, table: ReflectedMetaTable
) -> None:
    even = source(table, Condition("id", Operator.IN, tuple(range(2, 101, 2))))
    done = database.backfills.plan(history(), even)
    assert (done.batches, done.items) == (5, 50)
    for rejected_call in (
        lambda: database.backfills.plan(history(), source(table)),
        lambda: acquire(database, source(table)),
    ):
        with pytest.raises(JobChangedError, match="its filter differs"):
            rejected_call()
    assert acquire(database, even, where=even.table.where) is not None


def test_backfill_by_import_time_on_sqlite(
    database: Database, sqlite_files: ReflectedMetaTable
) -> None:
    """SQLite stores times as text, with or without fractions of a second.

    NULL is not selected, and a filter applies too.
    """
    insert(sqlite_files, dict.fromkeys(range(1, 8), 10))
    set_imported(
        sqlite_files,
        id1="2026-02-28 23:59:59",
        id2="2026-03-01 00:00:00",
        id3="2026-03-01 00:00:00.000000",
        id4="2026-03-01 23:59:59.999999",
        id5="2026-03-02 00:00:00",
        id6="2026-03-02 00:00:00.000000",
    )
    march = Selection(
        since=datetime(2026, 3, 1, tzinfo=UTC),
        until=datetime(2026, 3, 2, tzinfo=UTC),
        time_column="imported",
    )
    files, backfill = source(sqlite_files), Backfill(name=NAME, limits=limits(), selection=march)
    assert database.backfills.estimate(backfill, files).items == 3
    assert database.backfills.plan(backfill, files).items == 3
    assert list(acquire_all(database, files)) == ["[2, 3, 4]"]
    below = source(sqlite_files, Condition("id", Operator.LESS, 4))
    other = Backfill(name="below", limits=limits(), selection=march)
    assert database.backfills.plan(other, below).items == 2


def test_backfill_by_date_column_selects_whole_days(
    database: Database, table: ReflectedMetaTable
) -> None:
    """A time within a day is rejected."""
    execute_on(
        table.engine,
        "ALTER TABLE ops.files ADD day date",
        "UPDATE ops.files SET day = date '2026-03-01' + (id / 10)::int",
    )
    since = datetime(2026, 3, 10, tzinfo=UTC)
    database.backfills.plan(history(since=since, time_column="day"), source(table))
    assert list(acquire_all(database, source(table))) == [
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


def test_backfill_by_invalid_time_column_is_rejected(
    database: Database, table: ReflectedMetaTable
) -> None:
    invalid: list[tuple[str | None, type[Exception], str]] = [
        (None, InvalidValueError, "time"),
        ("imported_at", MetaTableError, "has no column 'imported_at'"),
        ("file_location", MetaTableError, "'file_location' cannot be the time"),
    ]
    for column, error, message in invalid:
        with pytest.raises(error, match=message):
            database.backfills.plan(history(since=NOON, time_column=column), source(table))


def test_backfill_of_listed_items_uses_filter(
    database: Database, table: ReflectedMetaTable
) -> None:
    """3,000 ids take a few reads; ids that the filter excludes are named."""
    insert(table, dict.fromkeys(range(101, 3001), 0))
    everything = history(item_ids=tuple(range(3000, 0, -1)))
    assert database.backfills.plan(everything, source(table)).items == 3000
    below = source(table, Condition("id", Operator.LESS, 50))
    other = Backfill(name="below", limits=limits(), selection=Selection(item_ids=(49, 50, 51)))
    with pytest.raises(ConfigurationError, match="has no items") as caught:
        database.backfills.plan(other, below)
    assert "has no items 50, 51 " in str(caught.value)


def test_backfill_plans_nothing_above_watermark(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Even listed rows wait for an open insert below them."""
    files = source(table)
    files.read_high_watermark()
    with database.engine.connect() as writer:
        writer.execute(sa.text("INSERT INTO ops.files (id, size_in_bytes) VALUES (150, 10)"))
        insert(table, {160: 10})
        backfill = history(ids=IdRange(first_id=91, last_id=200))
        assert database.backfills.plan(backfill, files).ids == IdRange(first_id=91, last_id=100)
        named = Backfill(name="named", limits=limits(), selection=Selection(item_ids=(160,)))
        with pytest.raises(ConfigurationError, match="up to its high watermark 100"):
            database.backfills.plan(named, files)
        writer.commit()
    assert database.backfills.plan(backfill, files).ids == IdRange(first_id=101, last_id=160)
    assert database.backfills.plan(named, files) == Planned(
        batches=1, items=1, weight=10, ids=IdRange(first_id=160, last_id=160)
    )


def test_backfill_of_failed_batches_needs_parent(
    database: Database, table: ReflectedMetaTable
) -> None:
    files = source(table)
    attempt = acquire(database, files, "daily")
    assert attempt is not None
    database.attempts.fail(attempt, "bad", AttemptStatus.FAILED)
    with pytest.raises(InvalidValueError, match="with the failed batches"):
        database.backfills.plan(history(failed_only=True), files)
    database.backfills.plan(history(failed_only=True, parent="daily"), files)
    assert list(acquire_all(database, files)) == [str(list(range(1, 11)))]


def test_estimate_uses_throughput_of_parent_only(
    database: Database, table: ReflectedMetaTable
) -> None:
    files = source(table)
    attempt = acquire(database, files, "daily")
    assert attempt is not None
    database.attempts.succeed(attempt, logging=None, seen=None)
    assert database.backfills.estimate(history(), files).pace is None
    estimate = database.backfills.estimate(history(parent="daily"), files)
    assert estimate.pace is not None
    assert (estimate.pace.job, estimate.pace.attempts, estimate.batches) == ("daily", 1, 10)
