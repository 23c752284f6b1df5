"""Planning and splitting on Postgres: limits, gaps, overlaps, concurrency, poison items."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import ceil, log2
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import read_items
from batch_pipeline.inventory.planning import split_batch
from batch_pipeline.model.batch import (
    MAX_ID,
    Attempt,
    AttemptStatus,
    Batch,
    BatchState,
    BatchStatus,
    IdRange,
)
from batch_pipeline.model.errors import (
    BatchSupersededError,
    ConfigurationError,
    InvariantError,
    UnknownBatchError,
)
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import found_file, limits
from batch_pipeline_tests.inventory.audit_fixture import Feed
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import delete, insert
from batch_pipeline_tests.seeds import (
    claimed,
    execute,
    fail,
    insert_item,
    plan,
    publish,
    query,
    register,
    unplanned,
)

INSERT_BATCH = """
INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config)
VALUES (:job_id, :first_id, :last_id, 1, 1, '{}')
"""


def _ranges(batches: Sequence[Batch]) -> list[str]:
    return [str(batch.id_range) for batch in batches]


def _stored_batches(database: Database, job: str = "orders") -> list[Batch]:
    return [status.batch for status in database.batches.statuses(job)]


def _insert_batch(database: Database, **values: Any) -> None:
    with transaction(database.engine) as connection:
        connection.execute(sa.text(INSERT_BATCH), values)


def test_plan_tiles_new_ids(database: Database) -> None:
    assert plan(database, limits()) == []
    register(database, 25)
    batches = plan(database, limits(max_weight=60))
    assert _ranges(batches) == ["1..6", "7..12", "13..18", "19..24", "25..25"]
    assert [(batch.weight, batch.count) for batch in batches] == [(60, 6)] * 4 + [(10, 1)]
    assert plan(database, limits()) == []
    register(database, 2, first=26)
    assert _ranges(plan(database, limits())) == ["26..27"]
    assert _stored_batches(database)[:-1] == batches


def test_plan_handles_64_bit_ids_and_weights(database: Database) -> None:
    for item_id in (3, 5_000_000_000, MAX_ID - 1, MAX_ID):
        insert_item(database, item_id, size_bytes=2**40)
    batches = plan(database, limits(max_weight=2**41))
    assert _ranges(batches) == [f"1..{MAX_ID - 2}", f"{MAX_ID - 1}..{MAX_ID}"]
    assert [batch.weight for batch in batches] == [2**41, 2**41]
    assert database.batches.batch("orders", batches[1].key) == batches[1]
    assert plan(database, limits()) == []
    assert database.meta_table("orders").backlog(MAX_ID) == (0, 0)


def test_item_registered_during_plan_is_planned_next_time(
    database: Database, rival: Database
) -> None:
    register(database, 2)

    def register_rival(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if "max(batch_pipeline.item.id)" in statement:
            register(rival, 20, first=3)

    sa.event.listen(database.engine, "after_cursor_execute", register_rival)
    batches = plan(database, limits())
    sa.event.remove(database.engine, "after_cursor_execute", register_rival)
    [batch] = batches
    assert (str(batch.id_range), batch.count, batch.weight) == ("1..2", 2, 20)
    assert _ranges(plan(database, limits())) == ["3..12", "13..22"]


@pytest.mark.guarantee("G1", "G2")
def test_concurrent_plans_and_registrations_have_no_gap_or_overlap(
    database: Database, rival: Database
) -> None:
    """Both registrations list the same hundred files, in opposite order."""

    def plan_often(inventory: Database) -> int:
        for _ in range(20):
            plan(inventory, limits(max_count=3))
        return 0

    def register_often(inventory: Database, listing: range) -> int:
        table, new = inventory.meta_table("orders"), 0
        for first in listing:
            files = [found_file(number) for number in range(first, first + 5)]
            new += table.register(files, accept_changed=False).new_items
        return new

    done = together(
        partial(plan_often, database),
        partial(plan_often, rival),
        partial(register_often, database, range(1, 101, 5)),
        partial(register_often, rival, range(96, 0, -5)),
    )
    assert sum(number for number in done if isinstance(number, int)) == 100, done
    plan(database, limits(max_count=3))
    check_invariants(database)  # there are no gaps and no overlaps
    stored = _stored_batches(database)
    assert (stored[0].id_range.first_id, stored[-1].id_range.last_id) == (1, 100)
    for batch in stored:
        ids = range(batch.id_range.first_id, batch.id_range.last_id + 1)
        assert (batch.count, batch.weight) == (len(ids), 10 * len(ids))
        assert [item.id for item in database.meta_table("orders").items(batch)] == list(ids)
    locations = "SELECT count(DISTINCT location) FROM batch_pipeline.item"
    assert query(database, locations) == [(100,)]


@pytest.mark.guarantee("G2")
def test_adjacent_ranges_up_to_largest_id_are_accepted(database: Database) -> None:
    register(database, 1)
    plan(database, limits())
    (job_id,) = query(database, "SELECT id FROM batch_pipeline.job")[0]
    _insert_batch(database, job_id=job_id, first_id=2, last_id=99)
    _insert_batch(database, job_id=job_id, first_id=100, last_id=MAX_ID)
    stored = _stored_batches(database)
    for first_id, last_id, text in (
        (99, 99, "[99,100)"),
        (MAX_ID, MAX_ID, f"[{MAX_ID},"),
    ):
        overlaps = pytest.raises(InvariantError, match="the database refused a batch that overlaps")
        with overlaps as caught:
            _insert_batch(database, job_id=job_id, first_id=first_id, last_id=last_id)
        assert text in str(caught.value)
        assert "batch_ranges_do_not_overlap" in str(caught.value.__cause__)
    assert _stored_batches(database) == stored


@pytest.mark.parametrize(
    ("items", "is_old", "drain", "expected"),
    [
        (8, False, False, ["1..5"]),
        (8, False, True, ["1..5", "6..8"]),
        (4, False, False, ["1..4"]),  # not below the minimum
        (2, True, False, ["1..2"]),
        (8, True, False, ["1..5"]),  # only item 1 is old
    ],
)
def test_batch_below_min_weight_waits_for_age_or_drain(
    database: Database, items: int, expected: list[str], *, is_old: bool, drain: bool
) -> None:
    """Batches have at most 5 items; one below 40 bytes waits for an hour."""
    bounds = limits(max_count=5, min_weight=40, max_wait=timedelta(hours=1))
    register(database, items)
    if is_old:
        age = "UPDATE batch_pipeline.item SET registered_at = now() - interval '2 hours'"
        execute(database, f"{age} WHERE id = 1")
    assert _ranges(plan(database, bounds, drain=drain)) == expected
    assert plan(database, bounds, drain=False) == []
    rest = items - int(expected[-1].split("..")[1])
    assert unplanned(database, database.meta_table("orders")) == (rest, 10 * rest)


def test_batch_is_found_by_key_and_item(database: Database) -> None:
    register(database, 13)
    first, second = plan(database, limits())
    assert database.batches.batch("orders", "00000011-00000013") == second
    assert database.batches.batch_of_item("orders", 10) == first
    assert database.batches.batch_of_item("orders", 11) == second
    assert database.batches.batch_of_item("orders", 14) is None
    states = [(s.state, s.attempts, s.generation) for s in database.batches.statuses("orders")]
    assert states == [(BatchState.PLANNED, 0, None)] * 2


def test_key_without_batch_raises_unknown_batch(database: Database) -> None:
    register(database, 3)
    plan(database, limits())
    ranges = ["00000001-00000002", "00000002-00000003", "00000003-00000001"]
    for key in (*ranges, "1-3", "", "9999999999999999999-9999999999999999999"):
        with pytest.raises(UnknownBatchError) as caught:
            database.batches.batch("orders", key)
        assert f"{key!r} is not a planned batch" in str(caught.value)
        assert "`batch-pipeline jobs list orders` lists unfinished batches" in str(caught.value)


def _feed(
    database: Database, files: ReflectedMetaTable, ids: Iterable[int], max_count: int
) -> Feed:
    """Return a job that splits dead batches, on a table of items of 10 bytes."""
    insert(files, dict.fromkeys(ids, 10))
    bounds = limits(max_weight=10_000, max_count=max_count)
    return Feed(database, files, bounds, terms={"bisect": True})


def _process_all(feed: Feed, bad: set[int]) -> list[Attempt]:
    """Acquire until nothing is left; batches with a bad item fail."""
    attempts: list[Attempt] = []
    while (attempt := feed.acquire()) is not None:
        attempts.append(attempt)
        assert len(attempts) < 200, "it does not end"
        items = read_items(feed.database.engine, feed.table, attempt.batch)
        if bad & {item.id for item in items}:
            feed.database.attempts.fail(attempt, "a bad item", AttemptStatus.FAILED)
        else:
            feed.succeed(attempt)
    return attempts


def _dead_items(feed: Feed) -> dict[int, BatchStatus]:
    """Return the dead batches of the job by their only item."""
    unfinished = feed.database.jobs.unfinished(feed.job)
    dead = [status for status in unfinished if status.state is BatchState.DEAD]
    items = [read_items(feed.database.engine, feed.table, status.batch) for status in dead]
    return {item.id: status for status, [item] in zip(dead, items, strict=True)}


def _live_batches(database: Database) -> list[tuple[int, int, str]]:
    rows = query(
        database,
        "SELECT first_id, last_id, state FROM batch_pipeline.batch JOIN batch_pipeline.batch_state "
        "ON batch_id = id WHERE superseded_at IS NULL ORDER BY first_id",
    )
    return [(first, last, state) for first, last, state in rows]


@pytest.mark.parametrize("bad", [1, 51, 100])
def test_bisect_isolates_one_bad_item_of_hundred(
    database: Database, files: ReflectedMetaTable, bad: int
) -> None:
    """The other items are published once, within 3 + 2 * 7 + 2 attempts."""
    feed = _feed(database, files, range(1, 101), max_count=100)
    attempts = _process_all(feed, {bad})
    assert sorted(feed.taken) == [item_id for item_id in range(1, 101) if item_id != bad]
    dead = [batch for batch in _live_batches(database) if batch[2] == "dead"]
    assert dead == [(bad, bad, "dead")]
    assert len(attempts) <= 3 + 2 * ceil(log2(100)) + 2
    check_invariants(database)
    [(item_id, status)] = _dead_items(feed).items()
    assert (item_id, status.error) == (bad, "a bad item")
    assert feed.acquire() is None


def test_concurrent_bisect_publishes_every_good_item_once(
    database: Database, rival: Database, files: ReflectedMetaTable
) -> None:
    feed, bad = _feed(database, files, range(1, 61), max_count=20), {7, 8, 31, 60}
    other = replace(feed, database=rival, taken=[])
    results = together(partial(_process_all, feed, bad), partial(_process_all, other, bad))
    assert [result for result in results if isinstance(result, Exception)] == []
    _process_all(feed, bad)
    assert sorted(feed.taken + other.taken) == sorted(set(range(1, 61)) - bad)
    assert set(_dead_items(feed)) == bad
    check_invariants(database)


def test_half_is_split_at_first_failure_or_third_interruption(
    database: Database, files: ReflectedMetaTable
) -> None:
    feed = _feed(database, files, range(1, 5), max_count=4)
    for status in [AttemptStatus.FAILED] * 3 + [AttemptStatus.ABANDONED] * 3:
        database.attempts.fail(feed.acquired(max_attempts=3), "gone", status)
    assert _live_batches(database) == [(1, 2, "dead"), (3, 4, "planned")]
    check_invariants(database)


def test_split_tiles_range_and_halves_remaining_items(
    database: Database, files: ReflectedMetaTable
) -> None:
    """Ids of deleted rows belong to the first half."""
    feed = _feed(database, files, [], max_count=100)
    insert(files, {10: 1, 20: 2, 30: 4, 40: 8, 50: 16})
    attempt = feed.acquired()
    database.attempts.fail(attempt, "a bad item", AttemptStatus.FAILED)
    delete(files, files.uid == 20)
    halves = database.jobs.split("job", attempt.batch.id, files)
    assert [(str(half.id_range), half.weight, half.count) for half in halves] == [
        ("10..39", 5, 2),
        ("40..50", 24, 2),
    ]
    configs = query(database, "SELECT DISTINCT config FROM batch_pipeline.batch")
    assert configs == [(feed.request().config,)]
    check_invariants(database)


def test_split_of_list_batch_divides_list(database: Database, files: ReflectedMetaTable) -> None:
    """All listed ids are kept, including one whose row was deleted."""
    late = [5, 6, 50, 77, 90]
    feed = _feed(database, files, set(range(1, 101)).difference(late), max_count=100)
    feed.drain()
    insert(files, dict.fromkeys(late, 10))
    assert feed.audit().late_batches == 1
    delete(files, files.uid == 50)
    first, second = database.jobs.split("job", "5..90", files)
    assert (first.item_ids, first.weight, str(first.id_range)) == ((5, 6, 50), 20, "5..50")
    assert (second.item_ids, second.weight, str(second.id_range)) == ((77, 90), 20, "77..90")
    check_invariants(database)
    _process_all(feed, {77})
    [(item_id, status)] = _dead_items(feed).items()
    assert (item_id, status.batch.item_ids) == (77, (77,))
    check_invariants(database)


def test_split_of_stream_batch_replaces_it_by_halves(database: Database) -> None:
    register(database, 5)
    [batch] = plan(database, limits())
    first, second = database.jobs.split(
        "orders", batch.key, database.meta_table("orders").reflected()
    )
    assert (first.key, first.weight) == ("00000001-00000003", 30)
    assert (second.key, second.weight) == ("00000004-00000005", 20)
    assert database.batches.batch("orders", second.key) == second
    assert publish(database, first).generation == publish(database, second).generation == 1
    check_invariants(database)
    with pytest.raises(BatchSupersededError), claimed(database, batch):
        pass
    check_invariants(database)


def test_batch_of_one_item_or_none_cannot_be_split(database: Database) -> None:
    """The message names id and location of the item."""
    register(database, 1)
    [batch] = plan(database, limits())
    with pytest.raises(ConfigurationError, match="cannot be split") as caught:
        split_batch(database.engine, batch, database.meta_table("orders").reflected())
    assert "one item, 1 (file:///landing/orders-0001.csv)" in str(caught.value)
    assert f"batch-pipeline jobs retry orders --batch {batch.id}" in str(caught.value)
    execute(database, "DELETE FROM batch_pipeline.item")
    with pytest.raises(ConfigurationError, match="none of its items is left"):
        split_batch(database.engine, batch, database.meta_table("orders").reflected())
    assert _live_batches(database) == [(1, 1, "planned")]


def test_running_published_or_superseded_batch_cannot_be_split(
    database: Database, rival: Database
) -> None:
    register(database, 4)
    running, published = plan(database, limits(max_count=2))
    publish(database, published)
    table = database.meta_table("orders").reflected()
    with pytest.raises(ConfigurationError, match="published already"):
        split_batch(database.engine, published, table)
    with claimed(rival, running):
        with pytest.raises(ConfigurationError, match="an attempt on it is running"):
            split_batch(database.engine, running, table)
        rival.attempts.close_dead("orders")
    fail(database, running)
    split_batch(database.engine, running, table)
    with pytest.raises(ConfigurationError, match="superseded already"):
        split_batch(database.engine, running, table)
    check_invariants(database)


def test_concurrent_splits_split_once(database: Database, rival: Database) -> None:
    register(database, 4)
    [batch] = plan(database, limits())

    def split(inventory: Database) -> tuple[Batch, Batch]:
        return split_batch(inventory.engine, batch, inventory.meta_table("orders").reflected())

    results = together(lambda: split(database), lambda: split(rival))
    kinds = sorted(type(result).__name__ for result in results)
    assert kinds == ["ConfigurationError", "tuple"]
    check_invariants(database)


def test_bisect_skips_dead_batch_that_cannot_be_split(
    database: Database, files: ReflectedMetaTable
) -> None:
    """The dead batch has shrunk to one item."""
    feed = _feed(database, files, range(1, 5), max_count=2)
    for _ in range(2):
        database.attempts.fail(feed.acquired(max_attempts=1), "no", AttemptStatus.FAILED)
    delete(files, files.uid == 1)
    assert feed.acquired(max_attempts=1).batch.id_range == IdRange(first_id=3, last_id=3)
    check_invariants(database)
