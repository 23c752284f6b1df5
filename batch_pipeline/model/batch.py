"""Batches: a fixed set of items of a job, their attempts, partition keys and splits.

`Batch` is the planned set, `Attempt` one try at it, `BatchState` is derived from the attempts.
`IdRange` is a closed range of item ids, `IdRuns` a set stored as runs of consecutive ids.
A partition key is `<first>-<last>`, zero-padded so that text order is id order up to that width.
Dagster accepts any text as a dynamic partition key, so `parse_partition_key` is the only
validation. `halve` splits a batch whose attempts keep failing.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

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
        """Build the union of sets that are in ascending order and do not overlap."""
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


KEY_DIGITS = 8
EARLIER_KEY_DIGITS = 12  # jobs that release 0.1 created keep this width


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Planned id range of a job, which never changes. Weight in bytes, count in items.

    If `item_ids` is set, only these ids of the range belong to the batch: late arrivals, or a
    requested list.
    `key_digits` is the width of ids in the keys of its job.
    """

    id: int
    job: str
    id_range: IdRange
    weight: int
    count: int
    oversized: bool = False
    item_ids: tuple[int, ...] | None = None
    key_digits: int = KEY_DIGITS

    @property
    def key(self) -> str:
        """Return the partition key."""
        return partition_key(self.id_range, self.key_digits)

    @property
    def label(self) -> str:
        """Return the name for messages: the partition key, or the range if ids are negative."""
        return str(self.id_range) if self.id_range.first_id < 0 else self.key


class BatchState(StrEnum):
    """State of a batch, derived from its attempts."""

    PLANNED = "planned"
    RUNNING = "running"
    PUBLISHED = "published"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # the last attempt ended for reasons other than the data
    DEAD = "dead"  # all attempts are used up, not counting outages; requires manual action
    CANCELLED = "cancelled"  # cancelled by a person
    SUPERSEDED = "superseded"  # split into smaller batches


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """Batch with the outcome of its latest attempt.

    `key` is its partition key, or its range if the job belongs to no stream.
    """

    batch: Batch
    key: str
    state: BatchState
    attempts: int
    generation: int | None = None
    error: str | None = None
    finished_at: datetime | None = None


WAITING = frozenset({BatchState.PLANNED, BatchState.INTERRUPTED})  # for a claim
ENDED = frozenset(  # states of the batches of a finished job
    {BatchState.PUBLISHED, BatchState.DEAD, BatchState.CANCELLED, BatchState.SUPERSEDED}
)
_DUE_ON_REQUEST = frozenset({BatchState.FAILED, BatchState.DEAD})


def due_batches(statuses: Iterable[BatchStatus], *, retry_failed: bool) -> list[BatchStatus]:
    """Return the batches to encode now: planned and interrupted ones, in the given order.

    Failed and dead batches are due only with `retry_failed`, if a person requested it. Cancelled
    batches are never due: `jobs retry` plans them again.
    """
    due = WAITING | _DUE_ON_REQUEST if retry_failed else WAITING
    return [status for status in statuses if status.state in due]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at encoding a batch, numbered from 1; only the holder of `token` may end it.

    `generation` is the generation that it would publish; None if it was not read.
    """

    id: int
    batch: Batch
    number: int
    token: UUID
    generation: int | None = field(default=None, compare=False)

    @property
    def stem(self) -> str:
        """Return the prefix of all files that the attempt writes, unique over all attempts."""
        return f"{self.batch.job}-{self.batch.key}-a{self.number}-{self.token.hex[:8]}"


class AttemptStatus(StrEnum):
    """Status of an attempt; every status but `running` is final."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"  # the worker exited without reporting, or an outage
    CANCELLED = "cancelled"


_EXPECTED = (
    f"two ids of {KEY_DIGITS} digits joined by '-', as in 00000001-00000060, or of "
    f"{EARLIER_KEY_DIGITS} digits for jobs of release 0.1"
)


