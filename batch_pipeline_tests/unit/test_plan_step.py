"""Which batches to encode now, and which of them together."""

import pytest

from batch_pipeline.domain.batch import BatchState, BatchStatus
from batch_pipeline.steps.plan import due, neighbours
from batch_pipeline_tests.factories import batch, batch_status

STATUSES = [batch_status(first_id, BatchState.PLANNED) for first_id in range(1, 100, 10)]


def _first_ids(statuses: list[BatchStatus]) -> list[int]:
    return [status.batch.id_range.first_id for status in statuses]


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
    assert due([status], retry_failed=False) == ([status] if by_itself else [])
    assert due([status], retry_failed=True) == ([status] if by_hand else [])


def test_due_keeps_id_order() -> None:
    """Expect the chosen ones in the order given, each once."""
    assert due(STATUSES, retry_failed=True) == STATUSES


def test_neighbours_of_a_row_are_grouped_up_to_the_most() -> None:
    """Expect ten batches to make groups of four, four and two."""
    groups = neighbours(STATUSES, STATUSES, most=4)
    assert [_first_ids(group) for group in groups] == [
        [1, 11, 21, 31],
        [41, 51, 61, 71],
        [81, 91],
    ]


def test_neighbours_with_another_batch_between_are_parted() -> None:
    """Expect no group to span a batch that was not chosen."""
    chosen = [STATUSES[0], STATUSES[1], STATUSES[3], STATUSES[5], STATUSES[6]]
    groups = neighbours(chosen, STATUSES, most=16)
    assert [_first_ids(group) for group in groups] == [[1, 11], [31], [51, 61]]


def test_neighbours_of_one_each_stay_alone() -> None:
    """Expect one batch a group when one is the most, and no group of none."""
    assert neighbours(STATUSES[:2], STATUSES, most=1) == [[STATUSES[0]], [STATUSES[1]]]
    assert neighbours([], STATUSES, most=16) == []


def test_neighbours_leave_halves_of_a_batch_to_runs_of_their_own() -> None:
    """Expect no group across the place where a later batch stands between in Dagster's order."""
    before, parent, after, new = STATUSES[0], STATUSES[1], STATUSES[2], STATUSES[4]
    left, right = (
        BatchStatus(batch=batch(first, first + 4, id=number), state=BatchState.PLANNED, attempts=0)
        for first, number in ((11, 33), (16, 34))
    )
    statuses = [before, parent, left, right, after, new]
    groups = neighbours([before, left, right, after, new], statuses, most=16)
    assert [_first_ids(group) for group in groups] == [[1], [11, 16], [21], [41]]
