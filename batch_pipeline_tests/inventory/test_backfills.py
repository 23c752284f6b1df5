"""Backfills of streams and of users' tables: what they take, and who sees them when."""

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
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch, BatchState
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    JobChangedError,
    MetaTableError,
    UnknownJobError,
)
from batch_pipeline.model.filter import Condition, Filter, Operator
from batch_pipeline.model.id_range import IdRange
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
from batch_pipeline_tests.pipeline.attempt_fixture import Scene
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
    """A backfill of `orders`, ten items a batch."""
    selection = Selection(**({} if ids is None else {"ids": ids}), **what)  # type: ignore[arg-type] # keywords of the tests
    return Backfill.of_stream("orders", name, selection, bounds or limits())


def window(first_id: int, last_id: int) -> IdRange:
    """The ids from one to another."""
    return IdRange(first_id=first_id, last_id=last_id)


def orders(database: Database, count: int = 0) -> OwnMetaTable:
    """The table of `orders` with that many items of 10 bytes more, planned by 7."""
    if count:
        register(database, count)
        plan(database, limits(max_count=7))
        database.schemas.widen("orders", [ORDER_ID], text_source=True)
    return database.meta_table("orders")


def batches(database: Database, name: str = "2023") -> list[Batch]:
    """The batches of a backfill of `orders`."""
    name, table = f"orders.{name}", orders(database)
    return [status.batch for status in database.backfills.statuses(name, table.name)]


def ranges(database: Database, name: str = "2023") -> list[str]:
    """The ranges of a backfill of `orders`."""
    return [str(one.id_range) for one in batches(database, name)]


def lists(database: Database, name: str = "2023") -> list[tuple[int, ...] | None]:
    """The lists of a backfill of `orders`."""
    return [one.item_ids for one in batches(database, name)]


def counts(database: Database) -> list[int]:
    """How many rows each table has."""
    return [query(database, f"SELECT count(*) FROM batch_pipeline.{name}")[0][0] for name in TABLES]  # noqa: S608 - names from above


def registered(database: Database, item_id: int, moment: datetime) -> None:
    """Let an item have been registered at another time."""
    execute(
        database,
        "UPDATE batch_pipeline.item SET registered_at = :moment WHERE id = :id",
        moment=moment,
        id=item_id,
    )


def fail(database: Database, one: Batch) -> None:
    """Try a batch and fail."""
    with claimed(database, one) as attempt:
        database.attempts.fail(attempt, "bad", AttemptStatus.FAILED)


def test_backfill_of_a_window_stops_exactly_at_its_ends(database: Database) -> None:
    """Expect ranges that tile 20..80 and nothing outside, whatever lies there."""
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


def test_backfill_without_a_window_takes_everything_once(database: Database) -> None:
    """Expect all items up to the last one in batches of the backfill's own limits."""
    table = orders(database, 30)
    database.backfills.plan(request(bounds=limits(max_count=10)), table)
    assert ranges(database) == ["1..10", "11..20", "21..30"]


def test_backfill_beyond_the_ceiling_ends_there_and_goes_on_later(database: Database) -> None:
    """Expect ids without items yet to be planned by the next call, and none of them twice."""
    table = orders(database, 25)
    asked = request(ids=window(20, 40))
    assert database.backfills.plan(asked, table).ids == window(20, 25)
    register(database, 30, first=26)
    assert database.backfills.plan(asked, table).ids == window(26, 40)
    assert database.backfills.plan(asked, table) == Planned()
    assert ranges(database) == ["20..25", "26..35", "36..40"]
    check_invariants(database)


def test_backfill_of_nothing_leaves_nothing(database: Database) -> None:
    """Expect no job, so that the name is free for a window that has items."""
    table = orders(database, 5)
    before = counts(database)
    assert database.backfills.plan(request(ids=window(50, 60)), table) == Planned()
    assert counts(database) == before
    assert database.backfills.plan(request(ids=window(1, 5)), table).items == 5


