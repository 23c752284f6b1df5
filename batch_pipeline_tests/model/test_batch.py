"""Ranges and sets of ids, partition keys of batches, and splits."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.batch import (
    EARLIER_KEY_DIGITS,
    KEY_DIGITS,
    MAX_ID,
    MIN_ID,
    IdRange,
    IdRuns,
    extend,
    halve,
    key_digits,
    parse_partition_key,
    partition_key,
    unless_full,
)
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline_tests.factories import batch

digits = st.sampled_from([KEY_DIGITS, EARLIER_KEY_DIGITS])


def ranges_of(ids: st.SearchStrategy[int]) -> st.SearchStrategy[IdRange]:
    """Return a strategy for ranges between two of these ids."""
    ends = st.tuples(ids, ids).map(sorted)
    return ends.map(lambda both: IdRange(first_id=both[0], last_id=both[1]))


ranges = ranges_of(st.integers(0, 10**12 - 1) | st.integers(0, MAX_ID))
short = ranges_of(st.integers(0, 10**KEY_DIGITS - 1))


@given(ranges, digits)
def test_partition_key_round_trips(id_range: IdRange, width: int) -> None:
    key = partition_key(id_range, width)
    assert parse_partition_key(key) == id_range
    assert partition_key(id_range, key_digits(key)) == key


@given(short, short)
def test_partition_keys_sort_like_their_ranges(left: IdRange, right: IdRange) -> None:
    assert (partition_key(left) < partition_key(right)) == (left < right)


@pytest.mark.parametrize(
    ("first_id", "last_id", "key", "earlier_key"),
    [
        (0, 0, "00000000-00000000", "000000000000-000000000000"),
        (1, 10**8, "00000001-100000000", "000000000001-000100000000"),
        (1, 10**12, "00000001-1000000000000", "000000000001-1000000000000"),
    ],
)
def test_ids_of_partition_key_are_padded_to_width_of_job(
    first_id: int, last_id: int, key: str, earlier_key: str
) -> None:
    id_range = IdRange(first_id=first_id, last_id=last_id)
    assert partition_key(id_range) == key
    assert partition_key(id_range, EARLIER_KEY_DIGITS) == earlier_key
    assert parse_partition_key(key) == parse_partition_key(earlier_key) == id_range


@pytest.mark.parametrize(
    "text",
    [
        *("", "1-2", "00000001-", "00000002-00000001", "-0000001-00000002"),
        *("00000001-00000002\n", " 00000001-00000002", f"00000001-{MAX_ID + 1}"),
        "000000001-00000002",  # nine digits with a leading zero
        "0000000000001-000000000002",  # thirteen
        *("00000001-000000000002", "000000000001-00000002"),  # two widths
        "00000001–00000002",  # an en dash
        "٠٠٠٠٠٠٠١-٠٠٠٠٠٠٠٢",  # digits of another script
    ],
)
def test_parse_partition_key_rejects_other_text(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_partition_key(text)


def test_partition_key_of_negative_ids_is_rejected() -> None:
    with pytest.raises(InvalidValueError, match="non-negative"):
        partition_key(IdRange(first_id=-1, last_id=1))


IDS = st.sets(st.integers(MIN_ID, MAX_ID), min_size=2, max_size=50).map(sorted)


def test_halve_of_odd_number_of_items_puts_one_more_in_first_half() -> None:
    assert halve(batch(1, 3), []) is halve(batch(1, 3), [(2, 10)]) is None
    halves = halve(batch(1, 9), [(2, 10), (4, 20), (7, 40)])
    assert halves is not None
    first, second = halves
    assert (first.id_range, first.count, first.weight) == (IdRange(first_id=1, last_id=6), 2, 30)
    assert (second.id_range, second.count, second.weight) == (IdRange(first_id=7, last_id=9), 1, 40)
    assert (first.item_ids, second.item_ids) == (None, None)


@given(IDS, st.integers(0, 100), st.integers(0, 100))
def test_halves_of_range_tile_it(ids: list[int], before: int, after: int) -> None:
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
def test_halves_of_id_list_share_all_ids(ids: list[int], data: st.DataObject) -> None:
    existing = sorted(data.draw(st.sets(st.sampled_from(ids))))
    one = batch(ids[0], ids[-1], id=1, item_ids=tuple(ids))
    halves = halve(one, [(item_id, 10) for item_id in existing])
    assert (halves is None) == (len(existing) < 2)
    if halves is None:
        return
    first, second = (half.item_ids or () for half in halves)
    assert [*first, *second] == ids
    for half in halves:
        listed = half.item_ids or ()
        assert half.id_range == IdRange(first_id=listed[0], last_id=listed[-1])
        assert half.count == len(listed)


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


FEW_IDS = st.integers(0, 40) | st.sampled_from([MIN_ID, MIN_ID + 1, MAX_ID - 1, MAX_ID])
SETS = st.sets(FEW_IDS, max_size=25)
RANGES = ranges_of(FEW_IDS)


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


@given(ids=SETS, cuts=st.lists(FEW_IDS, max_size=4))
def test_joined_id_runs_equal_those_of_whole_set(ids: set[int], cuts: list[int]) -> None:
    bounds = [MIN_ID - 1, *sorted(cuts), MAX_ID]
    parts = [
        runs_of(one for one in sorted(ids) if low < one <= high) for low, high in pairwise(bounds)
    ]
    assert IdRuns.joined(parts) == runs_of(sorted(ids))