def _key_pattern(digits: int) -> re.Pattern[str]:
    number = rf"([0-9]{{{digits}}}|[1-9][0-9]{{{digits},18}})"
    return re.compile(f"{number}-{number}")


_KEYS = {digits: _key_pattern(digits) for digits in (KEY_DIGITS, EARLIER_KEY_DIGITS)}


def partition_key(id_range: IdRange, digits: int = KEY_DIGITS) -> str:
    """Format a range of non-negative ids as a key; longer ids keep all their digits.

    Raises:
        InvalidValueError: an id is negative.
    """
    if id_range.first_id < 0:
        raise InvalidValueError("id range", str(id_range), "non-negative ids")
    return f"{id_range.first_id:0{digits}d}-{id_range.last_id:0{digits}d}"


def parse_partition_key(key: str) -> IdRange:
    """Parse a key that `partition_key` wrote, of either width; any other text is rejected.

    Raises:
        InvalidValueError: the text is not such a key.
    """
    return _parse(key)[0]


def key_digits(key: str) -> int:
    """Return the width of the ids in a partition key.

    Raises:
        InvalidValueError: the text is not such a key.
    """
    return _parse(key)[1]


def _parse(key: str) -> tuple[IdRange, int]:
    for digits, pattern in _KEYS.items():
        if match := pattern.fullmatch(key):
            return IdRange(first_id=int(match[1]), last_id=int(match[2])), digits
    raise InvalidValueError("partition key", key, _EXPECTED)


_LATE_KEY = re.compile(r"late-([0-9]{8}|[1-9][0-9]{8,17})")


def late_key(batch_id: int) -> str:
    """Format the id of a batch of late arrivals as a partition key.

    Such a batch is a list of ids within ranges that already have keys; its range is not unique.
    """
    return f"late-{batch_id:08d}"


def stream_batch_key(batch: Batch, stream: str) -> str:
    """Return the partition key of a batch of a stream's own job, or of its late arrivals."""
    return batch.label if batch.job == stream else late_key(batch.id)


def parse_late_key(key: str) -> int | None:
    """Return the batch id of a key that `late_key` wrote, None for any other text."""
    match = _LATE_KEY.fullmatch(key)
    return None if match is None else int(match[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRange:
    """One of the two parts that replace a batch."""

    id_range: IdRange
    weight: int
    count: int
    item_ids: tuple[int, ...] | None = None
    runs: IdRuns | None = None


def halve(
    batch: Batch, weights: Sequence[tuple[int, int]], runs: IdRuns | None = None
) -> tuple[SplitRange, SplitRange] | None:
    """Split a batch into halves of equal item count; return None if fewer than two items are left.

    `weights` are the `(id, weight)` pairs of the items that still exist, in ascending order. Halves
    of a range cover it without a gap: the second starts at its first item. Halves of an id list
    divide all of its ids. `runs` are the ids that the range was planned with, None for all ids.
    """
    if len(weights) < 2:
        return None
    middle = (len(weights) + 1) // 2
    first_id = weights[middle][0]
    first, last = batch.id_range.first_id, batch.id_range.last_id
    return (
        _half(batch, IdRange(first_id=first, last_id=first_id - 1), weights[:middle], runs),
        _half(batch, IdRange(first_id=first_id, last_id=last), weights[middle:], runs),
    )


def _half(
    batch: Batch, id_range: IdRange, weights: Sequence[tuple[int, int]], runs: IdRuns | None
) -> SplitRange:
    weight = sum(weight for _, weight in weights)
    if batch.item_ids is None:
        kept = None if runs is None else unless_full(runs.within(id_range), id_range)
        return SplitRange(id_range=id_range, weight=weight, count=len(weights), runs=kept)
    listed = tuple(sorted(item_id for item_id in batch.item_ids if item_id in id_range))
    return SplitRange(
        id_range=IdRange(first_id=listed[0], last_id=listed[-1]),
        weight=weight,
        count=len(listed),
        item_ids=listed,
    )
