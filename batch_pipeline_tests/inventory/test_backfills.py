"""Backfills of streams and of users' tables: selections, limits, estimates, progress."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory import backfills
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.own_table import OwnMetaTable
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import AttemptStatus, Batch, BatchState, IdRange
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    JobChangedError,
    MetaTableError,
)
from batch_pipeline.model.filter import Condition, Filter, Operator
from batch_pipeline.model.planning import Limits, Planned
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.audit_fixture import Feed, row_counts
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    choose_watermark,
    insert,
)
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    execute as execute_on,
)
from batch_pipeline_tests.pipeline.attempt_fixture import EncodeHarness
from batch_pipeline_tests.seeds import (
    ORDER_ID,
    execute,
    fail,
    plan,
    publish,
    query,
    register,
    unplanned,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def request(*, name: str = "2023", bounds: Limits | None = None, **what: Any) -> Backfill:
    """Return a backfill of `orders`, ten items a batch."""
    return Backfill.of_stream("orders", name, Selection(**what), bounds or limits())


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


def ranges(database: Database) -> list[str]:
    """Return the id ranges of the backfill's batches."""
    return [str(batch.id_range) for batch in batches(database)]


def item_lists(database: Database, name: str = "2023") -> list[tuple[int, ...] | None]:
    """Return the item lists of a backfill's batches."""
    return [batch.item_ids for batch in batches(database, name)]


def set_duration(database: Database, batch: Batch, seconds: int) -> None:
    """Change how long the attempts on a batch took."""
    change = (
        "UPDATE batch_pipeline.attempt SET started_at = finished_at - :took * interval '1 s' "
        "WHERE batch_id = :id"
    )
    execute(database, change, took=seconds, id=batch.id)


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
    """The next call plans only the new items. Without items there is no job."""
    table = orders(database, 25)
    backfill = request(ids=window(20, 40))
    before = row_counts(database)
    assert database.backfills.plan(request(ids=window(50, 60)), table) == Planned()
    assert row_counts(database) == before
    assert database.backfills.plan(backfill, table).ids == window(20, 25)
    register(database, 30, first=26)
    assert database.backfills.plan(backfill, table).ids == window(26, 40)
    assert database.backfills.plan(backfill, table) == Planned()
    assert ranges(database) == ["20..25", "26..35", "36..40"]
    check_invariants(database)


def test_backfill_of_unplanned_stream_creates_its_job(database: Database) -> None:
    """The incremental job is the parent."""
    register(database, 5)
    database.backfills.plan(request(), orders(database))
    assert [str(batch.id_range) for batch in plan(database, limits())] == ["1..5"]
    [parent, backfill] = database.jobs.jobs()
    assert (parent.job.name, parent.job.kind, parent.parent) == ("orders", "incremental", None)
    assert (backfill.job.name, backfill.job.kind) == ("orders.2023", "backfill")
    assert backfill.parent == "orders"


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
    change = "UPDATE batch_pipeline.item SET registered_at = :moment WHERE id = :id"
    for item_id, hours in ((2, 0), (3, 1), (5, 2), (9, 3), (7, 4)):
        execute(database, change, moment=NOON + timedelta(hours=hours), id=item_id)
    backfill = request(since=NOON, until=NOON + timedelta(hours=4), bounds=limits(max_count=3))
    done = database.backfills.plan(backfill, table)
    assert done == Planned(batches=2, items=4, weight=40, ids=window(2, 9))
    assert item_lists(database) == [(2, 3, 5), (9,)]
    execute(database, change, moment=NOON, id=7)
    assert database.backfills.plan(backfill, table).items == 1
    assert item_lists(database) == [(2, 3, 5), (7,), (9,)]
    assert database.backfills.plan(backfill, table) == Planned()
    database.backfills.plan(request(name="both", ids=window(3, 6), since=NOON), table)
    assert item_lists(database, "both") == [(3, 4, 5, 6)]
    check_invariants(database)


def test_backfill_by_time_reads_slow_meta_table_without_time_limit(database: Database) -> None:
    """The server ends other transactions of the inventory after a minute without a statement."""
    limits_of_ids: list[str] = []

    def read_limit(connection: sa.Connection, _cursor: object, sql: str, *_rest: object) -> None:
        if "unnest" in sql:
            show = "SHOW idle_in_transaction_session_timeout"
            limits_of_ids.append(connection.exec_driver_sql(show).scalar_one())

    sa.event.listen(database.engine, "after_cursor_execute", read_limit)
    assert database.backfills.plan(request(since=NOON), orders(database, 3)).items == 3
    assert limits_of_ids == ["0"]


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


def test_backfill_of_failed_batches_uses_its_own_limits(database: Database) -> None:
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


