"""Batches of random tables, cut in databases, beside a reference of ten lines (G6, G7)."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable, all_cuts
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.inventory.meta_tables.watermarks import choose_watermark
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.errors import BadWeightError
from batch_pipeline.model.filter import Condition, Operator
from batch_pipeline.model.id_range import MAX_ID
from batch_pipeline.model.planning import Cut, Limits
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.audit_fixture import Feed
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    FILES,
    execute,
    insert,
    meta_engine,
)
from batch_pipeline_tests.inventory.test_acquire import CREATE, ClientSideSource
from batch_pipeline_tests.proofs import Figures

BAD = (None, -1, -(2**62))
COUNTS_AS = 7  # what a row without a usable weight counts, where that is stated
INSERT = sa.text(
    "INSERT INTO ops.files (id, size_in_bytes) "
    "SELECT * FROM unnest(CAST(:ids AS bigint[]), CAST(:weights AS bigint[]))"
)
Row = tuple[int, int | None]
Plan = list[tuple[int, int, int, int]]  # first id, last id, weight, items


def reference(rows: Sequence[tuple[int, int]], after: int, ceiling: int, limits: Limits) -> Plan:
    """Cut as one would by hand: an item that no longer fits begins the next batch."""
    batches: list[list[tuple[int, int]]] = []
    for row in rows:
        weight = sum(w for _, w in batches[-1]) + row[1] if batches else MAX_ID
        if weight <= limits.max_weight and len(batches[-1]) < limits.max_count:
            batches[-1].append(row)
        else:
            batches.append([row])
    ends = [*(batch[0][0] - 1 for batch in batches[1:]), ceiling]
    starts = [after + 1, *(end + 1 for end in ends)]
    spans = zip(starts, ends, batches, strict=False)
    return [(start, end, sum(w for _, w in batch), len(batch)) for start, end, batch in spans]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A random table: its rows in id order, where planning starts, and the limits of a batch."""

    rows: list[Row]
    after: int
    ceiling: int
    limits: Limits

    def counted(self) -> list[tuple[int, int]]:
        """Return the rows with what each counts."""
        return [(uid, COUNTS_AS if w is None or w < 0 else w) for uid, w in self.rows]

    def first_bad(self) -> int | None:
        """Return the first id without a usable weight."""
        return next((uid for uid, w in self.rows if w is None or w < 0), None)


def cases(number: int) -> Iterator[Case]:
    """Return random tables: light items and far too heavy ones, none, weights of zero, bad ones."""
    chance = random.Random(6)  # noqa: S311 - the same tables each time
    for _ in range(number):
        most = chance.choice([1, 10, 1_000, 2**40])
        limits = Limits(max_weight=chance.randint(1, 3 * most), max_count=chance.randint(1, 12))
        uid = after = chance.choice([0, -100, 2**40])
        rows: list[Row] = []
        for _ in range(chance.choice([0, 1, 5, 30, 60])):
            uid += chance.choice([1, 1, 1, 2, 50])
            weight: int | None = chance.choice([0, chance.randint(0, most), 5 * most])
            if chance.random() < 0.01:
                weight = chance.choice(BAD)
            rows.append((uid, weight))
        yield Case(rows=rows, after=after, ceiling=uid + chance.randint(1, 3), limits=limits)


def plain(cuts: Sequence[Cut]) -> Plan:
    """Return cuts as plain numbers."""
    return [(c.id_range.first_id, c.id_range.last_id, c.weight, c.count) for c in cuts]


def planned(cuts: Sequence[Cut]) -> list[list[int]]:
    """Return the ids that each batch was planned with."""
    return [
        list(range(one.id_range.first_id, one.id_range.last_id + 1))
        if one.runs is None
        else list(one.runs)
        for one in cuts
    ]


def fill(table: ReflectedMetaTable, case: Case, *, backwards: bool) -> None:
    """Make the rows of a case the only ones, in id order or the other way round."""
    rows = case.rows[::-1] if backwards else case.rows
    values = {"ids": [uid for uid, _ in rows], "weights": [weight for _, weight in rows]}
    with table.engine.begin() as connection:
        connection.execute(sa.text("TRUNCATE ops.files"))
        connection.execute(INSERT, values)


def one_by_one(table: ReflectedMetaTable, case: Case) -> list[Cut]:
    """Cut as workers do that acquire batch after batch."""
    cuts: list[Cut] = []
    after = case.after
    while (one := table.next_cut(after, case.ceiling, case.limits)) is not None:
        cuts.append(one)
        after = one.id_range.last_id
    return cuts


