"""Splitting a batch in the middle of its items, so that a bad one is found by halving."""

from collections.abc import Sequence
from dataclasses import dataclass

from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.id_runs import IdRuns, unless_full


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """What one of the two batches will be that take the place of a batch."""

    id_range: IdRange
    weight: int
    count: int
    item_ids: tuple[int, ...] | None = None
    runs: IdRuns | None = None


def halve(
    one: Batch, weights: Sequence[tuple[int, int]], runs: IdRuns | None = None
) -> tuple[Half, Half] | None:
    """Split a batch where half of its items lie on either side; None when less than two are left.

    `weights` are the `(id, weight)` of its items that are still there, rising. Halves of a range
    tile it: the second starts with its first item. Halves of a list share all of its ids, each from
    its first to its last. `runs` are the ids that the range was planned with, None for all of it.
    """
    if len(weights) < 2:
        return None
    middle = (len(weights) + 1) // 2
    first_id = weights[middle][0]
    first, last = one.id_range.first_id, one.id_range.last_id
    return (
        _half(one, IdRange(first_id=first, last_id=first_id - 1), weights[:middle], runs),
        _half(one, IdRange(first_id=first_id, last_id=last), weights[middle:], runs),
    )


def _half(
    one: Batch, id_range: IdRange, weights: Sequence[tuple[int, int]], runs: IdRuns | None
) -> Half:
    weight = sum(weight for _, weight in weights)
    if one.item_ids is None:
        kept = None if runs is None else unless_full(runs.within(id_range), id_range)
        return Half(id_range=id_range, weight=weight, count=len(weights), runs=kept)
    listed = tuple(sorted(item_id for item_id in one.item_ids if item_id in id_range))
    return Half(
        id_range=IdRange(first_id=listed[0], last_id=listed[-1]),
        weight=weight,
        count=len(listed),
        item_ids=listed,
    )