def test_estimate_matches_plan_and_writes_nothing(database: Database) -> None:
    register(database, 60)
    table = orders(database)
    before = row_counts(database)
    incremental = database.batches.estimate(table, limits(max_count=7))
    assert (incremental.batches, incremental.items, incremental.weight) == (9, 60, 600)
    assert (incremental.seconds, row_counts(database)) == (None, before)
    assert len(plan(database, limits(max_count=7))) == 9
    assert database.batches.estimate(table, limits()).batches == 0
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
        assert (estimate.batches, estimate.items) == (done.batches, done.items)
        assert estimate.weight == done.weight
        assert estimate.oversized == sum(batch.oversized for batch in batches(database, name))
        assert database.backfills.estimate(backfill, table).batches == 0


def test_estimate_uses_median_throughput(database: Database) -> None:
    """Without a published batch there is no estimate of time."""
    table = orders(database, 21)
    backfill = request(bounds=limits(max_count=3))
    assert database.backfills.estimate(backfill, table).seconds is None
    for seconds, status in zip((1, 2, 9), database.batches.statuses("orders"), strict=True):
        publish(database, status.batch)
        set_duration(database, status.batch, seconds)
    estimate = database.backfills.estimate(backfill, table)
    assert estimate.pace is not None
    assert (estimate.pace.job, estimate.pace.attempts) == ("orders", 3)
    assert estimate.pace.seconds_per_batch == 2
    assert estimate.seconds == pytest.approx(6)


def test_progress_counts_done_and_remaining_work(database: Database) -> None:
    table = orders(database, 40)
    database.backfills.plan(request(), table)
    assert database.backfills.progress("orders.2023", table.name).remaining is None
    first, second, *_ = batches(database)
    publish(database, first)
    fail(database, second)
    set_duration(database, first, 2)
    (progress,) = database.backfills.of_stream("orders")
    assert progress == database.backfills.progress("orders.2023", table.name)
    assert progress.states == {
        BatchState.PUBLISHED: 1, BatchState.FAILED: 1, BatchState.PLANNED: 2,
    }  # fmt: skip
    assert (progress.batches, progress.items, progress.items_done) == (4, 40, 10)
    assert (progress.weight, progress.weight_done) == (400, 100)
    assert progress.remaining is not None
    assert progress.remaining.total_seconds() == pytest.approx(6)
    database.jobs.split("orders.2023", second.id, table.reflected())
    halved = database.backfills.progress("orders.2023", table.name)
    assert halved.states == {BatchState.PUBLISHED: 1, BatchState.PLANNED: 4}
    assert halved.items == 40
    assert ranges(database) == ["1..10", "11..15", "16..20", "21..30", "31..40"]


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


@pytest.fixture
def feed(database: Database) -> Feed:
    """A job `history` on `ops.files` in the inventory's database: the ids 1..100 of weight 10."""
    execute_on(database.engine, "CREATE SCHEMA ops", CREATE_FILES)
    table = ReflectedMetaTable.open(database.engine, "ops.files", FILES)
    insert(table, dict.fromkeys(range(1, 101), 10))
    return Feed(database, table, limits(), job="history")


def filtered(feed: Feed, where: Filter) -> Feed:
    """Return the same job with a filter."""
    name = feed.table.canonical_name
    table = ReflectedMetaTable.open(feed.table.engine, name, FILES, where)
    return replace(feed, table=table, taken=[])


def history(name: str = "history", parent: str | None = None, **what: Any) -> Backfill:
    """Return a backfill, ten items a batch."""
    return Backfill(name=name, limits=limits(), selection=Selection(**what), parent=parent)


def plan_history(
    feed: Feed, name: str = "history", parent: str | None = None, **what: Any
) -> Planned:
    """Plan a backfill of the table of a job."""
    return feed.database.backfills.plan(history(name, parent, **what), feed.source)


def test_acquire_of_full_backfill_skips_later_items(feed: Feed) -> None:
    plan_history(feed)
    assert len(feed.drain()) == 10
    insert(feed.table, dict.fromkeys(range(101, 150), 10))
    for _ in range(2):
        assert replace(feed).acquire() is None  # its high watermark includes them
    assert plan_history(feed).items == 49
    check_invariants(feed.database)


def test_backfill_uses_filter_and_rejects_other_filter(feed: Feed) -> None:
    even = filtered(feed, Condition("id", Operator.IN, tuple(range(2, 101, 2))))
    done = plan_history(even)
    assert (done.batches, done.items) == (5, 50)
    for rejected_call in (lambda: plan_history(feed), feed.acquire):
        with pytest.raises(JobChangedError, match="its filter differs"):
            rejected_call()
    assert even.acquire() is not None


