"""The last work on streams, in bounded reads: so many published attempts, what waits, failures.

What waits is counted in at most 102 groups, failures are at most 20. Reads only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, BatchState
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.recent_work import (
    FailedAttempt,
    PlannedTogether,
    PublishedAttempt,
    RecentWork,
)
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import (
    UNFINISHED,
    attempt,
    batch,
    batch_state,
    job,
    part_file,
)
from batch_pipeline.inventory.work.batch_rows import label_of

_GROUPS = 100
_FAILURES = 20
_LONGEST_ERROR = 2_000
_KINDS = (JobKind.INCREMENTAL.value, JobKind.LATE.value)
_FAILED = (AttemptStatus.FAILED.value, AttemptStatus.ABANDONED.value)
_STANDING_FAILURES = (BatchState.FAILED, BatchState.INTERRUPTED, BatchState.DEAD)
_NAMED = (batch, job.c.name, job.c.kind, job.c.stream)


@dataclass(frozen=True, slots=True)
class RecentWorks:
    """The last work on the own and the late batches of streams; backfills are not counted."""

    engine: sa.Engine

    def of_stream(self, stream: str, *, newest: int) -> RecentWork:
        """Read at most so many of the last published attempts, what waits, and 20 failures.

        Failures are those of batches that stand failed, and of the batches that were published.
        """
        own = sa.and_(job.c.stream == stream, job.c.kind.in_(_KINDS))
        with transaction(self.engine) as connection:
            at: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
            which = sa.select(job.c.id, job.c.publish_count).where(own)
            counts = {row.id: row.publish_count for row in connection.execute(which)}
            if not counts:
                return RecentWork(at=at)
            rows, ids = connection.execute(_published(counts, newest)).all(), list(counts)
            since = rows[-1].finished_at if rows else at
            waiting = connection.execute(_waiting(ids, since, at)).all()
            tried = [row.id for row in rows if row.number > 1]
            tried += connection.execute(_standing_failed(ids)).scalars()
            failures = connection.execute(_failures(tried)).all()
        return RecentWork(
            at=at,
            published=tuple(_attempt(row) for row in reversed(rows)),
            is_whole=sum(counts.values()) <= newest,
            waiting=tuple(
                PlannedTogether(since=row.since, batches=row.batches, weight=int(row.weight))
                for row in waiting
            ),
            failures=tuple(_failure(row) for row in failures),
        )


def _published(counts: Mapping[int, int], newest: int) -> sa.Select[Any]:
    """Give the query of the last published attempts, newest first.

    A job counts what it publishes, so the last of them are found without the ones before. The
    numbers are values, not columns: so the planner knows that they are few.
    """
    seconds = sa.extract("epoch", attempt.c.finished_at - attempt.c.started_at)
    size_bytes = (
        sa.select(sa.func.coalesce(sa.func.sum(part_file.c.size_bytes), 0))
        .where(part_file.c.attempt_id == attempt.c.id, ~part_file.c.quarantine)
        .scalar_subquery()
    )
    are_last = (
        sa.and_(
            batch.c.job_id == job_id,
            attempt.c.publish_number.between(count - newest + 1, count),
        )
        for job_id, count in counts.items()
    )
    return (
        sa.select(
            *_NAMED,
            attempt.c.number,
            attempt.c.generation,
            attempt.c.finished_at,
            attempt.c.facts,
            sa.cast(seconds, sa.Double).label("seconds"),
            sa.cast(size_bytes, sa.BigInteger).label("size_bytes"),
        )
        .select_from(attempt)
        .join(batch, batch.c.id == attempt.c.batch_id)
        .join(job, job.c.id == batch.c.job_id)
        .where(
            sa.or_(*are_last),
            attempt.c.status == AttemptStatus.SUCCEEDED,
            attempt.c.encoding.is_not(None),  # a worker of the library has no files
        )
        .order_by(attempt.c.finished_at.desc(), attempt.c.id.desc())
        .limit(newest)
    )


def _waiting(ids: Sequence[int], since: datetime, at: datetime) -> sa.Select[Any]:
    """Give the query of batches that were never published, in groups by when they were planned.

    Those planned before a time are one group. It reads what waits, not what is done.
    """
    group = sa.func.width_bucket(
        sa.extract("epoch", batch.c.planned_at),
        since.timestamp(),
        at.timestamp() + 1,  # the bounds must differ
        _GROUPS,
    ).label("grouped")
    is_running = batch_state.c.state == sa.literal_column(f"'{BatchState.RUNNING}'")
    return (
        sa.select(
            group,
            sa.func.min(batch.c.planned_at).label("since"),
            sa.func.count().label("batches"),
            sa.func.sum(batch.c.weight).label("weight"),
        )
        .select_from(batch_state)
        .join(batch, batch.c.id == batch_state.c.batch_id)
        .where(
            batch_state.c.job_id.in_(ids),
            sa.or_(sa.text(UNFINISHED), is_running),  # as the partial indexes say it
            batch_state.c.generation.is_(None),
        )
        .group_by(group)
        .order_by(group)
    )


def _standing_failed(ids: Sequence[int]) -> sa.Select[Any]:
    """Give the query of batches of jobs that stand failed, the newest 20 of each state."""
    newest = [
        sa.select(batch_state.c.batch_id)
        .where(
            sa.text(UNFINISHED), batch_state.c.job_id == job_id, batch_state.c.state == state.value
        )
        .order_by(batch_state.c.batch_id.desc())
        .limit(_FAILURES)
        .subquery()
        for job_id in ids
        for state in _STANDING_FAILURES
    ]
    together = sa.union_all(*(sa.select(one.c.batch_id) for one in newest)).subquery()
    return sa.select(together.c.batch_id)


def _failures(batch_ids: Sequence[int]) -> sa.Select[Any]:
    """Give the query of the newest failed attempts on batches."""
    return (
        sa.select(
            *_NAMED,
            attempt.c.number,
            attempt.c.status,
            attempt.c.finished_at,
            sa.func.left(attempt.c.error, _LONGEST_ERROR).label("error"),
            batch_state.c.state,
        )
        .select_from(attempt)
        .join(batch, batch.c.id == attempt.c.batch_id)
        .join(batch_state, batch_state.c.batch_id == batch.c.id)
        .join(job, job.c.id == batch.c.job_id)
        .where(
            attempt.c.batch_id == sa.any_(sa.cast(list(batch_ids), sa.ARRAY(sa.BigInteger))),
            attempt.c.status.in_(_FAILED),
        )
        .order_by(attempt.c.finished_at.desc(), attempt.c.id.desc())
        .limit(_FAILURES)
    )


def _attempt(row: sa.Row[Any]) -> PublishedAttempt:
    return PublishedAttempt(
        label=label_of(row),
        generation=row.generation,
        planned_at=row.planned_at,
        published_at=row.finished_at,
        seconds=row.seconds,
        weight=row.weight,
        read=row.facts["read"],
        written=row.facts["written"],
        quarantined=row.facts["quarantined"],
        size_bytes=row.size_bytes,
    )


def _failure(row: sa.Row[Any]) -> FailedAttempt:
    return FailedAttempt(
        label=label_of(row),
        number=row.number,
        status=AttemptStatus(row.status),
        ended_at=row.finished_at,
        error=row.error,
        state=BatchState(row.state),
    )
