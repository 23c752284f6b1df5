"""Runs that are chosen key by key, and the order of keys that is read when it is needed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.defs.partition_sync import KeyOrder
from batch_pipeline.defs.partitions import group_neighbours
from batch_pipeline.defs.sensors.run_requests import LaunchCursor, RunGroups

_KEYS = [f"{number:02d}" for number in range(12)]
_ORDER = st.permutations(_KEYS).map(lambda keys: keys[:9])


@given(order=_ORDER, chosen=st.sets(st.sampled_from(_KEYS)), size=st.integers(1, 4))
def test_groups_are_those_of_the_step_that_has_all_keys_at_once(
    order: list[str], chosen: set[str], size: int
) -> None:
    """Expect the same groups, whatever is not in the order left out of both."""
    groups = RunGroups(order=KeyOrder(lambda: order), most=99, size=size)
    assert all(groups.takes(key, "orders") for key in sorted(chosen))
    assert groups.groups == group_neighbours(sorted(chosen), order, most=size)


def test_groups_are_full_when_a_key_takes_one_more_run() -> None:
    """Expect keys to be taken as long as they extend a run, and the first that does not refused."""
    groups = RunGroups(order=_KEYS, most=1, size=3)
    assert [groups.takes(key, "orders") for key in ("00", "01", "03")] == [True, True, False]
    assert groups.groups == [["00", "01"]]


def test_groups_have_keys_of_one_job_only() -> None:
    """Expect neighbours of two jobs to be two runs."""
    groups = RunGroups(order=_KEYS, most=9, size=9)
    for key, job in (("00", "a"), ("01", "b"), ("02", "b")):
        assert groups.takes(key, job)
    assert groups.groups == [["00"], ["01", "02"]]


def test_groups_leave_a_key_alone_that_is_to_be_alone() -> None:
    """Expect neither the key before it nor the one behind it in its run."""
    groups = RunGroups(order=_KEYS, most=9, size=9)
    for key in ("00", "01", "02", "03"):
        assert groups.takes(key, "orders", alone=key == "01")
    assert groups.groups == [["00"], ["01"], ["02", "03"]]


def test_pauses_grow_up_to_half_an_hour() -> None:
    """Expect none before the third launch, then a minute, twice as long each time, and an end."""
    pauses = []
    for tries in (0, 1, 2, 3, 4, 7, 8, 9, 2_000):
        memory = LaunchCursor(tries={"00": tries}, launched_at={"00": 0.0})
        early = (one for one in range(4_000) if replace(memory, looked_at=one).is_early("00"))
        pauses.append(sum(1 for _ in early))
    assert pauses == [0, 0, 0, 60, 120, 960, 1_800, 1_800, 1_800]


def test_key_order_is_read_once_and_only_when_it_is_needed() -> None:
    """Expect no reading before the first question, one for all, and places as a list has them."""
    read: list[int] = []

    def keys() -> list[str]:
        read.append(1)
        return _KEYS

    order = KeyOrder(keys)
    assert read == []
    assert (len(order), order[3], list(order[1:3]), "05" in order) == (12, "03", _KEYS[1:3], True)
    assert [order.index(key) for key in _KEYS] == list(range(12))
    assert order.index("04", 4) == 4
    for start, stop in ((5, None), (0, 4)):
        with pytest.raises(ValueError, match="04"):
            order.index("04", start, stop)
    assert "zz" not in order
    assert read == [1]
