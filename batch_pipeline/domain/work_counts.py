"""What monitoring counts of streams: unfinished batches, and attempts as they end. Values only."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from batch_pipeline.domain.batch import AttemptStatus, BatchState
from batch_pipeline.domain.job import JobKind

# Upper bounds of the lag from landing to publish, in seconds: 10 s to a day, and all above.
LAG_BOUNDS = (10, 30, 60, 120, 300, 600, 1_800, 3_600, 21_600, 86_400)
WRITTEN, FILTERED, QUARANTINED = "written", "filtered", "quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedBatches:
    """Batches of a stream's jobs of one kind in one state; the oldest was planned so long ago."""

    stream: str
    kind: JobKind
    state: BatchState
    batches: int
    items: int
    weight: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlanned:
    """Items of a stream that no batch has, and for how long the oldest has been there."""

    items: int = 0
    weight: int = 0
    oldest_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """An attempt that ended; counters are of a published one.

    `lag_seconds` go from landing to publish; None but for the first generation of own batches.
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
    """Sums that only grow, from the attempts that were counted, by stream and kind of job."""

    attempts: Counter[tuple[str, JobKind, AttemptStatus]] = field(default_factory=Counter)
    records: Counter[tuple[str, JobKind, str]] = field(default_factory=Counter)
    size_bytes: Counter[tuple[str, JobKind]] = field(default_factory=Counter)
    lags: dict[str, "Lags"] = field(default_factory=dict)

    def begin(self, streams: Iterable[str]) -> None:
        """Let streams that nothing is known of start at zero, so that a first step is a step."""
        for stream in streams:
            of_own = (stream, JobKind.INCREMENTAL)
            for status in AttemptStatus:
                if status is not AttemptStatus.RUNNING:
                    self.attempts[*of_own, status] += 0
            for where in (WRITTEN, FILTERED, QUARANTINED):
                self.records[*of_own, where] += 0
            self.size_bytes[of_own] += 0
            self.lags.setdefault(stream, Lags())

    def add(self, ended: Sequence[EndedAttempt]) -> None:
        """Count attempts."""
        for one in ended:
            key = (one.stream, one.kind)
            self.attempts[*key, one.status] += 1
            self.records[*key, WRITTEN] += one.written
            self.records[*key, FILTERED] += one.filtered
            self.records[*key, QUARANTINED] += one.quarantined
            self.size_bytes[key] += one.size_bytes
            if one.lag_seconds is not None:
                self.lags.setdefault(one.stream, Lags()).add(one.lag_seconds)


@dataclass(slots=True)
class Lags:
    """Lags in seconds, counted by the first of `LAG_BOUNDS` that they do not exceed."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LAG_BOUNDS) + 1))
    total_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a lag."""
        place = sum(seconds > bound for bound in LAG_BOUNDS)
        self.counts[place] += 1
        self.total_seconds += max(0.0, seconds)
