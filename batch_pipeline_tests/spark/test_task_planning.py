"""Task planning: limits, order, and byte ranges of large files."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import ByteRange
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.record_rules import LineageColumn
from batch_pipeline.model.stream import CsvOptions, Source
from batch_pipeline.spark.task_planning import (
    ITEM_COST,
    TaskInput,
    count_ranges,
    count_tasks,
    cut_byte_ranges,
    estimate_cost,
    plan_tasks,
    split_files,
)
from batch_pipeline_tests.factories import item, stream
from batch_pipeline_tests.spark.encode_fixture import numbered_csv, set_range_bytes
from batch_pipeline_tests.storage_roots import landed_file

MIB = 2**20


def items_of(*weights: int, ending: str = "csv") -> list[Item]:
    return [
        item(number, location=f"file:///in/{number}.{ending}", size_bytes=weight)
        for number, weight in enumerate(weights)
    ]


@pytest.mark.parametrize(
    ("weights", "sizes"),
    [
        ([], []),
        ([0], [1]),
        ([1] * 250, [250]),  # opening them costs as much as reading 15 MiB
        ([7 * MIB] * 2, [2]),
        ([8 * MIB] * 2, [1, 1]),
        ([15 * MIB, 15 * MIB, 3 * MIB], [1, 1, 1]),
        ([2 * MIB] * 35, [9, 8, 9, 9]),
        ([1, 99 * MIB, 1, 1], [1, 1, 2]),
        ([1] * 1_000, [250] * 4),
        ([1] * 2_000, [250] * 8),
        ([63 * MIB] * 16, [1] * 16),
        ([31 * MIB] * 272, [4] * 68),
    ],
)
def test_plan_tasks_balances_tasks(weights: list[int], sizes: list[int]) -> None:
    """Tasks usually cost 8 to 128 MiB, and their number is a multiple of four if items fit."""
    items = items_of(*weights)
    tasks = list(plan_tasks(items, {}))

    assert [len(task.items) for task in tasks] == sizes
    assert [item for task in tasks for item in task.items] == items


@pytest.mark.parametrize(
    ("ending", "sizes"), [("jsonl", [2, 2]), ("jsonl.gz", [1, 1, 1, 1]), ("parquet", [1, 1, 1, 1])]
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
    parts = [TaskInput(items=(large,), byte_range=part) for part in cut_byte_ranges(80 * MIB, 3)]

    tasks = list(plan_tasks([first, large, last], {large.id: parts}))

    assert tasks == [TaskInput(items=(first,)), *parts, TaskInput(items=(last,))]


@given(st.lists(st.integers(0, 64 * MIB), max_size=60))
def test_plan_tasks_of_any_items_has_each_once_and_equal_costs(weights: list[int]) -> None:
    """A task's cost exceeds its share by one item at most."""
    items = items_of(*weights)
    tasks = list(plan_tasks(items, {}))
    costs = [estimate_cost(item) for item in items]
    count = count_tasks(sum(costs))

    assert [item for task in tasks for item in task.items] == items
    assert len(tasks) <= count  # 60 items are never too many for a task
    assert all(task.cost <= sum(costs) // count + 1 + max(costs) for task in tasks)


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([15 * MIB], [1]),
        ([16 * MIB], [2]),
        ([36 * MIB], [4]),
        ([64 * MIB], [4]),
        ([4096 * MIB], [128]),
        ([180 * MIB, 180 * MIB], [6, 6]),
        ([1, 30 * MIB], [1, 3]),
        ([37 * MIB] * 10, [1] * 10),
        ([63 * MIB] * 40, [1] * 40),
        ([65 * MIB] * 40, [2] * 40),
    ],
)
def test_large_files_are_cut_so_that_tasks_are_equal(weights: list[int], counts: list[int]) -> None:
    """Files below 64 MiB are only cut if their batch has few."""
    assert list(count_ranges(items_of(*weights))) == counts


@given(st.integers(0, 10**12), st.integers(1, 2_000), st.integers(0, 10**12))
def test_byte_ranges_cover_the_file_once(size: int, count: int, start: int) -> None:
    ranges = cut_byte_ranges(size, count, start=start)

    assert (ranges[0].start, ranges[-1].stop, len(ranges)) == (start, start + size, count)
    assert all(one.stop == following.start for one, following in pairwise(ranges))
    sizes = {one.stop - one.start for one in ranges}
    assert max(sizes) - min(sizes) <= 1


def test_cost_of_byte_range_is_its_size() -> None:
    """A whole item also has the cost of opening its file."""
    (large,) = items_of(80 * MIB)

    assert TaskInput(items=(large,)).cost == 80 * MIB + ITEM_COST
    assert TaskInput(items=(large,), byte_range=ByteRange(0, 32 * MIB)).cost == 32 * MIB


def test_split_files_pins_current_version_of_files_that_can_be_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's table may have only a weight, other than the size."""
    set_range_bytes(monkeypatch, MIB)
    path = tmp_path / "a.csv"
    path.write_bytes(numbered_csv(3_000, 2**10))
    source = Source(uri=to_uri(tmp_path))
    known = landed_file(path)
    for weight, count in ((2 * MIB, 3), (2**40, 11)):
        item = Item(id=1, file=LandedFile(location=known.location), row_weight=weight)
        tasks = split_files([item], stream(source=source))[1]
        assert [task.items[0].file for task in tasks] == [known] * count
    escaped = stream(source=Source(uri=source.uri, csv=CsvOptions(escape="\\")))
    numbered = stream(source=source, lineage=(LineageColumn.RECORD_NUMBER,))
    assert [split_files([item], one) for one in (escaped, numbered)] == [{}, {}]
    others = (replace(known, location=f"{known.location}.gone"), replace(known, size_bytes=2**30))
    for other in others:  # reported by the task that reads the whole file
        assert split_files([Item(id=1, file=other)], stream(source=source)) == {}