def test_backfill_by_import_time_on_sqlite(
    database: Database, sqlite_files: ReflectedMetaTable
) -> None:
    """SQLite stores times as text, with or without fractions of a second.

    NULL is not selected, and a filter applies too.
    """
    moments = {
        1: "2026-02-28 23:59:59",
        2: "2026-03-01 00:00:00",
        3: "2026-03-01 00:00:00.000000",
        4: "2026-03-01 23:59:59.999999",
        5: "2026-03-02 00:00:00",
        6: "2026-03-02 00:00:00.000000",
        7: None,
    }
    insert(sqlite_files, dict.fromkeys(moments, 10))
    for item_id, moment in moments.items():
        change = "UPDATE files SET imported = :moment WHERE id = :id"
        execute_on(sqlite_files.engine, change, moment=moment, id=item_id)
    march: dict[str, Any] = {
        "since": datetime(2026, 3, 1, tzinfo=UTC),
        "until": datetime(2026, 3, 2, tzinfo=UTC),
        "time_column": "imported",
    }
    feed = Feed(database, sqlite_files, limits(), job="history")
    assert database.backfills.estimate(history(**march), feed.source).items == 3
    assert plan_history(feed, **march).items == 3
    assert feed.drain() == [[2, 3, 4]]
    below = filtered(feed, Condition("id", Operator.LESS, 4))
    assert plan_history(below, "below", **march).items == 2


def test_backfill_by_date_column_selects_whole_days(feed: Feed) -> None:
    """A time within a day is rejected."""
    execute_on(
        feed.table.engine,
        "ALTER TABLE ops.files ADD day date",
        "UPDATE ops.files SET day = date '2026-03-01' + (id / 10)::int",
    )
    feed = replace(feed, table=ReflectedMetaTable.open(feed.table.engine, "ops.files", FILES))
    since = datetime(2026, 3, 10, tzinfo=UTC)
    plan_history(feed, since=since, time_column="day")
    assert feed.drain() == [list(range(90, 100)), [100]]
    noon = history("noon", since=since.replace(hour=12), time_column="day")
    with pytest.raises(InvalidValueError, match="a whole day"):
        feed.database.backfills.estimate(noon, feed.source)


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        (None, InvalidValueError, "time"),
        ("imported_at", MetaTableError, "has no column 'imported_at'"),
        ("file_location", MetaTableError, "'file_location' cannot be the time"),
    ],
)
def test_backfill_by_invalid_time_column_is_rejected(
    feed: Feed, column: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan_history(feed, since=NOON, time_column=column)


def test_backfill_of_listed_items_uses_filter(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 ids take a few reads; ids that the filter excludes are named."""
    monkeypatch.setattr(backfills, "_CHUNK", 30)
    assert plan_history(feed, item_ids=tuple(range(100, 0, -1))).items == 100
    below = filtered(feed, Condition("id", Operator.LESS, 50))
    with pytest.raises(ConfigurationError, match="has no items 50, 51 "):
        plan_history(below, "below", item_ids=(49, 50, 51))


def test_backfill_plans_nothing_above_watermark(feed: Feed) -> None:
    """Even listed rows wait for an open insert below them."""
    feed.source = MetaSource(table=feed.table, choice=choose_watermark(feed.table))
    feed.source.read_high_watermark()
    with feed.table.engine.connect() as writer:
        writer.execute(sa.text("INSERT INTO ops.files (id, size_in_bytes) VALUES (150, 10)"))
        insert(feed.table, {160: 10})
        assert plan_history(feed, ids=window(91, 200)).ids == window(91, 100)
        with pytest.raises(ConfigurationError, match="up to its high watermark 100"):
            plan_history(feed, "named", item_ids=(160,))
        writer.commit()
    assert plan_history(feed, ids=window(91, 200)).ids == window(101, 160)
    assert plan_history(feed, "named", item_ids=(160,)) == Planned(
        batches=1, items=1, weight=10, ids=window(160, 160)
    )


def test_backfill_of_failed_batches_needs_parent(feed: Feed) -> None:
    attempt = feed.acquired(name="daily")
    feed.database.attempts.fail(attempt, "bad", AttemptStatus.FAILED)
    with pytest.raises(InvalidValueError, match="with the failed batches"):
        plan_history(feed, failed_only=True)
    plan_history(feed, parent="daily", failed_only=True)
    assert feed.drain() == [list(range(1, 11))]


def test_estimate_uses_throughput_of_parent_only(feed: Feed) -> None:
    feed.succeed(feed.acquired(name="daily"))
    estimate = feed.database.backfills.estimate
    assert estimate(history(), feed.source).pace is None
    of_parent = estimate(history(parent="daily"), feed.source)
    assert of_parent.pace is not None
    assert (of_parent.pace.job, of_parent.pace.attempts, of_parent.batches) == ("daily", 1, 10)
