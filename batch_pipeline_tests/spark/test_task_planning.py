"""Task planning: limits, order, and byte ranges of large files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import ByteRange
from batch_pipeline.model.item import Item, LandedFile, modified_at
from batch_pipeline.spark.task_planning import (
    ITEM_COST,
    MAX_TASK_ITEMS,
    SLICE_BYTES,
    TaskInput,
    cut_byte_ranges,
    estimate_cost,
    plan_tasks,
    task_cost_limit,
)

MIB = 2**20
LANDED_AT = modified_at(Path(__file__).stat())


def items_of(*weights: int, ending: str = "csv") -> list[Item]:
    return [
        Item(
            id=number,
            file=LandedFile(
                location=f"file:///in/{number}.{ending}", size_bytes=weight, modified_at=LANDED_AT
            ),
        )
        for number, weight in enumerate(weights)
    ]


@pytest.mark.parametrize(
    ("weights", "sizes"),
    [
        ([], []),
        ([0], [1]),
        ([15 * MIB, 15 * MIB, 3 * MIB], [2, 1]),
        ([1, 99 * MIB, 1, 1], [1, 1, 2]),
        ([1] * 501, [250, 250, 1]),
        ([63 * MIB] * 16, [1] * 16),
        ([31 * MIB] * 64, [4] * 16),
        ([31 * MIB] * 264, [4] * 66),
    ],
)
def test_plan_tasks_keeps_order_and_limits(weights: list[int], sizes: list[int]) -> None:
    """A task has up to 250 items and a sixteenth of the cost, but 32 to 128 MiB."""
    items = items_of(*weights)
    tasks = list(plan_tasks(items, {}))

    assert [len(task.items) for task in tasks] == sizes
    assert [item for task in tasks for item in task.items] == items


@pytest.mark.parametrize(
    ("ending", "sizes"), [("jsonl", [4]), ("jsonl.gz", [1, 1, 1, 1]), ("parquet", [2, 2])]
)
def test_plan_tasks_of_compressed_files_counts_their_expansion(
    ending: str, sizes: list[int]
) -> None:
    """5 MiB of gzip are about 30 MiB of JSON lines, and 5 MiB of parquet about 15 MiB."""
    items = items_of(*[5 * MIB] * 4, ending=ending)

    assert [len(task.items) for task in plan_tasks(items, {})] == sizes


def test_plan_tasks_keeps_position_of_split_item() -> None:
    """Items before a split item do not share a task with items after it."""
    first, large, last = items_of(1, 80 * MIB, 1)
    parts = [TaskInput(items=(large,), byte_range=part) for part in cut_byte_ranges(80 * MIB)]

    tasks = list(plan_tasks([first, large, last], {large.id: parts}))

    assert tasks == [TaskInput(items=(first,)), *parts, TaskInput(items=(last,))]


@given(st.lists(st.integers(0, 64 * MIB), max_size=60))
def test_plan_tasks_of_any_items_has_each_once_within_limits(weights: list[int]) -> None:
    """Only a single item may exceed the cost limit."""
    items = items_of(*weights)
    tasks = list(plan_tasks(items, {}))

    assert [item for task in tasks for item in task.items] == items
    for task in tasks:
        assert len(task.items) <= MAX_TASK_ITEMS
        assert len(task.items) == 1 or sum(map(estimate_cost, task.items)) <= task_cost_limit(items)


@pytest.mark.parametrize(
    ("size", "stops"),
    [
        (0, [0]),
        (SLICE_BYTES, [32 * MIB]),
        (47 * MIB, [47 * MIB]),
        (64 * MIB, [32 * MIB, 64 * MIB]),
        (79 * MIB, [32 * MIB, 79 * MIB]),
        (81 * MIB, [32 * MIB, 64 * MIB, 81 * MIB]),
    ],
)
def test_cut_byte_ranges_cuts_at_multiples_of_32_mib(size: int, stops: list[int]) -> None:
    """A remainder of at most 16 MiB belongs to the last range."""
    starts = [0, *stops[:-1]]

    assert cut_byte_ranges(size) == [
        ByteRange(start, stop) for start, stop in zip(starts, stops, strict=True)
    ]


def test_cost_of_byte_range_is_its_size() -> None:
    """A whole item also has the cost of opening its file."""
    (large,) = items_of(80 * MIB)

    assert TaskInput(items=(large,)).cost == 80 * MIB + ITEM_COST
    assert TaskInput(items=(large,), byte_range=ByteRange(0, 32 * MIB)).cost == 32 * MIB
