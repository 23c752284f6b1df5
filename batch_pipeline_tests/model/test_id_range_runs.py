"""Runs of ids, beside sets."""

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.id_range import (
    MAX_ID,
    MIN_ID,
    IdRange,
    IdRuns,
    extend,
    unless_full,
)

IDS = st.integers(0, 40) | st.sampled_from([MIN_ID, MIN_ID + 1, MAX_ID - 1, MAX_ID])
SETS = st.sets(IDS, max_size=25)
RANGES = st.lists(IDS, min_size=2, max_size=2).map(
    lambda ends: IdRange(first_id=min(ends), last_id=max(ends))
)


def runs_of(ids: Iterable[int]) -> IdRuns:
    """Build the set from ids in ascending order."""
    firsts: list[int] = []
    lasts: list[int] = []
    for item_id in ids:
        extend(firsts, lasts, item_id)
    return IdRuns(firsts, lasts)


def test_runs_of_ids_are_their_first_and_last_ones() -> None:
    runs = runs_of([1, 2, 3, 7, 9, 10])
    assert (runs.firsts, runs.lasts) == ([1, 7, 9], [3, 7, 10])
    assert unless_full(runs_of([4, 5]), IdRange(first_id=4, last_id=5)) is None


@given(ids=SETS, within=RANGES)
def test_runs_within_a_range_are_the_ids_of_the_set_in_it(ids: set[int], within: IdRange) -> None:
    runs = runs_of(sorted(ids))
    assert list(runs) == sorted(ids)
    assert all((one in runs) == (one in ids) for one in (*range(-1, 42), MIN_ID, MAX_ID))
    inside = [one for one in sorted(ids) if one in within]
    assert list(runs.within(within)) == inside
    assert runs.within(within) == runs_of(inside)


@given(ids=SETS, cuts=st.lists(IDS, max_size=4))
def test_runs_that_are_joined_are_those_of_the_whole_set(ids: set[int], cuts: list[int]) -> None:
    bounds = [MIN_ID - 1, *sorted(cuts), MAX_ID]
    parts = [
        runs_of(one for one in sorted(ids) if low < one <= high) for low, high in pairwise(bounds)
    ]
    assert IdRuns.joined(parts) == runs_of(sorted(ids))