def refused_at(table: ReflectedMetaTable, case: Case, expected: Plan) -> int | None:
    """Plan where bad weights are refused: batches as expected, up to the one that is named."""
    cuts: list[Cut] = []
    try:
        cuts.extend(all_cuts(table, case.after, case.ceiling, case.limits))
    except BadWeightError as error:
        assert plain(cuts) == expected[: len(cuts)]
        return error.item_id
    assert plain(cuts) == expected
    return None


@pytest.mark.guarantee("G6", "G7")
def test_batches_of_random_tables_are_those_of_the_reference(
    files: ReflectedMetaTable, figures: Figures, *, long_form: bool
) -> None:
    """All tables are cut in one pass, each fifth also batch by batch."""
    counting = ReflectedMetaTable.open(
        files.engine, files.canonical_name, FILES, on_bad_weight=COUNTS_AS
    )
    tables, batches, alone, refused = 3_000 if long_form else 100, 0, 0, 0
    for number, case in enumerate(cases(tables)):
        expected = reference(case.counted(), case.after, case.ceiling, case.limits)
        fill(files, case, backwards=number % 2 == 1)
        pages = 1 + number % 40
        in_server = all_cuts(counting, case.after, case.ceiling, case.limits, page_rows=pages)
        assert planned(cuts := list(in_server)) == [
            [uid for uid, _ in case.rows if uid in one.id_range] for one in cuts
        ]
        assert plain(cuts) == expected
        if number % 5 == 0:
            assert plain(found := one_by_one(counting, case)) == expected
            assert planned(found) == planned(cuts)
        if number % 5 == 1 or case.first_bad() is not None:
            assert refused_at(files, case, expected) == case.first_bad()
        too_heavy = [count for _, _, weight, count in expected if weight > case.limits.max_weight]
        assert too_heavy == [1] * len(too_heavy)
        assert all(count <= case.limits.max_count for *_, count in expected)
        batches += len(expected)
        alone += len(too_heavy)
        refused += case.first_bad() is not None
    assert min(alone, refused) > 0
    figures(tables=tables, batches=batches, too_heavy_items_alone=alone, differences=0)


@pytest.fixture(params=[MetaSource, ClientSideSource])
def feed(request: pytest.FixtureRequest, database: Database, database_url: str) -> Iterator[Feed]:
    """A job on an empty table, acquired from in one round trip and in several."""
    execute(database.engine, CREATE)
    with meta_engine(database_url) as engine:
        columns = MetaColumns(uid="id", item="item", weight="weight")
        yield _feed(
            database, ReflectedMetaTable.open(engine, "public.files", columns), request.param
        )


def _feed(database: Database, table: ReflectedMetaTable, way: type[MetaSource]) -> Feed:
    made = Feed(database, table)
    made.source = way(table=table, choice=choose_watermark(table, Strategy.REGISTRAR))
    insert(table, {1: 1, 2: 1})
    made.bounds = limits(max_weight=1)
    assert made.drain() == [[1], [2]]  # only the first acquisition of a job takes more round trips
    return made


@pytest.mark.guarantee("G6", "G8")
def test_batch_with_rows_inserted_into_its_gap_hands_out_what_was_planned(feed: Feed) -> None:
    feed.bounds = limits(max_weight=2, max_count=1)
    insert(feed.table, {5: 1, 1_000: 1})
    attempt = feed.acquire()
    assert attempt is not None
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
def test_batch_of_a_filter_with_rows_updated_to_match_hands_out_what_was_planned(
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
    attempt = filtered.acquire()
    assert attempt is not None
    assert (str(attempt.batch.id_range), attempt.batch.count) == ("3..5", 2)
    execute(feed.table.engine, "UPDATE public.files SET weight = 9 WHERE id = 4")
    assert filtered.succeed(attempt) == [3, 5]
    assert filtered.drain() == [[6]]
    assert filtered.audit().late.first == (4,)
    assert filtered.drain() == [[4]]
    check_invariants(feed.database)


@pytest.mark.guarantee("G6", "G8")
def test_batch_split_after_rows_were_inserted_into_its_gaps_holds_what_was_planned(
    feed: Feed,
) -> None:
    feed.bounds = limits(max_count=4)
    insert(feed.table, dict.fromkeys((10, 20, 30, 40, 50), 1))
    attempt = feed.acquire()
    assert attempt is not None
    insert(feed.table, dict.fromkeys((11, 21, 31), 1))
    feed.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
    halves = feed.database.jobs.split("job", attempt.batch.id, feed.table)
    assert [(str(one.id_range), one.count) for one in halves] == [("3..29", 2), ("30..49", 2)]
    assert feed.drain() == [[10, 20], [30, 40], [50]]
    assert feed.audit().late.first == (11, 21, 31)
    assert feed.drain() == [[11, 21, 31]]
    check_invariants(feed.database)
