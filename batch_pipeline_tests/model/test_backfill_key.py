"""Partition keys of backfills: what they name, their order, and what is no such key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.backfill import backfill_key, parse_backfill_key
from batch_pipeline.model.batch import parse_partition_key, partition_key
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.id_range import IdRange

names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,49}", fullmatch=True).filter(
    lambda name: name != "late" and "..." not in name
)
ids = st.integers(min_value=0, max_value=10**8 - 1)


def _range(ends: tuple[int, int]) -> IdRange:
    return IdRange(first_id=min(ends), last_id=max(ends))


def test_key_names_backfill_and_range() -> None:
    key = backfill_key("2023", partition_key(IdRange(first_id=20, last_id=29)))
    assert key == "2023:00000020-00000029"


@given(name=names, ends=st.tuples(ids, ids))
def test_key_that_was_written_is_read_back(name: str, ends: tuple[int, int]) -> None:
    key = backfill_key(name, partition_key(_range(ends)))
    assert parse_backfill_key(key) == (name, _range(ends))
    assert not {"|", ",", "[", "]", "/"}.intersection(key)
    assert "..." not in key


@given(name=names, ranges=st.lists(st.tuples(ids, ids), min_size=2))
def test_order_of_keys_is_the_order_of_ids(name: str, ranges: list[tuple[int, int]]) -> None:
    keys = [backfill_key(name, partition_key(ids)) for ids in sorted(map(_range, ranges))]
    assert keys == sorted(keys)


@given(text=st.text(alphabet="late2023:-. 019", max_size=40))
def test_only_what_is_written_is_read(text: str) -> None:
    try:
        name, id_range = parse_backfill_key(text)
    except InvalidValueError:
        return
    key = text.partition(":")[2]
    assert text in {backfill_key(name, partition_key(id_range, digits)) for digits in (8, 12)}
    assert id_range == parse_partition_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "2023",
        "2023:",
        ":00000020-00000029",
        "2023:20-29",
        "2023:00000029-00000020",
        "20:23:00000020-00000029",
        "late:00000020-00000029",
        "a...b:00000020-00000029",
        "2023: 00000020-00000029",
        "2023:00000020-00000029\n",
        "00000020-00000029",
    ],
)
def test_text_that_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_backfill_key(key)
    assert repr(key) in str(caught.value)
    assert "2023:00000020-00000029" in str(caught.value)


def test_key_of_the_stream_itself_is_no_key_of_a_backfill() -> None:
    with pytest.raises(InvalidValueError):
        parse_backfill_key(partition_key(IdRange(first_id=1, last_id=2)))