def test_backfill_of_a_stream_that_was_never_planned_has_its_job(database: Database) -> None:
    """Expect the incremental job to be there as parent and to plan on its own later."""
    register(database, 5)
    database.backfills.plan(request(), orders(database))
    assert [str(one.id_range) for one in plan(database, limits())] == ["1..5"]
    assert query(
        database,
        "SELECT job.name, job.kind, parent.name FROM batch_pipeline.job "
        "LEFT JOIN batch_pipeline.job parent ON parent.id = job.parent_id ORDER BY job.id",
    ) == [("orders", "incremental", None), ("orders.2023", "backfill", "orders")]


def test_two_backfills_do_not_disturb_the_incremental_job(database: Database) -> None:
    """Expect what the stream shows to be as before, and new items to be planned as always."""
    table = orders(database, 20)
    publish(database, database.batches.statuses("orders")[0].batch)
    before = database.batches.statuses("orders")
    manifests = list(database.manifests.published_after("orders", {}))
    for name in ("one", "two"):
        database.backfills.plan(request(name=name), table)
        for one in batches(database, name):
            publish(database, one)
    assert database.batches.statuses("orders") == before
    own = database.manifests.published_after("orders", {}, backfills=False)
    assert list(own) == manifests
    sent = list(database.manifests.published_after("orders", {}))
    assert sent[: len(manifests)] == manifests
    later = [(one.batch.job, number) for number, one in sent[len(manifests) :]]
    assert later == [(f"orders.{name}", n) for name in ("one", "two") for n in (1, 2)]
    assert unplanned(database, table) == (0, 0)
    register(database, 3, first=21)
    assert [str(one.id_range) for one in plan(database, limits())] == ["21..23"]
    check_invariants(database)


