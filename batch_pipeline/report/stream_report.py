"""What the report tells of one stream: values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.fitting import Learned
from batch_pipeline.domain.recent_work import Forecast, RecentWork
from batch_pipeline.domain.standing import Amount, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """Where a stream stands and its last work; `standing` is None where `problem` says why.

    `paused` is the reason for which its job is paused, empty where none was given; `learned` tells
    which limit batches are cut by where that is learned.
    """

    stream: str
    source: str
    work: RecentWork
    standing: Standing | None = None
    states: Mapping[BatchState, int] = field(default_factory=dict)
    problem: str | None = None
    paused: str | None = None
    learned: Learned | None = None

    @property
    def waiting(self) -> Amount:
        """What waits: without a standing, what was planned of it."""
        if self.standing is not None:
            return self.standing.waiting
        return Amount(
            batches=sum(group.batches for group in self.work.waiting),
            size_bytes=sum(group.weight for group in self.work.waiting),
        )

    @property
    def forecast(self) -> Forecast:
        """What becomes of what waits, without the batches that are dead."""
        waiting = self.waiting
        if self.standing is None:
            return self.work.forecast(waiting)
        dead = self.standing.states.get(BatchState.DEAD, Amount())
        left = Amount(
            batches=waiting.batches - dead.batches,
            items=waiting.items - dead.items,
            size_bytes=waiting.size_bytes - dead.size_bytes,
        )
        return self.work.forecast(left)
