"""Partition keys: text order is id order, and nothing else passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.batch import (
    EARLIER_KEY_DIGITS,
    KEY_DIGITS,
    key_digits,
    parse_partition_key,
    partition_key,
)
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.id_range import MAX_ID, IdRange

digits = st.sampled_from([KEY_DIGITS, EARLIER_KEY_DIGITS])
ranges = st.lists(st.integers(0, 10**12 - 1) | st.integers(0, MAX_ID), min_size=2, max_size=2).map(
    lambda ids: IdRange(first_id=min(ids), last_id=max(ids))
)
short = st.lists(st.integers(0, 10**KEY_DIGITS - 1), min_size=2, max_size=2).map(
    lambda ids: IdRange(first_id=min(ids), last_id=max(ids))
)


@given(ranges, digits)
def test_partition_key_of_any_range_reads_back(id_range: IdRange, width: int) -> None:
    key = partition_key(id_range, width)
    assert parse_partition_key(key) == id_range
    assert partition_key(id_range, key_digits(key)) == key


@given(short, short)
def test_partition_keys_sort_as_their_ranges(left: IdRange, right: IdRange) -> None:
    assert (partition_key(left) < partition_key(right)) == (left < right)


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{7,20}-[0-9]{7,20}", fullmatch=True))
def test_parse_of_any_text_gives_its_only_spelling_or_refuses(text: str) -> None:
    try:
        id_range = parse_partition_key(text)
    except InvalidValueError:
        return
    assert partition_key(id_range, key_digits(text)) == text


@pytest.mark.parametrize(
    ("first_id", "last_id", "key", "earlier_key"),
    [
        (0, 0, "00000000-00000000", "000000000000-000000000000"),
        (801, 1000, "00000801-00001000", "000000000801-000000001000"),
        (1, 10**8, "00000001-100000000", "000000000001-000100000000"),
        (1, 10**12, "00000001-1000000000000", "000000000001-1000000000000"),
        (MAX_ID, MAX_ID, f"{MAX_ID}-{MAX_ID}", f"{MAX_ID}-{MAX_ID}"),
    ],
)
def test_ids_of_a_key_are_padded_to_the_width_of_the_job(
    first_id: int, last_id: int, key: str, earlier_key: str
) -> None:
    id_range = IdRange(first_id=first_id, last_id=last_id)
    assert partition_key(id_range) == key
    assert partition_key(id_range, EARLIER_KEY_DIGITS) == earlier_key
    assert parse_partition_key(key) == parse_partition_key(earlier_key) == id_range


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1-2",
        "00000001",
        "00000001-",
        "00000002-00000001",
        "000000001-00000002",  # nine digits with a needless zero
        "0000000000001-000000000002",  # thirteen
        "00000001-000000000002",  # two widths
        "000000000001-00000002",
        "00000001-00000002\n",
        " 00000001-00000002",
        "00000001–00000002",  # an en dash
        "٠٠٠٠٠٠٠١-٠٠٠٠٠٠٠٢",  # digits of another script
        "-0000001-00000002",
        f"00000001-{MAX_ID + 1}",
        "00000001-00000002,00000003-00000004",
    ],
)
def test_parse_of_another_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_partition_key(text)


def test_partition_key_of_negative_ids_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="non-negative"):
        partition_key(IdRange(first_id=-1, last_id=1))
