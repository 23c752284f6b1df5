"""Partition keys: text order is id order, and nothing else passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.batch import parse_partition_key, partition_key
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.id_range import MAX_ID, IdRange

ranges = st.lists(st.integers(0, 10**12 - 1) | st.integers(0, MAX_ID), min_size=2, max_size=2).map(
    lambda ids: IdRange(first_id=min(ids), last_id=max(ids))
)
short = st.lists(st.integers(0, 10**12 - 1), min_size=2, max_size=2).map(
    lambda ids: IdRange(first_id=min(ids), last_id=max(ids))
)


@given(ranges)
def test_partition_key_of_any_range_reads_back(id_range: IdRange) -> None:
    assert parse_partition_key(partition_key(id_range)) == id_range


@given(short, short)
def test_partition_keys_sort_as_their_ranges(left: IdRange, right: IdRange) -> None:
    assert (partition_key(left) < partition_key(right)) == (left < right)


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{10,20}-[0-9]{10,20}", fullmatch=True))
def test_parse_of_any_text_gives_its_only_spelling_or_refuses(text: str) -> None:
    try:
        id_range = parse_partition_key(text)
    except InvalidValueError:
        return
    assert partition_key(id_range) == text


@pytest.mark.parametrize(
    ("id_range", "key"),
    [
        (IdRange(first_id=0, last_id=0), "000000000000-000000000000"),
        (IdRange(first_id=801, last_id=1000), "000000000801-000000001000"),
        (IdRange(first_id=1, last_id=10**12), "000000000001-1000000000000"),
        (IdRange(first_id=MAX_ID, last_id=MAX_ID), f"{MAX_ID}-{MAX_ID}"),
    ],
)
def test_partition_key_of_a_range_is_padded_to_twelve_digits(id_range: IdRange, key: str) -> None:
    assert partition_key(id_range) == key
    assert parse_partition_key(key) == id_range


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1-2",
        "000000000001",
        "000000000001-",
        "000000000002-000000000001",
        "0000000000001-000000000002",  # thirteen digits with a needless zero
        "000000000001-000000000002\n",
        " 000000000001-000000000002",
        "000000000001–000000000002",  # an en dash
        "٠٠٠٠٠٠٠٠٠٠٠١-٠٠٠٠٠٠٠٠٠٠٠٢",  # digits of another script
        "-00000000001-000000000002",
        f"000000000001-{MAX_ID + 1}",
        "000000000001-000000000002,000000000003-000000000004",
    ],
)
def test_parse_of_another_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_partition_key(text)


def test_partition_key_of_negative_ids_is_refused() -> None:
    """Expect no key, for its minus would not read back."""
    with pytest.raises(InvalidValueError, match="non-negative"):
        partition_key(IdRange(first_id=-1, last_id=1))
