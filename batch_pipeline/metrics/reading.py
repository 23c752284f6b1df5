"""Reads what a scrape tells: a bounded set of queries, the same for any length of history."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

from batch_pipeline.app import Pipeline
from batch_pipeline.inventory.status import AttemptCursor
from batch_pipeline.model.errors import OF_ONE_META_TABLE
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.status import NotPlanned, Totals, UnfinishedBatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """What is so now, and what was counted; None in `not_planned`: its table cannot be read."""

    streams: tuple[str, ...]
    unfinished: tuple[UnfinishedBatches, ...]
    published: Mapping[tuple[str, JobKind], int]
    not_planned: Mapping[str, NotPlanned | None]
    totals: Totals


@dataclass(slots=True)
class Reading:
    """Reads for one scrape after the other and counts what has ended in between."""

    pipeline: Pipeline
    _totals: Totals = field(default_factory=Totals)
    _seen: AttemptCursor | None = None
    _lock: Lock = field(default_factory=Lock)

    def begin(self) -> None:
        """Count from now on; later calls change nothing.

        Raises:
            PipelineError: the inventory cannot be read.
        """
        with self._lock:
            self._begun()

    def scrape(self) -> Scrape:
        """Read what there is to tell; one at a time.

        Raises:
            PipelineError: the inventory cannot be read.
        """
        with self._lock:
            seen = self._begun()
            streams, counts = tuple(self.pipeline.streams), self.pipeline.database.work_counts
            self._totals.add(counts.ended(seen, streams))
            return Scrape(
                streams=streams,
                unfinished=tuple(counts.unfinished(streams)),
                published=counts.published(streams),
                not_planned={name: self._not_planned(name) for name in streams},
                totals=self._totals,
            )

    def _begun(self) -> AttemptCursor:
        if self._seen is None:
            self._seen = self.pipeline.database.work_counts.start_cursor()
            self._totals.begin(self.pipeline.streams)
        return self._seen

    def _not_planned(self, name: str) -> NotPlanned | None:
        try:
            table = self.pipeline.meta_table(self.pipeline.stream(name))
            return self.pipeline.database.work_counts.not_planned(table)
        except OF_ONE_META_TABLE:  # the others are told all the same
            return None
