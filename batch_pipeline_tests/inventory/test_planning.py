"""Planning on Postgres: limits, gaps and overlaps, concurrent planners, 64-bit values."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import MAX_ID, Batch, BatchState
from batch_pipeline.model.errors import InvariantError, UnknownBatchError
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.seeds import execute, plan, query, register, unplanned

INSERT_BATCH = """
INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config)
VALUES (:job_id, :first_id, :last_id, 1, 1, '{}')
"""


def _ranges(batches: Sequence[Batch]) -> list[str]:
    return [str(batch.id_range) for batch in batches]


def _stored_batches(database: Database, job: str = "orders") -> list[Batch]:
    return [status.batch for status in database.batches.statuses(job)]


def _insert_item(database: Database, item_id: int, size_bytes: int = 10) -> None:
    execute(
        database,
        "INSERT INTO batch_pipeline.item (stream, id, location, size_bytes, modified_at) "
        "VALUES ('orders', :id, 'file:///landing/' || :id, :size_bytes, now())",
        id=item_id,
        size_bytes=size_bytes,
    )


def _insert_batch(database: Database, **values: Any) -> None:
    with transaction(database.engine) as connection:
        connection.execute(sa.text(INSERT_BATCH), values)


def test_plan_tiles_all_ids(database: Database) -> None:
    register(database, 25)
    batches = plan(database, limits(max_weight=60))
    assert _ranges(batches) == ["1..6", "7..12", "13..18", "19..24", "25..25"]
    assert [(batch.weight, batch.count) for batch in batches] == [(60, 6)] * 4 + [(10, 1)]
    assert _stored_batches(database) == batches


def test_plan_continues_after_last_batch(database: Database) -> None:
    assert plan(database, limits()) == []
    register(database, 3)
    plan(database, limits())
    assert plan(database, limits()) == []
    register(database, 2, first=4)
    assert _ranges(plan(database, limits())) == ["4..5"]
    assert _ranges(_stored_batches(database)) == ["1..3", "4..5"]


def test_plan_handles_64_bit_ids_and_weights(database: Database) -> None:
    for item_id in (3, 5_000_000_000, MAX_ID - 1, MAX_ID):
        _insert_item(database, item_id, size_bytes=2**40)
    batches = plan(database, limits(max_weight=2**41))
    assert _ranges(batches) == [f"1..{MAX_ID - 2}", f"{MAX_ID - 1}..{MAX_ID}"]
    assert [batch.weight for batch in batches] == [2**41, 2**41]
    assert database.batches.batch("orders", batches[1].key) == batches[1]
    assert plan(database, limits()) == []


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
    assert [(str(batch.id_range), batch.count, batch.weight) for batch in batches] == [
        ("1..2", 2, 20)
    ]
    assert _ranges(plan(database, limits())) == ["3..12", "13..22"]


@pytest.mark.guarantee("G1", "G2")
def test_concurrent_plans_and_registrations_have_no_gap_or_overlap(
    database: Database, rival: Database
) -> None:
    def plan_often(inventory: Database) -> None:
        for _ in range(10):
            plan(inventory, limits(max_count=3))

    def register_often(inventory: Database, first: int) -> None:
        for number in range(first, first + 50, 5):
            register(inventory, 5, first=number)

    errors = together(
        partial(plan_often, database),
        partial(plan_often, rival),
        partial(register_often, database, 1),
        partial(register_often, rival, 51),
    )
    assert errors == [None] * 4
    plan(database, limits(max_count=3))
    stored = _stored_batches(database)
    assert (stored[0].id_range.first_id, stored[-1].id_range.last_id) == (1, 100)
    for left, right in pairwise(stored):
        assert right.id_range.first_id == left.id_range.last_id + 1
    for batch in stored:
        assert batch.count == batch.id_range.last_id - batch.id_range.first_id + 1 <= 3
        assert batch.weight == batch.count * 10


@pytest.mark.guarantee("G2")
def test_overlapping_batch_is_rejected_by_database(database: Database) -> None:
    register(database, 20)
    plan(database, limits())
    (job_id,) = query(database, "SELECT id FROM batch_pipeline.job")[0]
    with pytest.raises(
        InvariantError, match="the database refused a batch that overlaps"
    ) as caught:
        _insert_batch(database, job_id=job_id, first_id=20, last_id=30)
    assert "[20,31)" in str(caught.value)
    assert "batch_ranges_do_not_overlap" in str(caught.value.__cause__)
    assert _ranges(_stored_batches(database)) == ["1..10", "11..20"]


@pytest.mark.guarantee("G2")
def test_adjacent_ranges_up_to_largest_id_are_accepted(database: Database) -> None:
    register(database, 1)
    plan(database, limits())
    (job_id,) = query(database, "SELECT id FROM batch_pipeline.job")[0]
    _insert_batch(database, job_id=job_id, first_id=2, last_id=99)
    _insert_batch(database, job_id=job_id, first_id=100, last_id=MAX_ID)
    with pytest.raises(InvariantError, match="the database refused a batch that overlaps"):
        _insert_batch(database, job_id=job_id, first_id=MAX_ID, last_id=MAX_ID)


def test_same_range_in_other_job_is_accepted(database: Database) -> None:
    for name in ("orders", "clicks"):
        register(database, 3, name=name)
        batches = plan(database, limits(), name=name)
        assert [(str(batch.id_range), batch.count) for batch in batches] == [("1..3", 3)]
        assert unplanned(database, database.meta_table(name)) == (0, 0)


@pytest.mark.parametrize(
    ("items", "is_old", "drain", "expected"),
    [
        (8, False, False, ["1..5"]),
        (8, False, True, ["1..5", "6..8"]),
        (4, False, False, ["1..4"]),  # not below the minimum
        (2, True, False, ["1..2"]),
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
    for key in (
        "00000001-00000002",
        "00000002-00000003",
        "1-3",
        "",
        "00000003-00000001",
        "9999999999999999999-9999999999999999999",
    ):
        with pytest.raises(UnknownBatchError) as caught:
            database.batches.batch("orders", key)
        assert f"{key!r} is not a planned batch" in str(caught.value)
