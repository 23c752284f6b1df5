"""Backfills: selections, lists of ids, and partition keys."""

from datetime import UTC, datetime, timedelta, timezone
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.config.units import parse_time
from batch_pipeline.model.backfill import (
    Backfill,
    Selection,
    Throughput,
    backfill_key,
    cut_lists,
    parse_backfill_key,
)
from batch_pipeline.model.batch import IdRange, partition_key
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.planning import Limits, cut
from batch_pipeline_tests.factories import limits

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = IdRange(first_id=1, last_id=2)


@given(
    st.dictionaries(st.integers(-50, 50), st.integers(0, 9), max_size=40),
    st.integers(1, 20),
    st.integers(1, 8),
)
def test_cut_lists_agrees_with_cut(
    weights: dict[int, int], max_weight: int, max_count: int
) -> None:
    bounds = Limits(max_weight=max_weight, max_count=max_count)
    rows = sorted(weights.items())
    in_ranges = list(cut(rows, after_id=-51, high_watermark=50, limits=bounds))
    in_lists = list(cut_lists(rows, bounds))
    facts = attrgetter("weight", "count", "closed")
    assert list(map(facts, in_ranges)) == [facts(one) for one, _ in in_lists]
    assert [item_id for _, ids in in_lists for item_id in ids] == [item_id for item_id, _ in rows]
    for one, ids in in_lists:
        assert (one.id_range.first_id, one.id_range.last_id) == (ids[0], ids[-1])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"since": datetime(2026, 3, 1)}, "since"),  # noqa: DTZ001 - the case
        ({"since": NOON, "until": NOON}, "until"),
        ({"item_ids": ()}, "item ids"),
        ({"item_ids": (2**63,)}, "item ids"),
        ({"item_ids": (1,), "failed_only": True}, "item ids"),
        ({"item_ids": (1,), "ids": WINDOW}, "item ids"),
        ({"failed_only": True, "since": NOON}, "times"),
    ],
)
def test_contradictory_selection_is_rejected(options: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Selection(**options)  # type: ignore[arg-type] # the cases of the test
    assert caught.value.name == name


def test_selections_of_same_items_have_equal_json() -> None:
    other_zone = NOON.astimezone(timezone(timedelta(hours=5)))
    assert Selection(since=other_zone).to_json() == Selection(since=NOON).to_json()
    one, same = Selection(item_ids=(3, 1, 3)), Selection(item_ids=(1, 3))
    assert one.to_json() == same.to_json()
    assert one.to_json() != Selection(item_ids=(1, 4)).to_json()
    assert Selection().to_json() == {}
    assert Selection(ids=WINDOW).to_json() == {"first_id": 1, "last_id": 2}


def test_backfill_of_stream_below_id_0_is_rejected() -> None:
    selection = Selection(ids=IdRange(first_id=-1, last_id=9))
    with pytest.raises(InvalidValueError, match="first_id is -1; expected at least 0"):
        Backfill.of_stream("orders", "2023", selection, limits())


def test_throughput_without_weight_counts_batches() -> None:
    by_weight = Throughput(job="orders", attempts=1, seconds_per_batch=3, weight_per_second=10)
    assert by_weight.seconds(batches=2, weight=100) == 10
    by_batches = Throughput(job="orders", attempts=1, seconds_per_batch=3, weight_per_second=None)
    assert by_batches.seconds(batches=2, weight=0) == 6


def test_parse_time() -> None:
    assert parse_time("2026-03-01") == datetime(2026, 3, 1, tzinfo=UTC)
    assert parse_time(" 2026-03-01T12:00:00Z ") == parse_time("2026-03-01T17:00:00+05:00") == NOON


@pytest.mark.parametrize(
    "text",
    [
        *("", "noon", "2026-03-01T12:00:00", "2026-02-30", "1772366400"),
        *("0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"),  # out of range in UTC
    ],
)
def test_parse_time_rejects_ambiguous_or_invalid_text(text: str) -> None:
    with pytest.raises(InvalidValueError, match="since is"):
        parse_time(text, name="since")


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,49}", fullmatch=True).filter(
    lambda name: name != "late" and "..." not in name
)
ids = st.integers(min_value=0, max_value=10**8 - 1)


def _range(ends: tuple[int, int]) -> IdRange:
    return IdRange(first_id=min(ends), last_id=max(ends))


@given(name=names, ends=st.tuples(ids, ids))
def test_backfill_key_round_trips(name: str, ends: tuple[int, int]) -> None:
    key = backfill_key(name, partition_key(_range(ends)))
    assert key.startswith(f"{name}:")
    assert parse_backfill_key(key) == (name, _range(ends))
    assert not {"|", ",", "[", "]", "/"}.intersection(key)
    assert "..." not in key


@pytest.mark.parametrize(
    "key",
    [
        *("", "2023:", ":00000020-00000029", "00000020-00000029"),
        *("2023:20-29", "2023:00000029-00000020", "20:23:00000020-00000029"),
        *("late:00000020-00000029", "a...b:00000020-00000029"),
        *("2023: 00000020-00000029", "2023:00000020-00000029\n"),
    ],
)
def test_parse_backfill_key_rejects_other_text(key: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_backfill_key(key)
    assert repr(key) in str(caught.value)
    assert "2023:00000020-00000029" in str(caught.value)