def test_backfill_being_planned_lets_the_stream_go_on(database: Database, rival: Database) -> None:
    """Expect the stream to plan, publish and widen its schema while a backfill is not committed."""
    table = orders(database, 20)
    first = database.batches.statuses("orders")[0].batch
    done: list[int] = []

    def go_on(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if "INSERT INTO batch_pipeline.batch_state" in statement and not done:
            done.append(1)
            register(rival, 3, first=21)
            assert len(plan(rival, limits())) == 1
            publish(rival, first)
            rival.schemas.widen("orders", [ORDER_ID], text_source=True)

    sa.event.listen(database.engine, "before_cursor_execute", go_on)
    database.backfills.plan(request(), table)
    assert done == [1]


def test_backfill_by_time_takes_exactly_the_rows_of_that_time(database: Database) -> None:
    """Expect `since` included, `until` not, and ids as lists, since times do not follow ids."""
    table = orders(database, 10)
    for item_id, hours in ((2, 0), (3, 1), (5, 2), (9, 3), (7, 4)):
        registered(database, item_id, NOON + timedelta(hours=hours))
    asked = request(since=NOON, until=NOON + timedelta(hours=4), bounds=limits(max_count=3))
    done = database.backfills.plan(asked, table)
    assert done == Planned(batches=2, items=4, weight=40, ids=window(2, 9))
    assert lists(database) == [(2, 3, 5), (9,)]
    registered(database, 7, NOON)
    assert database.backfills.plan(asked, table).items == 1
    assert lists(database) == [(2, 3, 5), (7,), (9,)]
    assert database.backfills.plan(asked, table) == Planned()
    check_invariants(database)


def test_backfill_by_time_within_ids_keeps_to_both(database: Database) -> None:
    """Expect the id window to bound what the time window takes."""
    table = orders(database, 10)
    database.backfills.plan(request(ids=window(3, 6), since=NOON), table)
    assert lists(database) == [(3, 4, 5, 6)]


def test_backfill_of_listed_items_takes_them_alone(database: Database) -> None:
    """Expect each named item once, in id order, cut by the limits."""
    table = orders(database, 100)
    asked = request(item_ids=(70, 3, 5, 3, 41), bounds=limits(max_weight=30))
    assert database.backfills.plan(asked, table).items == 4
    assert lists(database) == [(3, 5, 41), (70,)]
    assert [one.weight for one in batches(database)] == [30, 10]
    assert [one.id for one in table.items(batches(database)[0])] == [3, 5, 41]
    assert database.backfills.plan(asked, table) == Planned()
    check_invariants(database)


def test_backfill_of_unknown_items_names_them_and_leaves_nothing(database: Database) -> None:
    """Expect the ids that are not there in the message, and no job."""
    table = orders(database, 10)
    before = counts(database)
    with pytest.raises(ConfigurationError, match="no items 11, 99 up to its high watermark 10"):
        database.backfills.plan(request(item_ids=(1, 11, 99)), table)
    assert counts(database) == before


def test_backfill_of_failed_batches_takes_their_items_with_other_limits(
    database: Database,
) -> None:
    """Expect items of failed and dead batches alone, and of later failures the next time."""
    table = orders(database, 28)
    first, second, third, fourth = (s.batch for s in database.batches.statuses("orders"))
    fail(database, first)
    for _ in range(3):
        fail(database, third)
    publish(database, fourth)
    asked = request(failed_only=True, bounds=limits(max_count=4))
    database.backfills.plan(asked, table)
    assert lists(database) == [(1, 2, 3, 4), (5, 6, 7, 15), (16, 17, 18, 19), (20, 21)]
    fail(database, second)
    assert database.backfills.plan(asked, table).ids == window(8, 14)
    states = [status.state for status in database.batches.statuses("orders")]
    assert states == [
        BatchState.FAILED, BatchState.FAILED, BatchState.DEAD, BatchState.PUBLISHED,
    ]  # fmt: skip
    check_invariants(database)


def test_backfill_asked_for_otherwise_is_refused(database: Database) -> None:
    """Expect another window, other limits and another kind of job to be told apart by name."""
    table = orders(database, 30)
    database.backfills.plan(request(ids=window(1, 20)), table)
    before = counts(database)
    for asked, problem in (
        (request(ids=window(1, 21)), 'its selection differs \\({"first_id": 1, "last_id": 20}'),
        (request(ids=window(1, 20), bounds=limits(max_count=9)), "its limits differ"),
    ):
        with pytest.raises(JobChangedError, match=problem):
            database.backfills.plan(asked, table)
        with pytest.raises(JobChangedError):
            database.backfills.estimate(asked, table)
    assert counts(database) == before


@pytest.mark.parametrize("name", ["", "late", "a b", "x" * 51, "../x"])
def test_backfill_by_a_name_unfit_for_files_is_refused(name: str) -> None:
    """Expect names that part files could not bear, and the late job's, to be refused."""
    with pytest.raises(InvalidValueError, match="backfill is"):
        request(name=name)


def test_backfill_by_two_at_once_is_planned_once(database: Database, rival: Database) -> None:
    """Expect one of them to find nothing left."""
    table = orders(database, 30)
    results = together(
        partial(database.backfills.plan, request(), table),
        partial(rival.backfills.plan, request(), rival.meta_table("orders")),
    )
    assert sorted(one.batches for one in results if isinstance(one, Planned)) == [0, 3]
    check_invariants(database)


def test_backfill_of_100_000_batches_is_seen_when_complete(
    database: Database, rival: Database
) -> None:
    """Expect a reader to see no batch until all are there."""
    execute(
        database,
        "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
        "SELECT 'orders', id, 'file:///landing/' || id, 10, now() "
        "FROM generate_series(1, 100000) id",
    )
    seen = []

    def look(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if "INSERT INTO batch_pipeline.b" in statement:
            seen.append(query(rival, "SELECT count(*) FROM batch_pipeline.batch")[0][0])

    sa.event.listen(database.engine, "after_cursor_execute", look)
    done = database.backfills.plan(request(bounds=limits(max_count=1)), orders(database))
    assert done.batches == 100_000
    assert seen == [0, 0]  # with all batches written, then with all states and the bookmark
    assert query(rival, "SELECT count(*) FROM batch_pipeline.batch_state") == [(100_000,)]


def test_estimate_of_every_selection_equals_the_plan_and_writes_nothing(
    database: Database,
) -> None:
    """Expect the same batches, items and weight as planning then makes, and untouched tables."""
    table = orders(database, 60)
    fail(database, database.batches.statuses("orders")[2].batch)
    for name, asked in {
        "window": request(name="window", ids=window(7, 44)),
        "time": request(name="time", since=NOON),
        "list": request(name="list", item_ids=(1, 2, 50)),
        "failed": request(name="failed", failed_only=True, bounds=limits(max_count=2)),
        "heavy": request(name="heavy", ids=window(1, 9), bounds=limits(max_weight=9)),
    }.items():
        before = counts(database)
        told = database.backfills.estimate(asked, table)
        assert counts(database) == before
        assert query(database, "SELECT FROM pg_locks WHERE locktype = 'advisory'") == [()]
        done = database.backfills.plan(asked, table)
        assert (told.batches, told.items, told.weight) == (done.batches, done.items, done.weight)
        assert told.oversized == sum(one.oversized for one in batches(database, name))
        assert database.backfills.estimate(asked, table).batches == 0


def test_estimate_rests_on_the_median_of_the_past(database: Database) -> None:
    """Expect 70 bytes in 2 s as the pace, and nothing told before the first success."""
    table = orders(database, 21)
    asked = request(bounds=limits(max_count=3))
    assert database.backfills.estimate(asked, table).seconds is None
    for seconds, status in zip((1, 2, 9), database.batches.statuses("orders"), strict=True):
        publish(database, status.batch)
        execute(
            database,
            "UPDATE batch_pipeline.attempt SET started_at = finished_at - :took * interval '1 s' "
            "WHERE batch_id = :id",
            took=seconds,
            id=status.batch.id,
        )
    told = database.backfills.estimate(asked, table)
    assert told.pace is not None
    assert (told.pace.job, told.pace.attempts, told.pace.seconds_per_batch) == ("orders", 3, 2)
    assert told.seconds == pytest.approx(6)
    assert database.batches.estimate(table, limits()).batches == 0


def test_estimate_of_the_next_plan_equals_it(database: Database) -> None:
    """Expect a dry run of the incremental job to tell what planning makes, and to write nothing."""
    register(database, 13)
    table = orders(database)
    before = counts(database)
    told = database.batches.estimate(table, limits(max_count=5))
    assert (told.batches, told.items, told.weight, told.seconds) == (3, 13, 130, None)
    assert counts(database) == before
    assert len(plan(database, limits(max_count=5))) == 3


def test_progress_counts_what_is_done_and_what_is_left(database: Database) -> None:
    """Expect states, items and weight done, and the time that is left by the pace so far."""
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
    (told,) = database.backfills.of_stream("orders")
    assert told == database.backfills.progress("orders.2023", table.name)
    assert told.states == {
        BatchState.PUBLISHED: 1, BatchState.FAILED: 1, BatchState.PLANNED: 2,
    }  # fmt: skip
    assert (told.batches, told.items, told.items_done) == (4, 40, 10)
    assert (told.weight, told.weight_done) == (400, 100)
    assert told.remaining is not None
    assert told.remaining.total_seconds() == pytest.approx(6)


def test_progress_counts_the_halves_of_a_batch_and_not_the_whole(database: Database) -> None:
    """Expect a batch that was split to be there as its two halves."""
    table = orders(database, 20)
    database.backfills.plan(request(), table)
    database.jobs.split("orders.2023", batches(database)[0].id, table.reflected())
    told = database.backfills.progress("orders.2023", table.name)
    assert (told.states, told.items) == ({BatchState.PLANNED: 3}, 20)
    assert ranges(database) == ["1..5", "6..10", "11..20"]


def test_progress_of_an_unknown_backfill_names_those_there_are(database: Database) -> None:
    """Expect the jobs of the table in the message."""
    table = orders(database, 1)
    with pytest.raises(UnknownJobError, match="jobs: orders"):
        database.backfills.progress("orders.2023", table.name)


def test_encode_of_a_backfill_writes_files_of_its_own(scene: Scene) -> None:
    """Expect listed items alone to be encoded, under the backfill's name, beside the stream's."""
    database, published = scene.database, scene.encode()
    database.backfills.plan(request(item_ids=(2,)), database.meta_table("orders"))
    scene.batch = batches(database)[0]
    manifest = scene.encode()
    assert [one.id for one in scene.encoder.requests[-1].items] == [2]
    assert scene.pointers() == [
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
    """A table `ops.files` beside the inventory, with the ids 1..100 of weight 10."""
    execute_on(database.engine, "CREATE SCHEMA ops", CREATE_FILES)
    opened = ReflectedMetaTable.open(database.engine, "ops.files", FILES)
    insert(opened, dict.fromkeys(range(1, 101), 10))
    return opened


def source(table: ReflectedMetaTable, where: Filter | None = None) -> MetaSource:
    """The table below its ceiling, through a filter."""
    opened = ReflectedMetaTable.open(table.engine, table.canonical_name, FILES, where)
    return MetaSource(table=opened, choice=choose_watermark(opened))


def history(parent: str | None = None, **what: object) -> Backfill:
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
    execute_on(table.engine, f"UPDATE {table.table.fullname} SET imported = NULL")  # noqa: S608 - a table of the tests
    for item_id, moment in moments.items():
        execute_on(
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
    database.backfills.plan(history(ids=IdRange(first_id=20, last_id=80)), files)
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
    database.backfills.plan(history(), files)
    assert len(list(acquired(database, files))) == 10
    insert(table, dict.fromkeys(range(101, 150), 10))
    for _ in range(2):
        assert acquire(database, source(table)) is None  # which knows a ceiling above them
    assert database.backfills.plan(history(), source(table)).items == 49
    check_invariants(database)


def test_acquire_of_a_failed_backfill_batch_tries_it_again(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Expect attempts two and three on the same batch, and then no more."""
    files = source(table)
    database.backfills.plan(history(ids=IdRange(first_id=1, last_id=10)), files)
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
    database.backfills.plan(history(parent="daily"), files)
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
    done = database.backfills.plan(history(), even)
    assert (done.batches, done.items) == (5, 50)
    for refused in (
        lambda: database.backfills.plan(history(), source(table)),
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
    march = history(
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
    execute_on(
        table.engine,
        "ALTER TABLE ops.files ADD day date",
        "UPDATE ops.files SET day = date '2026-03-01' + (id / 10)::int",
    )
    since = datetime(2026, 3, 10, tzinfo=UTC)
    database.backfills.plan(history(since=since, time_column="day"), source(table))
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
        database.backfills.plan(history(since=since, time_column=column), source(table))


def test_backfill_of_listed_items_is_read_through_the_filter(
    database: Database, table: ReflectedMetaTable
) -> None:
    """Expect 3,000 ids to be found in a few reads, and those that the filter hides to be named."""
    insert(table, dict.fromkeys(range(101, 3001), 0))
    everything = history(item_ids=tuple(range(3000, 0, -1)))
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
        asked = history(ids=IdRange(first_id=91, last_id=200))
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
        database.backfills.plan(history(failed_only=True), files)
    database.backfills.plan(history(failed_only=True, parent="daily"), files)
    assert list(acquired(database, files)) == [str(list(range(1, 11)))]


def test_estimate_knows_the_pace_of_kin_only(database: Database, table: ReflectedMetaTable) -> None:
    """Expect the parent's past to tell the time, and nothing that strangers did."""
    files = source(table)
    attempt = acquire(database, files, "daily")
    assert attempt is not None
    database.attempts.succeed(attempt, logging=None, seen=None)
    assert database.backfills.estimate(history(), files).pace is None
    told = database.backfills.estimate(history(parent="daily"), files)
    assert told.pace is not None
    assert (told.pace.job, told.pace.attempts, told.batches) == ("daily", 1, 10)
