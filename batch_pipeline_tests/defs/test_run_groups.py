"""Selecting the batches to launch and grouping them into runs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.defs.partitions import KeyOrder, RunGroups
from batch_pipeline.defs.sensors import LaunchCursor
from batch_pipeline.model.batch import BatchState, due_batches
from batch_pipeline_tests.factories import batch_status

_KEYS = [f"{number:02d}" for number in range(12)]
_SPLIT = ["before", "parent", "after", "left", "right", "new"]


@pytest.mark.parametrize(
    ("state", "attempts", "automatic", "on_request"),
    [
        (BatchState.PLANNED, 0, True, True),
        (BatchState.RUNNING, 1, False, False),
        (BatchState.PUBLISHED, 1, False, False),
        (BatchState.FAILED, 1, False, True),
        (BatchState.INTERRUPTED, 1, True, True),
        (BatchState.DEAD, 3, False, True),
        (BatchState.CANCELLED, 1, False, False),
        (BatchState.SUPERSEDED, 3, False, False),
    ],
)
def test_batch_is_due_automatically_or_on_request_by_state(
    state: BatchState, attempts: int, automatic: bool, on_request: bool
) -> None:
    status = batch_status(1, state, attempts)
    assert due_batches([status], retry_failed=False) == ([status] if automatic else [])
    assert due_batches([status], retry_failed=True) == ([status] if on_request else [])


@pytest.mark.parametrize(
    ("order", "selected", "size", "expected"),
    [
        (list("abcdefghij"), list("abcdefghij"), 4, [list("abcd"), list("efgh"), list("ij")]),
        (list("abcdefg"), list("abdfg"), 16, [["a", "b"], ["d"], ["f", "g"]]),
        (list("ab"), list("abc"), 16, [["a", "b"]]),  # the partition of c is not added yet
        # Halves of a split batch are added after later batches.
        (_SPLIT, ["before", "left", "right", "after", "new"], 16,
         [["before"], ["left", "right"], ["after"], ["new"]]),
    ],
)  # fmt: skip
def test_groups_have_consecutive_keys(
    order: list[str], selected: list[str], size: int, expected: list[list[str]]
) -> None:
    groups = RunGroups(order=KeyOrder(lambda: order), size=size)
    assert all(groups.takes(key, "orders") for key in selected)
    assert groups.groups == expected


@given(
    order=st.permutations(_KEYS).map(lambda keys: keys[:9]),
    selected=st.sets(st.sampled_from(_KEYS)),
    size=st.integers(1, 4),
)
def test_groups_are_ranges_that_contain_every_known_key_once(
    order: list[str], selected: set[str], size: int
) -> None:
    groups = RunGroups(order=KeyOrder(lambda: order), size=size)
    for key in sorted(selected):
        assert groups.takes(key, "orders")
    assert sorted(key for group in groups.groups for key in group) == sorted(selected & {*order})
    for group in groups.groups:
        start = order.index(group[0])
        assert group == order[start : start + len(group)]
        assert len(group) <= size


def test_pauses_between_launches_grow_up_to_half_an_hour() -> None:
    pauses = []
    for tries in (0, 1, 2, 3, 4, 7, 8, 9, 2_000):
        cursor = LaunchCursor(tries={"00": tries}, launched_at={"00": 0.0})
        pauses.append(sum(replace(cursor, looked_at=n).is_early("00") for n in range(4_000)))
    assert pauses == [0, 0, 0, 60, 120, 960, 1_800, 1_800, 1_800]


def test_key_order_is_only_read_when_it_is_needed() -> None:
    reads: list[int] = []

    def keys() -> list[str]:
        reads.append(1)
        return _KEYS

    order = KeyOrder(keys)
    assert reads == []
    assert order.between("03", "05") == _KEYS[3:6]
    for first, last in (("zz", "05"), ("03", "zz"), (None, None)):
        assert order.between(first, last) == []
    assert reads == [1]
