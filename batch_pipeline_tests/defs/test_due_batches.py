"""Which batches to encode now, and which of them together."""

import pytest

from batch_pipeline.defs.partitions import group_neighbours
from batch_pipeline.model.batch import BatchState, due_batches
from batch_pipeline_tests.factories import batch_status

STATUSES = [batch_status(first_id, BatchState.PLANNED) for first_id in range(1, 100, 10)]


@pytest.mark.parametrize(
    ("state", "attempts", "by_itself", "by_hand"),
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
def test_due_of_a_state_depends_on_a_person(
    state: BatchState, attempts: int, by_itself: bool, by_hand: bool
) -> None:
    """Expect interrupted batches by themselves; failed and dead ones only by hand."""
    status = batch_status(1, state, attempts)
    assert due_batches([status], retry_failed=False) == ([status] if by_itself else [])
    assert due_batches([status], retry_failed=True) == ([status] if by_hand else [])


def test_due_keeps_id_order() -> None:
    """Expect the chosen ones in the order given, each once."""
    assert due_batches(STATUSES, retry_failed=True) == STATUSES


def test_neighbours_of_a_row_are_grouped_up_to_the_most() -> None:
    """Expect ten keys to make groups of four, four and two."""
    groups = group_neighbours("abcdefghij", "abcdefghij", most=4)
    assert ["".join(group) for group in groups] == ["abcd", "efgh", "ij"]


def test_neighbours_with_another_key_between_are_parted() -> None:
    """Expect no group to span a key that was not chosen."""
    assert group_neighbours("abdfg", "abcdefg", most=16) == [["a", "b"], ["d"], ["f", "g"]]


def test_neighbours_of_one_each_stay_alone() -> None:
    """Expect one key a group when one is the most, and no group of none."""
    assert group_neighbours("ab", "ab", most=1) == [["a"], ["b"]]
    assert group_neighbours("", "ab", most=16) == []


def test_neighbours_leave_halves_of_a_batch_to_runs_of_their_own() -> None:
    """Expect no group across the place where a later key stands between in Dagster's order."""
    chosen = ["before", "left", "right", "after", "new"]
    order = ["before", "parent", "after", "left", "right", "new"]
    assert group_neighbours(chosen, order, most=16) == [
        ["before"],
        ["left", "right"],
        ["after"],
        ["new"],
    ]


def test_neighbours_leave_out_what_dagster_does_not_know() -> None:
    """Expect a key that was planned since to wait for the next look."""
    assert group_neighbours("abc", "ab", most=16) == [["a", "b"]]
