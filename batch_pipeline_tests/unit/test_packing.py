"""How items are cut into the work of tasks: bounds, order, and parts of large files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.domain.item import FoundFile, Item, modified_at
from batch_pipeline.spark.packing import (
    ITEM_WORK,
    SLICE_BYTES,
    TASK_ITEMS,
    Work,
    byte_ranges,
    packed,
    task_work,
    work_of,
)
from batch_pipeline.spark.read.slices import ByteRange

MIB = 2**20
WHENEVER = modified_at(Path(__file__).stat())


def weighing(*weights: int, ending: str = "csv") -> list[Item]:
    """Make items of these weights."""
    return [
        Item(
            id=number,
            file=FoundFile(
                location=f"file:///in/{number}.{ending}", size_bytes=weight, modified_at=WHENEVER
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
        ([1] * 401, [200, 200, 1]),
        ([63 * MIB] * 16, [1] * 16),
        ([31 * MIB] * 64, [4] * 16),
        ([31 * MIB] * 264, [4] * 66),
    ],
)
def test_packed_items_keep_their_order_and_the_bounds(weights: list[int], sizes: list[int]) -> None:
    """A task takes up to 200 items, and a sixteenth of the work within 32 and 128 MiB."""
    items = weighing(*weights)
    tasks = list(packed(items, {}))

    assert [len(task.items) for task in tasks] == sizes
    assert [item for task in tasks for item in task.items] == items


@pytest.mark.parametrize(
    ("ending", "sizes"), [("jsonl", [4]), ("jsonl.gz", [1, 1, 1, 1]), ("parquet", [2, 2])]
)
def test_packed_files_that_grow_when_read_share_their_task_with_fewer(
    ending: str, sizes: list[int]
) -> None:
    """Five MiB of gzip are about thirty of JSON lines, five of parquet about fifteen."""
    items = weighing(*[5 * MIB] * 4, ending=ending)

    assert [len(task.items) for task in packed(items, {})] == sizes


def test_packed_item_with_parts_has_its_tasks_in_its_place() -> None:
    """What stands in front of a split file is no longer packed with what stands behind it."""
    first, large, last = weighing(1, 80 * MIB, 1)
    parts = [Work(items=(large,), part=part) for part in byte_ranges(80 * MIB)]

    tasks = list(packed([first, large, last], {large.id: parts}))

    assert tasks == [Work(items=(first,)), *parts, Work(items=(last,))]


@given(st.lists(st.integers(0, 64 * MIB), max_size=60))
def test_packed_tasks_of_any_items_hold_each_once_within_the_bounds(weights: list[int]) -> None:
    """Expect no item lost or doubled, and no task above the bounds but with a single item."""
    items = weighing(*weights)
    tasks = list(packed(items, {}))

    assert [item for task in tasks for item in task.items] == items
    for task in tasks:
        assert len(task.items) <= TASK_ITEMS
        assert len(task.items) == 1 or sum(map(work_of, task.items)) <= task_work(items)


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
def test_byte_ranges_of_a_file_are_cut_at_fixed_places(size: int, stops: list[int]) -> None:
    """Cuts are at multiples of 32 MiB, with a rest of half of that or less in the last one."""
    starts = [0, *stops[:-1]]

    assert byte_ranges(size) == [
        ByteRange(start, stop) for start, stop in zip(starts, stops, strict=True)
    ]


def test_work_of_a_part_is_less_than_that_of_its_file() -> None:
    """The heaviest tasks start first: a part weighs its own bytes, an item a bit of overhead."""
    (large,) = weighing(80 * MIB)

    assert Work(items=(large,)).weight == 80 * MIB + ITEM_WORK
    assert Work(items=(large,), part=ByteRange(0, 32 * MIB)).weight == 32 * MIB
