"""Closed id ranges within 64 bits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.id_range import MAX_ID, MIN_ID, IdRange

ranges = st.lists(st.integers(-20, 20), min_size=2, max_size=2).map(
    lambda ids: IdRange(first_id=min(ids), last_id=max(ids))
)


@given(ranges, st.integers(-25, 25))
def test_contains_counts_both_ends_in(id_range: IdRange, item_id: int) -> None:
    assert (item_id in id_range) == (item_id in range(id_range.first_id, id_range.last_id + 1))


def test_id_range_of_all_ids_is_accepted() -> None:
    assert str(IdRange(first_id=MIN_ID, last_id=MAX_ID)) == f"{-(2**63)}..{2**63 - 1}"


@pytest.mark.parametrize(
    ("first_id", "last_id"), [(2, 1), (MAX_ID, MAX_ID + 1), (MIN_ID - 1, 0), (2**64, 2**64)]
)
def test_id_range_that_is_empty_or_too_large_is_refused(first_id: int, last_id: int) -> None:
    with pytest.raises(InvalidValueError):
        IdRange(first_id=first_id, last_id=last_id)
