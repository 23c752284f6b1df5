"""Cuts items into the pieces of work that tasks get: files packed together, or a part of one file.

Pure arithmetic on names and weights, the same on every machine; no file is opened here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from batch_pipeline.domain.item import Item
from batch_pipeline.spark.read.csv_slices import CsvSlice
from batch_pipeline.spark.read.slices import ByteRange

# Fixed, whatever the number of cores: the same items give the same part files on every machine.
SLICE_BYTES = 32 * 2**20
TASK_WORK = 32 * 2**20  # of small batches; a task costs Spark about 20 ms, so of large ones
MOST_TASK_WORK = 128 * 2**20  # a sixteenth of the whole, up to this
TASKS = 16
TASK_ITEMS = 200
ITEM_WORK = 64 * 2**10  # what opening and closing a file costs, in bytes read

# How many bytes of JSON lines come out of one byte of such a file, about.
_GROWTH = {".gz": 6, ".bz2": 8, ".xz": 8, ".zst": 6, ".zip": 6, ".parquet": 3, ".avro": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one task reads: whole items in order, or one part of one item.

    `csv_slice` tells of a part of a csv file what stands in front of it.
    """

    items: tuple[Item, ...]
    part: ByteRange | None = None
    csv_slice: CsvSlice | None = None

    @property
    def weight(self) -> int:
        """About what it costs to read, in bytes of JSON lines."""
        whole = sum(work_of(item) for item in self.items)
        return whole if self.part is None else min(whole, self.part.stop - self.part.start)


def work_of(item: Item) -> int:
    """Estimate what an item costs to read, in bytes of JSON lines."""
    name = item.file.uri.rpartition("/")[2].lower()
    growth = next((grown for ending, grown in _GROWTH.items() if name.endswith(ending)), 1)
    return ITEM_WORK + item.weight * growth


def task_work(items: Iterable[Item]) -> int:
    """Give how much work a task of some items takes on, in bytes of JSON lines: 32 to 128 MiB."""
    return max(TASK_WORK, min(MOST_TASK_WORK, sum(map(work_of, items)) // TASKS))


def packed(items: Sequence[Item], parts: Mapping[int, Sequence[Work]]) -> Iterator[Work]:
    """Cut items, in their order, into tasks of 200 items and `task_work` of work at most.

    An item of more work is a task of its own; one whose id is in `parts` has the tasks given there.
    """
    task: list[Item] = []
    work, most = 0, task_work(items)
    for item in items:
        more = work_of(item)
        is_full = work + more > most or len(task) == TASK_ITEMS
        if task and (is_full or item.id in parts):
            yield Work(items=tuple(task))
            task, work = [], 0
        if item.id in parts:
            yield from parts[item.id]
            continue
        task.append(item)
        work += more
    if task:
        yield Work(items=tuple(task))


def byte_ranges(size_bytes: int, *, start: int = 0) -> list[ByteRange]:
    """Cut so many bytes of a file into ranges of 32 MiB; the last one has up to half as much again.

    The first one begins at `start`.
    """
    count = max(1, (size_bytes + SLICE_BYTES // 2) // SLICE_BYTES)
    starts = [start + number * SLICE_BYTES for number in range(count)]
    return [
        ByteRange(*bounds) for bounds in zip(starts, [*starts[1:], start + size_bytes], strict=True)
    ]
