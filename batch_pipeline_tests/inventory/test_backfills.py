"""Backfills on Postgres: what they take, where they stop, and who sees them when."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.registered_table import OwnMetaTable
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import AttemptStatus, Batch, BatchState
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    JobChangedError,
    MetaTableError,
    UnknownJobError,
)
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.planning import Limits, Planned
from batch_pipeline_tests.concurrency import run_python, together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.invariants import check_invariants
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
BACKFILL = """
import sys
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.planning import Limits
from batch_pipeline.inventory.database import open_database
database = open_database(sys.argv[1], migrated=None)
request = Backfill.of_stream(
    "orders",
    "2023",
    Selection(ids=IdRange(first_id=20, last_id=80)),
    Limits(max_weight=100, max_count=10),
)
database.backfills.plan(request, database.meta_table("orders"))
"""


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


def test_backfill_by_a_time_that_streams_do_not_have_is_refused(database: Database) -> None:
    """Expect the error to name the time that there is."""
    table = orders(database, 1)
    with pytest.raises(MetaTableError, match="registered_at"):
        database.backfills.plan(request(since=NOON, time_column="imported"), table)


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


@pytest.mark.parametrize(("point", "done"), [("before_commit", 0), ("after_commit", 7)])
def test_backfill_killed_is_there_as_a_whole_or_not_at_all(
    database: Database, database_url: str, point: str, done: int
) -> None:
    table = orders(database, 100)
    before = counts(database)
    assert run_python(BACKFILL, database_url, failpoints=f"backfill.{point}=kill") == -9
    assert (counts(database) == before) == (not done)
    again = database.backfills.plan(request(ids=window(20, 80)), table)
    assert again.items == (0 if done else 61)
    assert len(batches(database)) == 7


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
