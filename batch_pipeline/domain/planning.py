"""Cutting a run of items into batches of bounded weight.

The reference for every planner: greedy in id order, an item heavier than the limit stands alone,
and ranges tile the ids without holes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.id_runs import IdRuns, extend, unless_full


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a batch.

    `max_weight` in bytes and `max_count` in items close a batch, whichever is reached first; a last
    batch lighter than `min_weight` is held back until its oldest item is `max_wait` old.
    """

    max_weight: int
    max_count: int
    min_weight: int = 0
    max_wait: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        if self.max_weight < 1:
            raise InvalidValueError("batch.max_weight", self.max_weight, "at least 1 byte")
        if self.max_count < 1:
            raise InvalidValueError("batch.max_count", self.max_count, "at least 1 item")
        if not 0 <= self.min_weight <= self.max_weight:
            raise InvalidValueError("batch.min_weight", self.min_weight, "between 0 and max_weight")

    def config(self) -> dict[str, str]:
        """Write what is kept with each batch that is cut by them."""
        return {name: str(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One planned range with what lies in it; `closed` tells that a limit ended it.

    `runs` are the ids of its items, None if the range has no gap: only there can rows appear later.
    """

    id_range: IdRange
    weight: int
    count: int
    closed: bool
    runs: IdRuns | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What one planning did: batches, their items and weight, and the ids from first to last.

    `ids` is None when nothing was planned.
    """

    batches: int = 0
    items: int = 0
    weight: int = 0
    ids: IdRange | None = None

    def and_then(self, other: "Planned") -> "Planned":
        """Add what was planned above it."""
        if self.ids is None or other.ids is None:
            return other if self.ids is None else self
        return Planned(
            batches=self.batches + other.batches,
            items=self.items + other.items,
            weight=self.weight + other.weight,
            ids=IdRange(first_id=self.ids.first_id, last_id=other.ids.last_id),
        )

    def with_cut(self, one: Cut) -> "Planned":
        """Count one batch more; batches come in rising order."""
        return self.and_then(
            Planned(batches=1, items=one.count, weight=one.weight, ids=one.id_range)
        )


def cut(
    weighed_ids: Iterable[tuple[int, int]], *, after_id: int, ceiling: int, limits: Limits
) -> Iterator[Cut]:
    """Cut `(id, weight)` pairs, ascending and within `after_id < id <= ceiling`, into ranges.

    Each range starts right after the one before it and ends right before the next batch's first
    item; the last one ends at the ceiling, `closed` only when it is full. Without items nothing is
    yielded. Memory is constant.
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
        ids = IdRange(first_id=first_id, last_id=ceiling)
        runs = unless_full(IdRuns(firsts, lasts), ids)
        yield Cut(id_range=ids, weight=weight, count=count, closed=closed, runs=runs)
