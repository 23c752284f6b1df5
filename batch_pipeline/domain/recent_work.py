"""What a stream's last published batches, waiting batches and failures add up to. Values only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from operator import itemgetter

from batch_pipeline.domain.batch import AttemptStatus, BatchState
from batch_pipeline.domain.standing import Amount

_NEWEST = 20  # batches that a forecast goes by
_LONGEST = timedelta(days=36_500)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAttempt:
    """A published attempt: what went in (weight in bytes, records read) and what came out.

    `seconds` go from claim to publish. The first generation of a batch takes it off the backlog.
    """

    label: str
    generation: int
    planned_at: datetime
    published_at: datetime
    seconds: float
    weight: int
    read: int
    written: int
    quarantined: int
    size_bytes: int

    @property
    def started_at(self) -> datetime:
        """When it was claimed."""
        return self.published_at - timedelta(seconds=self.seconds)

    @property
    def records_per_second(self) -> float:
        """Records written in a second."""
        return self.written / self.seconds if self.seconds > 0 else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes of part files in a second."""
        return self.size_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def quarantined_ratio(self) -> float:
        """Share of the records read that were quarantined."""
        return self.quarantined / self.read if self.read else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTogether:
    """Batches that were planned within a short time, from `since` on, and never published."""

    since: datetime
    batches: int
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """An attempt that ended without publishing, why, and where its batch stands now."""

    label: str
    number: int
    status: AttemptStatus
    ended_at: datetime
    error: str | None
    state: BatchState


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogPoint:
    """How many planned batches, and how many bytes, waited from a time on."""

    at: datetime
    batches: int
    weight: int


class Outlook(StrEnum):
    """What becomes of a backlog."""

    NOTHING_WAITS = "nothing waits"
    UNKNOWN = "unknown"  # nothing was published yet that tells a rate
    SHRINKS = "shrinks"
    GROWS = "grows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What becomes of a backlog at the rates of the last batches, in bytes of weight a second.

    `capacity` is what was published in a second of work, `arrivals` what was planned in a second of
    the time since. `empty_after` is None unless it shrinks.
    """

    outlook: Outlook
    capacity: float | None = None
    arrivals: float = 0.0
    empty_after: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentWork:
    """The last work on a stream's own and late batches, read at one time.

    `published` is oldest first, `failures` newest first; with `is_whole` nothing was published
    before the first of them.
    """

    at: datetime
    published: tuple[PublishedAttempt, ...] = ()
    is_whole: bool = True
    waiting: tuple[PlannedTogether, ...] = ()
    failures: tuple[FailedAttempt, ...] = ()

    @property
    def quarantined_ratio(self) -> float | None:
        """Share of the records read that were quarantined; None where none was read."""
        read = sum(one.read for one in self.published)
        return sum(one.quarantined for one in self.published) / read if read else None

    def backlog(self) -> tuple[BacklogPoint, ...]:
        """Give the backlog of planned batches at each time it changed, as far back as is known.

        The last point is now. Batches that were called off or split count at no time.
        """
        changes = sorted(self._changes(), key=itemgetter(0))
        if not changes:
            return ()
        is_cut = self.published and not self.is_whole
        known_from = self.published[0].published_at if is_cut else changes[0][0]
        points: list[BacklogPoint] = []
        batches = weight = 0
        for at, group in groupby(changes, key=lambda change: max(change[0], known_from)):
            for _, more_batches, more_weight in group:
                batches, weight = batches + more_batches, weight + more_weight
            points.append(BacklogPoint(at=at, batches=batches, weight=weight))
        if points[-1].at < self.at:
            points.append(BacklogPoint(at=self.at, batches=batches, weight=weight))
        return tuple(points)

    def forecast(self, waiting: Amount) -> Forecast:
        """Tell when what waits will be done at the rate of the last 20 batches, or that it grows.

        The rate is that of the time in which at least one of them was worked on: pauses in which
        nothing waited, or nobody worked, do not slow it down.
        """
        if not (waiting.batches or waiting.items):
            return Forecast(outlook=Outlook.NOTHING_WAITS)
        last = self.published[-_NEWEST:]
        seconds = _covered_seconds(last)
        capacity = sum(one.weight for one in last) / seconds if seconds else 0.0
        if capacity <= 0:
            return Forecast(outlook=Outlook.UNKNOWN)
        arrivals = self._arrivals(min(one.published_at for one in last))
        if arrivals >= capacity:
            return Forecast(outlook=Outlook.GROWS, capacity=capacity, arrivals=arrivals)
        left = min(waiting.size_bytes / (capacity - arrivals), _LONGEST.total_seconds())
        return Forecast(
            outlook=Outlook.SHRINKS,
            capacity=capacity,
            arrivals=arrivals,
            empty_after=timedelta(seconds=left),
        )

    def _changes(self) -> Iterable[tuple[datetime, int, int]]:
        """Give times with the batches and bytes that came (or, negative, went) then."""
        for group in self.waiting:
            yield group.since, group.batches, group.weight
        for one in self.published:
            if one.generation == 1:
                yield one.planned_at, 1, one.weight
                yield one.published_at, -1, -one.weight

    def _arrivals(self, since: datetime) -> float:
        """Give the weight a second that was planned after a time."""
        seconds = (self.at - since).total_seconds()
        came = sum(weight for at, batches, weight in self._changes() if at > since and batches > 0)
        return came / seconds if seconds > 0 else 0.0


def _covered_seconds(attempts: Sequence[PublishedAttempt]) -> float:
    """Give the seconds in which at least one of some attempts was going on."""
    covered, until = timedelta(0), None
    for one in sorted(attempts, key=lambda one: one.started_at):
        begun = one.started_at if until is None else max(one.started_at, until)
        if one.published_at > begun:
            covered += one.published_at - begun
        until = one.published_at if until is None else max(one.published_at, until)
    return covered.total_seconds()
