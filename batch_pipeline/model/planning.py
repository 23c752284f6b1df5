"""Planning: cut a sequence of items into batches of bounded weight.

`cut` is the reference for every planner: greedy in id order, an item heavier than the limit is a
batch of its own, and the ranges cover the ids without gaps. `limits_for` proposes limits.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta

from batch_pipeline.model.batch import IdRange, IdRuns, extend, unless_full
from batch_pipeline.model.errors import require

MAX_DURATION = timedelta(days=36_500)  # of any setting, so that no time is out of range


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Size limits of a batch.

    A batch is closed by `max_weight` in bytes or `max_count` in items, whichever is reached first.
    A last batch below `min_weight` is not planned until its oldest item is `max_wait` old.
    """

    max_weight: int
    max_count: int
    min_weight: int = 0
    max_wait: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        require(self.max_weight >= 1, "batch.max_weight", self.max_weight, "at least 1 byte")
        require(self.max_count >= 1, "batch.max_count", self.max_count, "at least 1 item")
        fits = 0 <= self.min_weight <= self.max_weight
        require(fits, "batch.min_weight", self.min_weight, "between 0 and max_weight")

    def config(self) -> dict[str, str]:
        """Return the form that is stored with each planned batch."""
        return {name: str(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Planned range with its weight and count; `closed` states that a limit ended it.

    `runs` are the ids of its items, None if the range has no gaps in which rows can appear later.
    """

    id_range: IdRange
    weight: int
    count: int
    closed: bool
    runs: IdRuns | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Result of planning: batches, their items and weight, and the range of ids.

    `ids` is None if nothing was planned.
    """

    batches: int = 0
    items: int = 0
    weight: int = 0
    ids: IdRange | None = None

    def followed_by(self, other: "Planned") -> "Planned":
        """Return the sum with a result for higher ids."""
        if self.ids is None or other.ids is None:
            return other if self.ids is None else self
        return Planned(
            batches=self.batches + other.batches,
            items=self.items + other.items,
            weight=self.weight + other.weight,
            ids=IdRange(first_id=self.ids.first_id, last_id=other.ids.last_id),
        )

    def plus_cut(self, added: Cut) -> "Planned":
        """Return the result with a batch added; batches must be added in ascending order."""
        return self.followed_by(
            Planned(batches=1, items=added.count, weight=added.weight, ids=added.id_range)
        )


def cut(
    weighed_ids: Iterable[tuple[int, int]], *, after_id: int, high_watermark: int, limits: Limits
) -> Iterator[Cut]:
    """Cut ascending `(id, weight)` pairs, `after_id < id <= high_watermark`, into ranges.

    Each range starts right after the previous one and ends before the first item of the next batch.
    The last one ends at `high_watermark` and is `closed` only if it is full. Without
    items nothing is yielded. Memory is constant.
    """
    first_id, weight, count = after_id + 1, 0, 0
    firsts: list[int] = []
    lasts: list[int] = []
    for item_id, item_weight in weighed_ids:
        full = weight + item_weight > limits.max_weight or count == limits.max_count
        if count and full:
            ids = IdRange(first_id=first_id, last_id=item_id - 1)
            runs = unless_full(IdRuns(firsts, lasts), ids)
            yield Cut(id_range=ids, weight=weight, count=count, closed=True, runs=runs)
            first_id, weight, count = item_id, 0, 0
            firsts, lasts = [], []
        weight += item_weight
        count += 1
        extend(firsts, lasts, item_id)
    if count:
        closed = weight >= limits.max_weight or count == limits.max_count
        ids = IdRange(first_id=first_id, last_id=high_watermark)
        runs = unless_full(IdRuns(firsts, lasts), ids)
        yield Cut(id_range=ids, weight=weight, count=count, closed=closed, runs=runs)


_MIB = 2**20
_LEAST = 64 * _MIB
_MOST = 4096 * _MIB
_WORK_OF_A_CORE = 128 * _MIB  # four tasks, so that the last task delays the batch only slightly
_BATCHES = 10_000  # keeps Dagster's pages fast, and the number of partitions low for years
_COUNTS = (100, 200, 500, 1000)  # each file has a fixed cost, independent of its size


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Resources to derive limits from: cores, and memory in bytes."""

    cores: int
    memory_bytes: int


def limits_for(sizes: Sequence[int], machine: Machine, *, growth: float = 1.0) -> Limits:
    """Return limits for files of these sizes in bytes; `growth` is their decompression ratio.

    A batch has work for all cores, takes about a quarter of the memory when decompressed, and is
    larger than 19 of 20 files; the files form at most about 10,000 batches. Weights are rounded up
    to powers of two from 64 MiB to 4 GiB.
    """
    work = min(machine.cores * _WORK_OF_A_CORE, machine.memory_bytes // 4)
    ordered = sorted(sizes)
    usual = ordered[len(ordered) // 2] if ordered else 0
    heavy = ordered[len(ordered) * 19 // 20] if ordered else 0
    desired = max(work / max(growth, 1.0), heavy, sum(ordered) / _BATCHES)
    weight = _LEAST
    while weight < min(desired, _MOST):
        weight *= 2
    fitting = weight // max(usual, 1)
    count = next((limit for limit in _COUNTS if limit >= fitting), _COUNTS[-1])
    return Limits(max_weight=weight, max_count=count)
