"""Plan the tasks of an encode: which items, or which byte range of a large file, each task reads.

The plan depends only on the items, not on the number of cores, so that the same items give the same
part files on every machine. Large files are opened to pin their version.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

from batch_pipeline.encode.chunks import ByteRange
from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.item import Item
from batch_pipeline.model.record_rules import LineageColumn
from batch_pipeline.model.stream import Stream

MIN_RANGE_BYTES = 8 * 2**20  # of a file that several tasks read
RANGE_BYTES = 32 * 2**20  # files of twice this size are always cut
# A task costs Spark about 20 ms, so a large batch gets larger tasks: about a sixteenth of it, but
# 32 to 128 MiB. Their number is a multiple of four, so that two or four cores end together, unless
# items are too large for that, or tasks would cost less than 8 MiB.
MIN_TASK_COST = 8 * 2**20
MIN_COST_LIMIT = 32 * 2**20
MAX_COST_LIMIT = 128 * 2**20
TARGET_TASKS = 16
EVEN_TASKS = 4
WHOLE_ITEMS = 8
MAX_TASK_ITEMS = 250  # a batch of 1,000 small files, the default, makes four equal tasks
ITEM_COST = 64 * 2**10  # opening and closing a file takes as long as reading this many bytes

# Approximate number of bytes of JSON lines per byte of such a file.
_EXPANSION = {".gz": 6, ".bz2": 8, ".xz": 8, ".zst": 6, ".zip": 6, ".parquet": 3, ".avro": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInput:
    """The input of one task: whole items in order, or a byte range of one item.

    `csv_start` is where the first record of a range of a csv file starts, None if it is not known.
    """

    items: tuple[Item, ...]
    byte_range: ByteRange | None = None
    csv_start: int | None = None

    @property
    def cost(self) -> int:
        """Estimated cost of reading it, in bytes of JSON lines."""
        whole = sum(estimate_cost(item) for item in self.items)
        part = self.byte_range
        return whole if part is None else min(whole, part.stop - part.start)


def estimate_cost(item: Item) -> int:
    """Estimate the cost of reading an item, in bytes of JSON lines."""
    name = item.file.uri.rpartition("/")[2].lower()
    factor = next((factor for suffix, factor in _EXPANSION.items() if name.endswith(suffix)), 1)
    return ITEM_COST + item.weight * factor


def count_tasks(total: int) -> int:
    """Compute the number of tasks for items of this cost in total."""
    limit = max(MIN_COST_LIMIT, min(MAX_COST_LIMIT, total // TARGET_TASKS))
    tasks = EVEN_TASKS * -(-total // (EVEN_TASKS * limit))
    return max(1, min(tasks, total // MIN_TASK_COST))


def _costs_and_tasks(items: Sequence[Item]) -> tuple[list[int], int, int]:
    """Return the cost of each item, their total (at least 1), and the number of tasks for it."""
    costs = list(map(estimate_cost, items))
    total = max(1, sum(costs))
    return costs, total, count_tasks(total)


def plan_tasks(
    items: Sequence[Item], split_items: Mapping[int, Sequence[TaskInput]]
) -> Iterator[TaskInput]:
    """Group items, in their order, into tasks of up to 250 items and about equal costs.

    An item whose id is in `split_items` gets the tasks listed there.
    """
    costs, total, tasks = _costs_and_tasks(items)
    group: list[Item] = []
    before, current = 0, 0
    for item, cost in zip(items, costs, strict=True):
        # By the middle of the item, in units of half its cost, which are whole numbers.
        number = (2 * before + cost) * tasks // (2 * total)
        before += cost
        is_full = number != current or len(group) == MAX_TASK_ITEMS
        if group and (is_full or item.id in split_items):
            yield TaskInput(items=tuple(group))
            group = []
        current = number
        if item.id in split_items:
            yield from split_items[item.id]
        else:
            group.append(item)
    if group:
        yield TaskInput(items=tuple(group))


def cut_byte_ranges(size_bytes: int, count: int, *, start: int = 0) -> list[ByteRange]:
    """Cut `size_bytes` bytes of a file, starting at `start`, into equal ranges."""
    bounds = [start + size_bytes * number // count for number in range(count + 1)]
    return [ByteRange(*ends) for ends in pairwise(bounds)]


def split_files(items: Sequence[Item], stream: Stream) -> dict[int, tuple[TaskInput, ...]]:
    """Return, by item id, the tasks of the items that are read by several tasks.

    The number of a record is only known to a task that has read the file from its beginning, so
    files of a stream with the lineage column `_record_number` are not split.

    Raises:
        SourceUnavailableError: an object cannot be read now.
    """
    if LineageColumn.RECORD_NUMBER in stream.lineage:
        return {}
    split: dict[int, tuple[TaskInput, ...]] = {}
    for item, most in zip(items, count_ranges(items), strict=True):
        pinned = _pin_if_splittable(item, stream) if most > 1 else None
        if pinned is None:
            continue
        own_range, size_bytes = pinned.file.range, pinned.file.range_bytes or 0
        # Weights may be other than bytes.
        count = min(max(most, _count_by_size(size_bytes)), size_bytes // MIN_RANGE_BYTES)
        if count < 2:
            continue
        start = 0 if own_range is None else own_range.start
        split[item.id] = tuple(
            TaskInput(items=(pinned,), byte_range=cut, csv_start=None if number else start)
            for number, cut in enumerate(cut_byte_ranges(size_bytes, count, start=start))
        )
    return split


def count_ranges(items: Sequence[Item]) -> Iterator[int]:
    """Yield the number of ranges of each item if it can be split.

    The ranges of an item that is more than an eighth of the whole are as many as its share of the
    tasks. Eight or more items keep the cores busy without that.
    """
    costs, total, tasks = _costs_and_tasks(items)
    for item, cost in zip(items, costs, strict=True):
        share = -(-(cost - ITEM_COST) * tasks // total) if cost * WHOLE_ITEMS > total else 1
        is_large = item.weight >= 2 * MIN_RANGE_BYTES
        yield max(share, _count_by_size(item.weight)) if is_large else 1


def _count_by_size(size_bytes: int) -> int:
    """Return the number of ranges of about 32 MiB; files of less than twice that are one."""
    return (size_bytes + RANGE_BYTES // 2) // RANGE_BYTES if size_bytes >= 2 * RANGE_BYTES else 1


def _pin_if_splittable(item: Item, stream: Stream) -> Item | None:
    """Return an item with its file's version, None if the file cannot be split.

    Size, time and, for objects, the ETag make all tasks of the file read the same version.
    """
    with suppress(BadFileError, OSError), open_source(item.file, stream) as source:
        if not source.can_be_split:
            return None
        file, facts = item.file, source.facts
        pinned = replace(
            file,
            size_bytes=facts.size_bytes if file.size_bytes is None else file.size_bytes,
            modified_at=file.modified_at or facts.modified_at,
            etag=file.etag or facts.etag,
        )
        return replace(item, file=pinned)
    return None
