"""A job on a user's meta table: acquire, publish and audit."""

from dataclasses import dataclass, field
from typing import Any

from batch_pipeline.inventory.acquire import AcquireRequest
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.jobs import ALL_IDS
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource, read_items
from batch_pipeline.model.audit import Audit
from batch_pipeline.model.batch import Attempt, IdRange
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


def acquire_request(
    table: ReflectedMetaTable, job: str, bounds: Limits, window: IdRange = ALL_IDS, **terms: Any
) -> AcquireRequest:
    """Return the request for the next batch of a job on a table."""
    is_all = window == ALL_IDS
    config = {
        "batch_id_min": None if is_all else window.first_id,
        "batch_id_max": None if is_all else window.last_id,
        "batch_weight": bounds.max_weight,
        "batch_count": bounds.max_count,
    }
    terms = {"name": job, "meta_table": table.canonical_name, "where": table.where} | terms
    return AcquireRequest(terms=JobTerms(**terms), limits=bounds, config=config, window=window)


def succeed(
    database: Database, table: ReflectedMetaTable, attempt: Attempt
) -> tuple[int, list[int]]:
    """Publish an attempt on a table; return its generation and the ids of its items."""
    items = read_items(database.engine, table, attempt.batch)
    ids = [item.id for item in items]
    seen = ItemIdSet.of(ids, weight=sum(item.weight for item in items))
    return database.attempts.succeed(attempt, logging=None, seen=seen), ids


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
        terms = self.terms | changed_terms
        return acquire_request(self.table, self.job, self.bounds, window, **terms)

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
        _, ids = succeed(self.database, self.table, attempt)
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
