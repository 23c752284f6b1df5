"""Batches of random tables are compared with those of a ten-line reference (G6, G7)."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable, all_cuts
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.model.batch import MAX_ID, AttemptStatus
from batch_pipeline.model.errors import BadWeightError
from batch_pipeline.model.filter import Condition, Operator
from batch_pipeline.model.planning import Cut, Limits
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.audit_fixture import Feed
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    FILES,
    choose_watermark,
    cut_all,
    execute,
    insert,
    meta_engine,
)
from batch_pipeline_tests.inventory.test_acquire import CREATE, ClientSideSource
from batch_pipeline_tests.proofs import Figures

BAD_WEIGHTS = (None, -1, -(2**62))
DEFAULT_WEIGHT = 7  # of rows without a usable weight, if configured
INSERT = sa.text(
    "INSERT INTO ops.files (id, size_in_bytes) "
    "SELECT * FROM unnest(CAST(:ids AS bigint[]), CAST(:weights AS bigint[]))"
)
Row = tuple[int, int | None]
Plan = list[tuple[int, int, int, int]]  # first id, last id, weight, items


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A random table: its rows in id order, the id that planning starts after, and the limits."""

    rows: list[Row]
    after: int
    high_watermark: int
    limits: Limits

    def reference(self) -> Plan:
        """Cut naively: an item that does not fit starts the next batch."""
        batches: list[list[tuple[int, int]]] = []
        for uid, stored in self.rows:
            row = (uid, DEFAULT_WEIGHT if stored is None or stored < 0 else stored)
            weight = sum(w for _, w in batches[-1]) + row[1] if batches else MAX_ID
            if weight <= self.limits.max_weight and len(batches[-1]) < self.limits.max_count:
                batches[-1].append(row)
            else:
                batches.append([row])
        ends = [*(batch[0][0] - 1 for batch in batches[1:]), self.high_watermark]
        starts = [self.after + 1, *(end + 1 for end in ends)]
        spans = zip(starts, ends, batches, strict=False)
        return [(start, end, sum(w for _, w in batch), len(batch)) for start, end, batch in spans]

    def first_bad(self) -> int | None:
        """Return the first id without a usable weight."""
        return next((uid for uid, w in self.rows if w is None or w < 0), None)

    def cuts(self, table: ReflectedMetaTable) -> Iterator[Cut]:
        """Cut the table in one pass."""
        return all_cuts(table, self.after, self.high_watermark, self.limits)

    def single_cuts(self, table: ReflectedMetaTable) -> list[Cut]:
        """Cut one batch at a time, as acquisitions do."""
        return cut_all(table, self.high_watermark, self.limits, after_id=self.after)


def cases(number: int) -> Iterator[Case]:
    """Yield random tables: empty or with light, too heavy, zero and unusable weights."""
    rng = random.Random(6)  # noqa: S311 - the same tables each time
    for _ in range(number):
        heaviest = rng.choice([1, 10, 1_000, 2**40])
        limits = Limits(max_weight=rng.randint(1, 3 * heaviest), max_count=rng.randint(1, 12))
        uid = after = rng.choice([0, -100, 2**40])
        rows: list[Row] = []
        for _ in range(rng.choice([0, 1, 5, 30, 60])):
            uid += rng.choice([1, 1, 1, 2, 50])
            weight: int | None = rng.choice([0, rng.randint(0, heaviest), 5 * heaviest])
            if rng.random() < 0.01:
                weight = rng.choice(BAD_WEIGHTS)
            rows.append((uid, weight))
        yield Case(rows=rows, after=after, high_watermark=uid + rng.randint(1, 3), limits=limits)


def as_plan(cuts: Sequence[Cut]) -> Plan:
    return [(c.id_range.first_id, c.id_range.last_id, c.weight, c.count) for c in cuts]


def planned_ids(cuts: Sequence[Cut]) -> list[list[int]]:
    return [
        list(range(cut.id_range.first_id, cut.id_range.last_id + 1))
        if cut.runs is None
        else list(cut.runs)
        for cut in cuts
    ]


def fill(table: ReflectedMetaTable, case: Case, *, backwards: bool) -> None:
    """Replace the rows of the table with those of a case, inserted in id or reverse order."""
    rows = case.rows[::-1] if backwards else case.rows
    values = {"ids": [uid for uid, _ in rows], "weights": [weight for _, weight in rows]}
    with table.engine.begin() as connection:
        connection.execute(sa.text("TRUNCATE ops.files"))
        connection.execute(INSERT, values)


def item_with_bad_weight(table: ReflectedMetaTable, case: Case, expected: Plan) -> int | None:
    """Plan with bad weights refused; check the batches and return the reported item, if any."""
    cuts: list[Cut] = []
    try:
        cuts.extend(case.cuts(table))
    except BadWeightError as error:
        assert as_plan(cuts) == expected[: len(cuts)]
        return error.item_id
    assert as_plan(cuts) == expected
    return None


