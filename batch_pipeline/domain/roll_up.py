"""Wider partitions: which published neighbours become one, and what a wide range stands for.

Values and rules only. A wide range is not written down anywhere: it is one because it starts and
ends where batches do, and all of at least two batches within it are published.
"""

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.id_range import IdRange

DEFAULT_WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RollUp:
    """What to roll up: all but the newest batches, or those published before a time; `width`
    batches at a time.

    Raises:
        InvalidValueError: both or neither is said, or a number makes no sense.
    """

    keep: int | None = None
    before: datetime | None = None
    width: int = DEFAULT_WIDTH

    def __post_init__(self) -> None:
        if (self.keep is None) == (self.before is None):
            stated = "neither" if self.before is None else "both"
            raise InvalidValueError("roll-up", stated, _EITHER)
        if self.keep is not None and self.keep < 0:
            raise InvalidValueError("keep", self.keep, "zero or more batches")
        if self.before is not None and self.before.tzinfo is None:
            raise InvalidValueError("before", self.before, "a time with a zone")
        if self.width < 2:
            raise InvalidValueError("width", self.width, "at least 2 batches")


_EITHER = "one of them: keep (a number of batches), or before (a time)"


class Tiling:
    """The ranges of a job's batches: those that are live, which of them are published, and those
    that were split, whose ranges their halves tile as well.
    """

    def __init__(
        self, live: Iterable[IdRange], published: Set[IdRange], split: Collection[IdRange]
    ) -> None:
        self._live = sorted(live)
        self._none = {*self._live, *split}
        self._published = published
        self._first = {ids.first_id: place for place, ids in enumerate(self._live)}
        self._last = {ids.last_id: place for place, ids in enumerate(self._live)}
        unpublished = (ids not in published for ids in self._live)
        self._unpublished = list(accumulate(unpublished, initial=0))

    def under(self, wide: IdRange) -> Sequence[IdRange]:
        """Give the batches that a wide range stands for, in order; none where it is no such."""
        first, last = self._first.get(wide.first_id), self._last.get(wide.last_id)
        if wide in self._none or first is None or last is None or last <= first:
            return ()
        if self._unpublished[last + 1] > self._unpublished[first]:
            return ()
        return self._live[first : last + 1]

    def groups(self, chosen: Set[IdRange], width: int) -> list[Sequence[IdRange]]:
        """Group chosen published neighbours, `width` at a time; what is left over stays narrow."""
        groups: list[Sequence[IdRange]] = []
        row: list[IdRange] = []
        for ids in self._live:
            row = [*row, ids] if ids in chosen and ids in self._published else []
            if len(row) == width:
                groups.append(row)
                row = []
        return groups

    def newest(self, count: int) -> Set[IdRange]:
        """Give the last live ranges in id order."""
        return {*self._live[max(len(self._live) - count, 0) :]}


def wide_range(group: Sequence[IdRange]) -> IdRange:
    """Give the range from the first id of a group to its last."""
    return IdRange(first_id=group[0].first_id, last_id=group[-1].last_id)
