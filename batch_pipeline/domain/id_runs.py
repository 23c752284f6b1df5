"""Sets of item ids as runs of neighbours: which ids of a range a batch was planned with."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from batch_pipeline.domain.id_range import IdRange


@dataclass(frozen=True, slots=True)
class IdRuns:
    """A set of ids: run n goes from `firsts[n]` to `lasts[n]`. Runs rise and do not touch.

    Two lists of numbers rather than pairs, since this is how the inventory stores them: a batch of
    a million scattered ids is read and written without an object for each of them.
    """

    firsts: Sequence[int]
    lasts: Sequence[int]

    @classmethod
    def of(cls, ids: Iterable[int]) -> "IdRuns":
        """Collect ids that come in rising order."""
        firsts: list[int] = []
        lasts: list[int] = []
        for item_id in ids:
            extend(firsts, lasts, item_id)
        return cls(firsts, lasts)

    @classmethod
    def joined(cls, parts: "Iterable[IdRuns]") -> "IdRuns":
        """Collect the ids of sets that follow one another."""
        firsts: list[int] = []
        lasts: list[int] = []
        for part in parts:
            touches = bool(lasts and part.firsts and lasts[-1] + 1 == part.firsts[0])
            if touches:
                lasts.pop()
            firsts += part.firsts[1 if touches else 0 :]
            lasts += part.lasts
        return cls(firsts, lasts)

    def __iter__(self) -> Iterator[int]:
        for first_id, last_id in zip(self.firsts, self.lasts, strict=True):
            yield from range(first_id, last_id + 1)

    def __contains__(self, item_id: int) -> bool:
        run = bisect_right(self.firsts, item_id) - 1
        return run >= 0 and item_id <= self.lasts[run]

    def fill(self, ids: IdRange) -> bool:
        """Return whether every id of a range is in the set, and no other one."""
        return list(self.firsts) == [ids.first_id] and list(self.lasts) == [ids.last_id]

    def within(self, ids: IdRange) -> "IdRuns":
        """Return the part of the set that lies in a range."""
        start = bisect_left(self.lasts, ids.first_id)
        end = bisect_right(self.firsts, ids.last_id)
        firsts, lasts = list(self.firsts[start:end]), list(self.lasts[start:end])
        if firsts:
            firsts[0] = max(firsts[0], ids.first_id)
            lasts[-1] = min(lasts[-1], ids.last_id)
        return IdRuns(firsts, lasts)


def extend(firsts: list[int], lasts: list[int], item_id: int) -> None:
    """Add an id above all others to the lists of a set that is being built."""
    if lasts and item_id == lasts[-1] + 1:
        lasts[-1] = item_id
    else:
        firsts.append(item_id)
        lasts.append(item_id)


def unless_full(runs: IdRuns, ids: IdRange) -> IdRuns | None:
    """Return the set, or None if it is all of a range and need not be recorded."""
    return None if runs.fill(ids) else runs