@pytest.mark.guarantee("G6", "G7")
def test_batches_of_random_tables_match_reference(
    files: ReflectedMetaTable, figures: Figures, *, long_form: bool
) -> None:
    """Every table is cut in one pass, every fifth also one batch at a time."""
    with_default_weight = ReflectedMetaTable.open(
        files.engine, files.canonical_name, FILES, on_bad_weight=DEFAULT_WEIGHT
    )
    tables, batches, too_heavy_items, refused = 3_000 if long_form else 100, 0, 0, 0
    for number, case in enumerate(cases(tables)):
        expected = case.reference()
        fill(files, case, backwards=number % 2 == 1)
        cuts = list(case.cuts(with_default_weight))
        assert planned_ids(cuts) == [
            [uid for uid, _ in case.rows if uid in cut.id_range] for cut in cuts
        ]
        assert as_plan(cuts) == expected
        if number % 5 == 0:
            single_cuts = case.single_cuts(with_default_weight)
            assert as_plan(single_cuts) == expected
            assert planned_ids(single_cuts) == planned_ids(cuts)
        if number % 5 == 1 or case.first_bad() is not None:
            assert item_with_bad_weight(files, case, expected) == case.first_bad()
        too_heavy = [count for _, _, weight, count in expected if weight > case.limits.max_weight]
        assert too_heavy == [1] * len(too_heavy)
        assert all(count <= case.limits.max_count for *_, count in expected)
        batches += len(expected)
        too_heavy_items += len(too_heavy)
        refused += case.first_bad() is not None
    assert min(too_heavy_items, refused) > 0
    figures(tables=tables, batches=batches, too_heavy_items_alone=too_heavy_items, differences=0)


@pytest.fixture(params=[MetaSource, ClientSideSource])
def feed(request: pytest.FixtureRequest, database: Database, database_url: str) -> Iterator[Feed]:
    """A job on an empty table, whose batches are acquired in one round trip or in several."""
    execute(database.engine, CREATE)
    columns = MetaColumns(uid="id", item="item", weight="weight")
    with meta_engine(database_url) as engine:
        table = ReflectedMetaTable.open(engine, "public.files", columns)
        feed = Feed(database, table, limits(max_weight=1))
        feed.source = request.param(table=table, choice=choose_watermark(table, Strategy.REGISTRAR))
        insert(table, {1: 1, 2: 1})
        assert feed.drain() == [[1], [2]]  # only the first acquisition needs more round trips
        yield feed


@pytest.mark.guarantee("G6", "G8")
def test_rows_inserted_into_gap_are_not_added_to_acquired_batch(feed: Feed) -> None:
    feed.bounds = limits(max_weight=2, max_count=1)
    insert(feed.table, {5: 1, 1_000: 1})
    attempt = feed.acquired()
    assert (str(attempt.batch.id_range), attempt.batch.count) == ("3..999", 1)
    insert(feed.table, dict.fromkeys(range(6, 16), 1))
    assert feed.succeed(attempt) == [5]
    assert feed.drain() == [[1_000]]
    audit = feed.audit()
    assert (audit.late.count, audit.late.first) == (10, tuple(range(6, 16)))
    assert (audit.missing.count, audit.changed.count) == (0, 0)
    assert feed.drain() == [[uid] for uid in range(6, 16)]
    assert feed.audit().late.count == 0
    check_invariants(feed.database)


@pytest.mark.guarantee("G6", "G8")
def test_rows_updated_to_match_filter_are_not_added_to_acquired_batch(
    feed: Feed,
) -> None:
    light = Condition("weight", Operator.LESS, 10)
    table = ReflectedMetaTable.open(
        feed.table.engine, "public.files", feed.table.columns, where=light
    )
    filtered = Feed(feed.database, table, limits(max_count=2), job="light")
    filtered.source = type(feed.source)(table=table, choice=feed.source.choice)
    assert filtered.drain() == [[1, 2]]
    insert(feed.table, {3: 1, 4: 99, 5: 1, 6: 1})
    attempt = filtered.acquired()
    assert (str(attempt.batch.id_range), attempt.batch.count) == ("3..5", 2)
    execute(feed.table.engine, "UPDATE public.files SET weight = 9 WHERE id = 4")
    assert filtered.succeed(attempt) == [3, 5]
    assert filtered.drain() == [[6]]
    assert filtered.audit().late.first == (4,)
    assert filtered.drain() == [[4]]
    check_invariants(feed.database)


@pytest.mark.guarantee("G6", "G8")
def test_rows_inserted_into_gaps_are_not_added_to_split_batches(
    feed: Feed,
) -> None:
    feed.bounds = limits(max_count=4)
    insert(feed.table, dict.fromkeys((10, 20, 30, 40, 50), 1))
    attempt = feed.acquired()
    insert(feed.table, dict.fromkeys((11, 21, 31), 1))
    feed.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
    halves = feed.database.jobs.split("job", attempt.batch.id, feed.table)
    assert [(str(half.id_range), half.count) for half in halves] == [("3..29", 2), ("30..49", 2)]
    assert feed.drain() == [[10, 20], [30, 40], [50]]
    assert feed.audit().late.first == (11, 21, 31)
    assert feed.drain() == [[11, 21, 31]]
    check_invariants(feed.database)
