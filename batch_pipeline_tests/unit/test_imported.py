"""How ranges that nothing kept apart become batches: each id in one, whatever the ranges are."""

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.domain.id_range import MIN_ID, IdRange
from batch_pipeline.domain.imported import ForeignAttempt, NotImportedError
from batch_pipeline.domain.imported_ranges import Tiling, compare, parts_of, tiled
from batch_pipeline.inventory.imported import doubts

NOON = datetime(2023, 3, 7, 12, tzinfo=UTC)
Tried = tuple[int, int, bool]


def attempt(number: int, tried: Tried) -> ForeignAttempt:
    """A try at a range that counted one item for each id."""
    first_id, last_id, succeeded = tried
    return ForeignAttempt(
        id=number,
        ids=IdRange(first_id=first_id, last_id=last_id),
        recorded="succeeded" if succeeded else "failed",
        succeeded=succeeded,
        count=last_id - first_id + 1,
        weight=0,
        started_at=NOON,
        finished_at=NOON,
    )


def made(*tries: Tried, there: range | list[int], after_id: int | None = None) -> Tiling:
    """Import tries at a table that has some ids."""
    parts = parts_of([attempt(number, one) for number, one in enumerate(tries)])
    last_id = parts[-1].ids.last_id
    rows = [(uid, 10) for uid in there if uid <= last_id and (after_id is None or uid > after_id)]
    return tiled(compare(parts, rows), after_id)


def ranges(tiling: Tiling) -> list[tuple[int, int, bool]]:
    """Give the batches in short."""
    return [(one.ids.first_id, one.ids.last_id, one.is_published) for one in tiling.batches]


ranges_tried = st.tuples(st.integers(1, 40), st.integers(0, 12), st.booleans()).map(
    lambda drawn: (drawn[0], drawn[0] + drawn[1], drawn[2])
)


@given(st.lists(ranges_tried, min_size=1, max_size=12))
def test_parts_of_any_ranges_have_each_id_once(tries: list[Tried]) -> None:
    """Expect the ids that were tried, published where a try succeeded, and each try kept."""
    parts = parts_of([attempt(number, one) for number, one in enumerate(tries)])
    ids = [uid for part in parts for uid in range(part.ids.first_id, part.ids.last_id + 1)]
    assert ids == sorted({uid for first, last, _ in tries for uid in range(first, last + 1)})
    done = {uid for first, last, good in tries if good for uid in range(first, last + 1)}
    for part in parts:
        inside = range(part.ids.first_id, part.ids.last_id + 1)
        assert {uid in done for uid in inside} == {part.is_published}
        numbers = [one.id for one in part.attempts]
        assert numbers == sorted(set(numbers))
    assert {one.id for part in parts for one in part.attempts} == set(range(len(tries)))


@given(
    st.lists(ranges_tried, min_size=1, max_size=12),
    st.sets(st.integers(-5, 60)),
    st.sampled_from([None, 0]),
)
def test_tiles_of_any_ranges_account_for_each_row(
    tries: list[Tried], there: set[int], after_id: int | None
) -> None:
    """Expect a row up to the bookmark to be seen, tried again, late, or left: one of these."""
    tiling = made(*tries, there=sorted(there), after_id=after_id)
    last_id = tiling.batches[-1].ids.last_id
    rows = {uid for uid in there if uid <= last_id and (after_id is None or uid > after_id)}
    seen = [uid for one in tiling.batches for uid in one.seen]
    assert len(seen) + tiling.late.count + tiling.left.count == len(rows)
    assert {*seen, *tiling.late.first, *tiling.left.first} <= rows
    assert len(seen) == len(set(seen))
    runs = tiling.runs(after_id)
    covered = [uid for uid in rows if any(uid in run for run in runs)]
    assert len(covered) == len(rows) - tiling.left.count
    for before, after in zip(tiling.batches, tiling.batches[1:], strict=False):
        assert before.ids.last_id < after.ids.first_id


def test_ranges_that_share_ids_are_cut_for_the_one_that_succeeded() -> None:
    """Expect what failed to keep both of its ends, and a try without rest to be one more try."""
    tiling = made((1, 20, False), (5, 10, True), (8, 12, True), (6, 9, False), there=range(1, 21))
    assert ranges(tiling) == [(1, 4, False), (5, 10, True), (11, 12, True), (13, 20, False)]
    assert [len(one.attempts) for one in tiling.batches] == [1, 2, 1, 1]
    assert [one.count for one in tiling.batches] == [4, 6, 2, 8]


def test_ids_between_ranges_belong_to_the_published_neighbour() -> None:
    """Expect the lower one first, and rows there to be late."""
    tiling = made((3, 5, True), (8, 9, False), (12, 13, True), there=range(1, 14))
    assert ranges(tiling) == [(3, 7, True), (8, 9, False), (10, 13, True)]
    assert (tiling.late.first, tiling.left.count) == ((1, 2, 6, 7, 10, 11), 0)
    assert tiling.runs(None) == [IdRange(first_id=MIN_ID, last_id=13)]


def test_rows_between_two_failed_ranges_are_left() -> None:
    """Expect trying again not to take them, and empty ids between two to be closed."""
    tiling = made((1, 3, False), (6, 7, False), (10, 11, False), there=[1, 2, 3, 5, 6, 7, 10])
    assert ranges(tiling) == [(1, 3, False), (6, 7, False), (8, 11, False)]
    assert (tiling.late.count, tiling.left.first) == (0, (5,))
    assert tiling.runs(None) == [
        IdRange(first_id=MIN_ID, last_id=3),
        IdRange(first_id=6, last_id=11),
    ]


def test_ranges_after_an_import_begin_where_it_ended() -> None:
    """Expect the rows between to be late, and a run with a start."""
    tiling = made((12, 15, True), there=range(1, 16), after_id=10)
    assert ranges(tiling) == [(11, 15, True)]
    assert tiling.late.first == (11,)
    assert tiling.runs(10) == [IdRange(first_id=11, last_id=15)]


def test_doubts_name_ranges_that_hold_other_items_and_rows_that_are_gone() -> None:
    """Expect what is there more, what is there less, and where the table ends; else nothing."""
    tries = [attempt(number, one) for number, one in enumerate(((1, 3, True), (4, 5, True)))]
    more = replace(tries[0], count=2)
    compared = compare(parts_of([more, tries[1]]), [(1, 0), (2, 0), (3, 0), (5, 0)])
    told = list(doubts.of_ranges(compared, 2))
    assert [text.partition(":")[0] for text in told] == [
        "1 batch that succeeded holds more items than were counted (1..3)",
        "1 batch holds fewer items than were counted (4..5)",
    ]
    whole = compare(parts_of(tries), [(uid, 0) for uid in range(1, 6)])
    assert [*doubts.of_ranges(whole, 2), *doubts.of_end(5, 5)] == []
    for highest, end in ((4, "its ids end at 4"), (None, "it has no items")):
        assert list(doubts.of_end(highest, 5)) == [
            f"rows of the meta table are gone, {end}: new ones begin at id 6"
        ]


def test_refusal_lists_its_problems_up_to_twenty() -> None:
    """Expect a line for each, and the number of the others."""
    error = NotImportedError("host/database", tuple(f"problem {number}" for number in range(25)))
    lines = str(error).splitlines()
    assert lines[0] == "The inventory at host/database was not imported. Nothing was changed."
    assert len(lines) == 22
    assert lines[-1] == "  … and 5 more (--json lists all)"
