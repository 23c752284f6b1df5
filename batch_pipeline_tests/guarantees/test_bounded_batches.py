"""Batches of random tables, cut in databases, beside a reference of ten lines (G6, G7)."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from batch_pipeline.domain.errors import BadWeightError
from batch_pipeline.domain.id_range import MAX_ID
from batch_pipeline.domain.planning import Cut, Limits
from batch_pipeline.inventory.meta.all_cuts import all_cuts
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable
from batch_pipeline_tests.integration.meta_tables import FILES
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
        """Give the rows with what each counts."""
        return [(uid, COUNTS_AS if w is None or w < 0 else w) for uid, w in self.rows]

    def first_bad(self) -> int | None:
        """Give the first id without a usable weight."""
        return next((uid for uid, w in self.rows if w is None or w < 0), None)


def cases(number: int) -> Iterator[Case]:
    """Give random tables: light items and far too heavy ones, none, weights of zero, bad ones."""
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
    """Give cuts as plain numbers."""
    return [(c.id_range.first_id, c.id_range.last_id, c.weight, c.count) for c in cuts]


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
    """Expect one plan whichever way it is made and rows came, within its limits, none left out.

    All tables are cut in one pass, each fifth one batch after batch as well.
    """
    counting = ReflectedMetaTable.open(
        files.engine, files.canonical_name, FILES, on_bad_weight=COUNTS_AS
    )
    tables, batches, alone, refused = 3_000 if long_form else 100, 0, 0, 0
    for number, case in enumerate(cases(tables)):
        expected = reference(case.counted(), case.after, case.ceiling, case.limits)
        fill(files, case, backwards=number % 2 == 1)
        pages = 1 + number % 40
        in_server = all_cuts(counting, case.after, case.ceiling, case.limits, page_rows=pages)
        assert plain(list(in_server)) == expected
        if number % 5 == 0:
            assert plain(one_by_one(counting, case)) == expected
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
