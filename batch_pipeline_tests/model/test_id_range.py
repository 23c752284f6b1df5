"""Closed ranges and sets of ids."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.batch import (
    MAX_ID,
    MIN_ID,
    IdRange,
    IdRuns,
    extend,
    unless_full,
)
from batch_pipeline.model.errors import InvalidValueError

ranges = st.lists(st.integers(-20, 20), min_size=2, max_size=2).map(
    lambda ids: IdRange(first_id=min(ids), last_id=max(ids))
)


@given(ranges, st.integers(-25, 25))
def test_id_range_contains_both_ends(id_range: IdRange, item_id: int) -> None:
    assert (item_id in id_range) == (item_id in range(id_range.first_id, id_range.last_id + 1))


def test_id_range_of_all_ids_is_accepted() -> None:
    assert str(IdRange(first_id=MIN_ID, last_id=MAX_ID)) == f"{-(2**63)}..{2**63 - 1}"


@pytest.mark.parametrize(
    ("first_id", "last_id"), [(2, 1), (MAX_ID, MAX_ID + 1), (MIN_ID - 1, 0), (2**64, 2**64)]
)
def test_empty_or_too_large_id_range_is_rejected(first_id: int, last_id: int) -> None:
    with pytest.raises(InvalidValueError):
        IdRange(first_id=first_id, last_id=last_id)


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


def test_id_runs_merge_consecutive_ids() -> None:
    runs = runs_of([1, 2, 3, 7, 9, 10])
    assert (runs.firsts, runs.lasts) == ([1, 7, 9], [3, 7, 10])
    assert unless_full(runs_of([4, 5]), IdRange(first_id=4, last_id=5)) is None


@given(ids=SETS, within=RANGES)
def test_id_runs_within_range(ids: set[int], within: IdRange) -> None:
    runs = runs_of(sorted(ids))
    assert list(runs) == sorted(ids)
    assert all((one in runs) == (one in ids) for one in (*range(-1, 42), MIN_ID, MAX_ID))
    inside = [one for one in sorted(ids) if one in within]
    assert list(runs.within(within)) == inside
    assert runs.within(within) == runs_of(inside)


@given(ids=SETS, cuts=st.lists(IDS, max_size=4))
def test_joined_id_runs_equal_those_of_whole_set(ids: set[int], cuts: list[int]) -> None:
    bounds = [MIN_ID - 1, *sorted(cuts), MAX_ID]
    parts = [
        runs_of(one for one in sorted(ids) if low < one <= high) for low, high in pairwise(bounds)
    ]
    assert IdRuns.joined(parts) == runs_of(sorted(ids))
