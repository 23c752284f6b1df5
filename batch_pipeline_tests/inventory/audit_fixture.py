"""A job on a user's meta table: acquire, publish and audit."""

from dataclasses import dataclass, field
from typing import Any

from batch_pipeline.inventory.acquire import AcquireRequest
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.jobs import ALL_IDS
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource, read_items
from batch_pipeline.model.audit import Audit
from batch_pipeline.model.batch import Attempt, Batch, IdRange
from batch_pipeline.model.item import ItemIdSet
from batch_pipeline.model.job import JobTerms
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    choose_watermark,
    insert,
)
from batch_pipeline_tests.seeds import query


@dataclass
class Feed:
    """A job on a table; `taken` are the ids of all batches that succeeded."""

    database: Database
    table: ReflectedMetaTable
    bounds: Limits = field(default_factory=lambda: limits(max_count=3))
    taken: list[int] = field(default_factory=list)
    job: str = "job"
    terms: dict[str, Any] = field(default_factory=dict)
    source: MetaSource = field(init=False)

    def __post_init__(self) -> None:
        # The highest id, without regard to open transactions.
        choice = choose_watermark(self.table, Strategy.REGISTRAR)
        self.source = MetaSource(table=self.table, choice=choice)

    def request(self, window: IdRange = ALL_IDS, **changed_terms: Any) -> AcquireRequest:
        """Return the request for the next batch."""
        terms: dict[str, Any] = {
            "name": self.job,
            "meta_table": self.table.canonical_name,
            "where": self.table.where,
        }
        config: dict[str, Any] = {"batch_id_min": None, "batch_id_max": None}
        if window != ALL_IDS:
            config = {"batch_id_min": window.first_id, "batch_id_max": window.last_id}
        config |= {"batch_weight": self.bounds.max_weight, "batch_count": self.bounds.max_count}
        return AcquireRequest(
            terms=JobTerms(**(terms | self.terms | changed_terms)),
            limits=self.bounds,
            config=config,
            window=window,
        )

    def acquire(self, window: IdRange = ALL_IDS, **changed_terms: Any) -> Attempt | None:
        """Start an attempt on the next batch."""
        request = self.request(window, **changed_terms)
        return self.database.acquisitions.acquire(request, self.source)

    def acquired(self, **changed_terms: Any) -> Attempt:
        """Start an attempt on the next batch, which must exist."""
        attempt = self.acquire(**changed_terms)
        assert attempt is not None
        return attempt

    def succeed(self, attempt: Attempt) -> list[int]:
        """Publish an attempt and return the ids of its items."""
        items = read_items(self.database.engine, self.table, attempt.batch)
        seen = ItemIdSet.of((item.id for item in items), weight=sum(item.weight for item in items))
        self.database.attempts.succeed(attempt, logging=None, seen=seen)
        ids = [item.id for item in items]
        self.taken += ids
        return ids

    def drain(self, window: IdRange = ALL_IDS) -> list[list[int]]:
        """Acquire and publish batches until none is left; return the ids of each."""
        batches = []
        while (attempt := self.acquire(window)) is not None:
            batches.append(self.succeed(attempt))
        return batches

    def audit(self, **how: Any) -> Audit:
        """Audit the job."""
        return self.database.late_arrivals.audit(self.job, self.table, **how)

    def batch(self, first_id: int) -> Batch:
        """Return the batch of the job that starts at an id."""
        [(batch_id, last_id)] = query(
            self.database,
            "SELECT b.id, b.last_id FROM batch_pipeline.batch b JOIN batch_pipeline.job j "
            "ON j.id = b.job_id WHERE j.name = 'job' AND b.first_id = :first_id",
            first_id=first_id,
        )
        ids = IdRange(first_id=first_id, last_id=last_id)
        return Batch(id=batch_id, job="job", id_range=ids, weight=0, count=0)


def row_counts(database: Database) -> list[tuple[Any, ...]]:
    """Count the rows of the tables that an audit may write."""
    return query(
        database,
        "SELECT (SELECT count(*) FROM batch_pipeline.job), "
        "(SELECT count(*) FROM batch_pipeline.batch), "
        "(SELECT count(*) FROM batch_pipeline.batch_state), "
        "(SELECT count(*) FROM batch_pipeline.attempt), "
        "(SELECT count(*) FROM batch_pipeline.bookmark)",
    )


def late_item_ids(database: Database) -> list[list[int]]:
    """Return the item ids of all late batches, oldest first."""
    rows = query(
        database,
        "SELECT b.item_ids FROM batch_pipeline.batch b JOIN batch_pipeline.job j ON j.id = b.job_id"
        " WHERE j.name = 'job.late' ORDER BY b.id",
    )
    return [list(ids) for (ids,) in rows]


def consume_even_ids(feed: Feed) -> Feed:
    """Fill a table with even ids and consume it."""
    insert(feed.table, dict.fromkeys(range(2, 19, 2), 10))
    assert feed.drain() == [[2, 4, 6], [8, 10, 12], [14, 16, 18]]
    return feed
