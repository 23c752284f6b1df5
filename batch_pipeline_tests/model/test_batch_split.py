"""Splitting a batch in the middle of its items."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.batch import halve
from batch_pipeline.model.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline_tests.factories import batch

IDS = st.sets(st.integers(MIN_ID, MAX_ID), min_size=2, max_size=50).map(sorted)


@pytest.mark.parametrize("left", [(), (2,)])
def test_halves_of_less_than_two_items_are_none(left: tuple[int, ...]) -> None:
    assert halve(batch(1, 3), [(item_id, 10) for item_id in left]) is None


def test_halves_of_an_odd_number_give_the_first_one_more() -> None:
    halves = halve(batch(1, 9), [(2, 10), (4, 20), (7, 40)])
    assert halves is not None
    first, second = halves
    assert (first.id_range, first.count, first.weight) == (IdRange(first_id=1, last_id=6), 2, 30)
    assert (second.id_range, second.count, second.weight) == (
        IdRange(first_id=7, last_id=9),
        1,
        40,
    )
    assert (first.item_ids, second.item_ids) == (None, None)


@given(IDS, st.integers(0, 100), st.integers(0, 100))
def test_halves_of_a_range_tile_it(ids: list[int], before: int, after: int) -> None:
    whole = IdRange(first_id=max(MIN_ID, ids[0] - before), last_id=min(MAX_ID, ids[-1] + after))
    one = batch(whole.first_id, whole.last_id, id=1)
    halves = halve(one, [(item_id, 10) for item_id in ids])
    assert halves is not None
    first, second = halves
    assert first.id_range.first_id == whole.first_id
    assert first.id_range.last_id + 1 == second.id_range.first_id
    assert second.id_range.last_id == whole.last_id
    for half in halves:
        inside = [item_id for item_id in ids if item_id in half.id_range]
        assert (half.count, half.weight) == (len(inside), 10 * len(inside))
    assert first.count - second.count in {0, 1}


@given(IDS, st.data())
def test_halves_of_a_list_share_all_of_its_ids(ids: list[int], data: st.DataObject) -> None:
    there = sorted(data.draw(st.sets(st.sampled_from(ids))))
    one = batch(ids[0], ids[-1], id=1, item_ids=tuple(ids))
    halves = halve(one, [(item_id, 10) for item_id in there])
    assert (halves is None) == (len(there) < 2)
    if halves is None:
        return
    first, second = (half.item_ids or () for half in halves)
    assert [*first, *second] == ids
    for half in halves:
        listed = half.item_ids or ()
        assert half.id_range == IdRange(first_id=listed[0], last_id=listed[-1])
        assert half.count == len(listed)
