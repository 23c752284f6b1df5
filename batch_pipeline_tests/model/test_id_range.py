"""Closed ranges and sets of ids."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.batch import MAX_ID, MIN_ID, IdRange, IdRuns, extend, unless_full
from batch_pipeline.model.errors import InvalidValueError


def test_id_range_contains_both_ends() -> None:
    contained = [item_id for item_id in range(-9, 9) if item_id in IdRange(first_id=-2, last_id=1)]
    assert contained == [-2, -1, 0, 1]
    assert str(IdRange(first_id=MIN_ID, last_id=MAX_ID)) == f"{-(2**63)}..{2**63 - 1}"


@pytest.mark.parametrize(
    ("first_id", "last_id"), [(2, 1), (MAX_ID, MAX_ID + 1), (MIN_ID - 1, 0), (2**64, 2**64)]
)
def test_empty_or_too_large_id_range_is_rejected(first_id: int, last_id: int) -> None:
    with pytest.raises(InvalidValueError):
        IdRange(first_id=first_id, last_id=last_id)


IDS = st.integers(0, 40) | st.sampled_from([MIN_ID, MIN_ID + 1, MAX_ID - 1, MAX_ID])
SETS = st.sets(IDS, max_size=25)
RANGES = st.tuples(IDS, IDS).map(lambda ends: IdRange(first_id=min(ends), last_id=max(ends)))


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
