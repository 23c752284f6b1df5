"""Published attempts and reports as values: what reports and their page are tested with."""

from datetime import timedelta
from typing import Any

from batch_pipeline.domain.batch import AttemptStatus, BatchState
from batch_pipeline.domain.recent_work import (
    FailedAttempt,
    PlannedTogether,
    PublishedAttempt,
    RecentWork,
)
from batch_pipeline.domain.standing import Amount, Standing
from batch_pipeline.report.stream_report import StreamReport
from batch_pipeline_tests.factories import NOON

MINUTE = timedelta(minutes=1)


def published(minute: float, **overrides: Any) -> PublishedAttempt:
    """A batch of 600 bytes, planned at noon and worked on for 60 s until a minute after noon."""
    facts: dict[str, Any] = {
        "label": f"batch-{minute:g}",
        "generation": 1,
        "planned_at": NOON,
        "published_at": NOON + minute * MINUTE,
        "seconds": 60.0,
        "weight": 600,
        "read": 100,
        "written": 90,
        "quarantined": 10,
        "size_bytes": 300,
    }
    return PublishedAttempt(**(facts | overrides))


def waits(minute: float, *, batches: int = 1, weight: int = 600) -> PlannedTogether:
    """Batches that were planned a minute after noon and wait."""
    return PlannedTogether(since=NOON + minute * MINUTE, batches=batches, weight=weight)


def failed(minute: float = 3, **overrides: Any) -> FailedAttempt:
    """An attempt that failed a minute after noon."""
    facts: dict[str, Any] = {
        "label": "000000000004-000000000006",
        "number": 2,
        "status": AttemptStatus.FAILED,
        "ended_at": NOON + minute * MINUTE,
        "error": "orders-0004.csv:17: expected 3 columns, found 2",
        "state": BatchState.FAILED,
    }
    return FailedAttempt(**(facts | overrides))


def work(minute: float, *attempts: PublishedAttempt, **overrides: Any) -> RecentWork:
    """What was published, oldest first, looked at a minute after noon."""
    facts: dict[str, Any] = {"at": NOON + minute * MINUTE, "published": attempts}
    return RecentWork(**(facts | overrides))


def report(**overrides: Any) -> StreamReport:
    """Two batches published, one waits and one is dead, two items are in no batch."""
    states = {
        BatchState.PUBLISHED: Amount(batches=2, items=6, size_bytes=1200),
        BatchState.PLANNED: Amount(batches=1, items=3, size_bytes=600),
        BatchState.DEAD: Amount(batches=1, items=3, size_bytes=6000),
    }
    standing = Standing(
        states=states,
        items_not_planned=2,
        bytes_not_planned=400,
        not_published_for=5 * MINUTE,
    )
    facts: dict[str, Any] = {
        "stream": "orders",
        "source": "file:///landing",
        "work": work(5, published(1), published(2), waiting=(waits(0), waits(0, weight=6000))),
        "standing": standing,
        "states": {state: amount.batches for state, amount in states.items()},
    }
    return StreamReport(**(facts | overrides))
