"""Ranges and sets of item ids.

`IdRange` is a closed range, `IdRuns` a set stored as runs of consecutive ids.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from batch_pipeline.model.errors import InvalidValueError

MAX_ID = 2**63 - 1
MIN_ID = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class IdRange:
    """Ids from `first_id` to `last_id`, both included.

    Raises:
        InvalidValueError: the range is empty or exceeds 64-bit integers.
    """

    first_id: int
    last_id: int

    def __post_init__(self) -> None:
        if self.last_id < self.first_id:
            raise InvalidValueError("last_id", self.last_id, f"at least first_id {self.first_id}")
        if self.first_id < MIN_ID or self.last_id > MAX_ID:
            raise InvalidValueError("id range", str(self), "64-bit integers")

    def __str__(self) -> str:
        return f"{self.first_id}..{self.last_id}"

    def __contains__(self, item_id: int) -> bool:
        return self.first_id <= item_id <= self.last_id


@dataclass(frozen=True, slots=True)
class IdRuns:
    """Set of ids: run n is `firsts[n]..lasts[n]`. Runs are ascending and not adjacent.

    Two lists of numbers instead of pairs, as the inventory stores them: a batch of a million
    scattered ids is read and written without creating an object per run.
    """

    firsts: Sequence[int]
    lasts: Sequence[int]

    @classmethod
    def joined(cls, parts: "Iterable[IdRuns]") -> "IdRuns":
        """Build the union of sets in ascending order that do not overlap."""
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

    def within(self, ids: IdRange) -> "IdRuns":
        """Return the ids of the set that are in a range."""
        start = bisect_left(self.lasts, ids.first_id)
        end = bisect_right(self.firsts, ids.last_id)
        firsts, lasts = list(self.firsts[start:end]), list(self.lasts[start:end])
        if firsts:
            firsts[0] = max(firsts[0], ids.first_id)
            lasts[-1] = min(lasts[-1], ids.last_id)
        return IdRuns(firsts, lasts)


def extend(firsts: list[int], lasts: list[int], item_id: int) -> None:
    """Append an id, larger than all others, to the lists of a set under construction."""
    if lasts and item_id == lasts[-1] + 1:
        lasts[-1] = item_id
    else:
        firsts.append(item_id)
        lasts.append(item_id)


def unless_full(runs: IdRuns, ids: IdRange) -> IdRuns | None:
    """Return the set, or None if it covers the whole range and need not be stored."""
    is_full = list(runs.firsts) == [ids.first_id] and list(runs.lasts) == [ids.last_id]
    return None if is_full else runs
