"""Status of a stream: its backlog, its age, and the problems that hold it back.

`StreamStatus` counts batches by state and items without a batch. The other values describe single
problems (`ManyPartitions`, `Stuck`, `Tiling`) and the counters behind the metrics
(`Totals`). `PublishedBatch` and `RecentBatch` are published batches as the inventory records them,
for verification and statistics. This module holds values only; queries are in `inventory.status`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar
from uuid import UUID

from batch_pipeline.model.batch import WAITING, AttemptStatus, BatchState
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.manifest import PartFile


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatus:
    """Batches of a stream by state, including late arrivals, and the items without a batch.

    `not_planned_for` is the age of the oldest item without a batch. `not_published_for` is the time
    since the oldest unpublished batch was planned. Both are None if there is no such item or batch,
    or if the table has no insert times.
    """

    states: "Mapping[BatchState, BatchTotals]" = field(default_factory=dict)
    items_not_planned: int = 0
    bytes_not_planned: int = 0
    not_planned_for: timedelta | None = None
    not_published_for: timedelta | None = None
    oldest_batch: str | None = None
    bookmark: int | None = None
    ceiling: int | None = None

    SHOWN: ClassVar[tuple[BatchState, ...]] = tuple(
        state for state in BatchState if state is not BatchState.SUPERSEDED
    )

    def batches(self, state: BatchState) -> int:
        """Return the number of batches in a state."""
        return self.states.get(state, BatchTotals()).batches

    @property
    def waiting(self) -> "BatchTotals":
        """Return the totals of unpublished items: without a batch, or in an unfinished one."""
        return self._totals(UNFINISHED)

    @property
    def total(self) -> "BatchTotals":
        """Return the totals of all items."""
        return self._totals(BatchState)

    def _totals(self, states: Iterable[BatchState]) -> "BatchTotals":
        totals = [self.states[state] for state in states if state in self.states]
        return BatchTotals(
            batches=sum(one.batches for one in totals),
            items=self.items_not_planned + sum(one.items for one in totals),
            size_bytes=self.bytes_not_planned + sum(one.size_bytes for one in totals),
        )

    @property
    def oldest(self) -> timedelta | None:
        """Return the age of the oldest unpublished item or batch, None if nothing waits."""
        ages = [age for age in (self.not_planned_for, self.not_published_for) if age is not None]
        return max(ages, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTotals:
    """Number of batches with their items and bytes."""

    batches: int = 0
    items: int = 0
    size_bytes: int = 0


UNFINISHED = WAITING | {BatchState.RUNNING, BatchState.FAILED, BatchState.DEAD}
MANY_PARTITIONS = 50_000  # Dagster advises at most 100,000 partitions per asset


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyPartitions:
    """Asset with at least `MANY_PARTITIONS` partitions."""

    stream: str
    asset: str
    partitions: int

    @property
    def sentence(self) -> str:
        """Return the problem, its cause and the next step."""
        return (
            f"{self.asset} has {self.partitions:,} partitions. Dagster advises at most 100,000 an "
            f"asset: its pages read all of them, and each materialization takes about 4.7 KB of "
            f"its database. Choose a larger `batch.max_weight` and `batch.max_count` for "
            f"{self.stream}; batches that are planned already stay as they are."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Batches that have been failed or dead for too long; `first` is the oldest of them."""

    batches: int = 0
    first: str | None = None
    error: str | None = None
    paused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """Gaps and overlaps between the live batches of a job, up to its bookmarks."""

    batches: int = 0
    overlaps: int = 0
    holes: int = 0
    doubled_items: int = 0
    worst: str | None = None


_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """Return a bar of one block per value, none below 0, scaled from 0 to the largest value."""
    highest, last = max(values, default=0.0) or 1.0, len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(value / highest * last)] for value in values)


# Upper bounds of histogram buckets in seconds, from 10 s to a day; an extra bucket has the rest.
LAG_BOUNDS = (10, 30, 60, 120, 300, 600, 1_800, 3_600, 21_600, 86_400)

WRITTEN, FILTERED, QUARANTINED = "written", "filtered", "quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedBatches:
    """Batches in one state, of all jobs of one kind of a stream, with the age of the oldest."""

    stream: str
    kind: JobKind
    state: BatchState
    batches: int
    items: int
    weight: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlanned:
    """Items of a stream that have no batch, with the age of the oldest."""

    items: int = 0
    weight: int = 0
    oldest_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """Finished attempt; the counters are zero unless it was published.

    `lag_seconds` is the time from landing to publishing. It is set only for the first generation of
    incremental batches.
    """

    stream: str
    kind: JobKind
    status: AttemptStatus
    written: int = 0
    filtered: int = 0
    quarantined: int = 0
    size_bytes: int = 0
    lag_seconds: float | None = None


@dataclass(slots=True)
class Totals:
    """Monotonic counters of finished attempts, by stream and kind of job."""

    attempts: Counter[tuple[str, JobKind, AttemptStatus]] = field(default_factory=Counter)
    records: Counter[tuple[str, JobKind, str]] = field(default_factory=Counter)
    size_bytes: Counter[tuple[str, JobKind]] = field(default_factory=Counter)
    lags: dict[str, "Lags"] = field(default_factory=dict)

    def begin(self, streams: Iterable[str]) -> None:
        """Create zero counters for streams, so that the first increase is visible as such."""
        for stream in streams:
            own = (stream, JobKind.INCREMENTAL)
            for status in AttemptStatus:
                if status is not AttemptStatus.RUNNING:
                    self.attempts[*own, status] += 0
            for outcome in (WRITTEN, FILTERED, QUARANTINED):
                self.records[*own, outcome] += 0
            self.size_bytes[own] += 0
            self.lags.setdefault(stream, Lags())

    def add(self, ended: Sequence[EndedAttempt]) -> None:
        """Count attempts."""
        for attempt in ended:
            key = (attempt.stream, attempt.kind)
            self.attempts[*key, attempt.status] += 1
            self.records[*key, WRITTEN] += attempt.written
            self.records[*key, FILTERED] += attempt.filtered
            self.records[*key, QUARANTINED] += attempt.quarantined
            self.size_bytes[key] += attempt.size_bytes
            if attempt.lag_seconds is not None:
                self.lags.setdefault(attempt.stream, Lags()).add(attempt.lag_seconds)


@dataclass(slots=True)
class Lags:
    """Histogram of lags in seconds, with the upper bounds `LAG_BOUNDS`."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LAG_BOUNDS) + 1))
    total_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a lag."""
        bucket = sum(seconds > bound for bound in LAG_BOUNDS)
        self.counts[bucket] += 1
        self.total_seconds += max(0.0, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """Number of records read, and by outcome."""

    read: int = 0
    written: int = 0
    filtered: int = 0
    quarantined: int = 0

    @property
    def accounted(self) -> int:
        """Return the number of records with an outcome."""
        return self.written + self.filtered + self.quarantined


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBatch:
    """Newest generation of a batch.

    `label` and its job identify it. `batch` has the counters of the batch, `items` the sum over
    its items; `unbalanced` are the first ids of items whose counters do not add up.
    `given_to_transform` counts the input of a transform, None without one. `files_removed` states
    that its files were deleted after loading, `quarantine_removed` that the quarantine files were.
    `token` is the attempt's; `pointer_uri` is None until the manifest file is written.
    """

    label: str
    generation: int
    part_files: tuple[PartFile, ...]
    quarantine_files: tuple[PartFile, ...]
    batch: RecordCounts
    items: RecordCounts
    unbalanced: tuple[int, ...] = ()
    given_to_transform: int | None = None
    files_removed: bool = False
    quarantine_removed: bool = False
    token: UUID | None = None
    pointer_uri: str | None = None

    @property
    def files(self) -> tuple[PartFile, ...]:
        """Return the files that must exist."""
        if self.files_removed:
            return ()
        return self.part_files + (() if self.quarantine_removed else self.quarantine_files)

    def contradictions(self) -> Iterator[str]:
        """Yield the contradictions between the counters; none if every record is accounted for."""
        if self.unbalanced:
            ids = ", ".join(map(str, self.unbalanced))
            yield f"read is not written + filtered + quarantined for the items {ids}"
        if self.items.read != self.items.accounted and not self.unbalanced:
            yield f"its items read {self.items.read} and account for {self.items.accounted}"
        if self.batch.read != self.items.read:
            yield f"records read: {self.batch.read}, {self.items.read} by its items"
        files = sum(part.records for part in self.part_files)
        if self.batch.written != files:
            yield f"records written: {self.batch.written}, {files} in its part files"
        given = self.given_to_transform
        expected = self.batch.written if given is None else given
        if expected != self.items.written:
            yield f"records written or transformed: {expected}, {self.items.written} by its items"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentBatch:
    """Throughput and losses of a recently published batch."""

    label: str
    read: int
    written: int
    quarantined: int
    seconds: float

    @property
    def records_per_second(self) -> float:
        """Return the records written per second, from claim to publishing.

        Return 0 if there is no duration, or a negative one because the clock was set back.
        """
        return self.written / self.seconds if self.seconds > 0 else 0.0

    @property
    def quarantined_ratio(self) -> float:
        """Return the share of quarantined records among those read."""
        return self.quarantined / self.read if self.read else 0.0
