"""What monitoring asks for again and again, in reads whose cost is that of what changed.

Unfinished batches are read through partial indexes, what is published is a column of the job, and
attempts are read as they end. Reads only.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, BatchState
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.work_counts import EndedAttempt, NotPlanned, UnfinishedBatches
from batch_pipeline.inventory.jobs.bookmarks import EVERYWHERE, highest_planned
from batch_pipeline.inventory.jobs.jobs import of_stream
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import (
    SCHEMA,
    UNFINISHED,
    attempt,
    batch,
    batch_state,
    item,
    job,
    part_file,
)
from batch_pipeline.ports import MetaTable

_MOST_NEW = 5_000
# Ids are given before they are seen: an attempt may appear below the highest one by so many.
_LATE_BY = 1_000
_OWN_TABLE = f"{SCHEMA}.{item.name}"
_is_running = batch_state.c.state == sa.literal_column(f"'{BatchState.RUNNING}'")


@dataclass(slots=True)
class Seen:
    """Which attempts somebody has been told of: those that ended, and those that have not yet."""

    highest: int = 0
    ended: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class WorkCounts:
    """Numbers of the work on streams."""

    engine: sa.Engine

    def unfinished(self, streams: Collection[str]) -> list[UnfinishedBatches]:
        """Count the batches of streams that are not done, by kind of job and state."""
        age = sa.func.extract("epoch", sa.func.clock_timestamp() - sa.func.min(batch.c.planned_at))
        query = (
            sa.select(
                job.c.stream,
                job.c.kind,
                batch_state.c.state,
                sa.func.count().label("batches"),
                sa.func.sum(batch.c.item_count).label("items"),
                sa.func.sum(batch.c.weight).label("weight"),
                sa.cast(age, sa.Double).label("seconds"),
            )
            .select_from(batch_state)
            .join(batch, batch.c.id == batch_state.c.batch_id)
            .join(job, job.c.id == batch_state.c.job_id)
            .where(sa.or_(sa.text(UNFINISHED), _is_running), job.c.stream.in_(streams))
            .group_by(job.c.stream, job.c.kind, batch_state.c.state)
        )
        with transaction(self.engine) as connection:
            return [
                UnfinishedBatches(
                    stream=row.stream,
                    kind=JobKind(row.kind),
                    state=BatchState(row.state),
                    batches=row.batches,
                    items=int(row.items),
                    weight=int(row.weight),
                    oldest_seconds=row.seconds,
                )
                for row in connection.execute(query)
            ]

    def published(self, streams: Collection[str]) -> Mapping[tuple[str, JobKind], int]:
        """Count the generations that jobs of streams have ever published."""
        query = (
            sa.select(job.c.stream, job.c.kind, sa.func.sum(job.c.publish_count).label("number"))
            .where(job.c.stream.in_(streams))
            .group_by(job.c.stream, job.c.kind)
        )
        with transaction(self.engine) as connection:
            rows = connection.execute(query).all()
        return {(row.stream, JobKind(row.kind)): int(row.number) for row in rows}

    def not_planned(self, table: MetaTable) -> NotPlanned:
        """Count the items of a stream that no batch has.

        Raises:
            PipelineError: the user's table cannot be read.
        """
        with transaction(self.engine) as connection:
            which = connection.execute(sa.select(job.c.id).where(of_stream(table.stream)))
            job_id = which.scalar_one_or_none()
            planned = None if job_id is None else highest_planned(connection, job_id, EVERYWHERE)
        items, weight = table.backlog(planned)
        waited = table.waited(planned) if items else None
        seconds = None if waited is None else waited.total_seconds()
        return NotPlanned(items=items, weight=weight, oldest_seconds=seconds)

    def begin(self) -> Seen:
        """Give the mark of now: all that has ended counts as told."""
        with transaction(self.engine) as connection:
            highest = connection.execute(
                sa.select(sa.func.coalesce(sa.func.max(attempt.c.id), 0))
            ).scalar_one()
            recent = sa.select(attempt.c.id).where(attempt.c.id > highest - _LATE_BY)
            running = sa.select(attempt.c.id).where(attempt.c.status == AttemptStatus.RUNNING)
            are_running = set(connection.execute(running).scalars())
            known = set(connection.execute(recent).scalars())
        return Seen(highest=highest, ended=known - are_running, running=are_running)

    def ended(self, seen: Seen, streams: Collection[str]) -> list[EndedAttempt]:
        """Give the attempts that ended since the last time, and remember them in `seen`.

        At most 5,000 new ones; the next call goes on.
        """
        is_new = sa.and_(
            attempt.c.id > seen.highest - _LATE_BY, attempt.c.id != sa.all_(_array(seen.ended))
        )
        is_known = attempt.c.id == sa.any_(_array(seen.running))
        query = (
            sa.select(attempt.c.id, attempt.c.status)
            .where(sa.or_(is_new, is_known))
            .order_by(attempt.c.id)
            .limit(_MOST_NEW)
        )
        with transaction(self.engine) as connection:
            found = {row.id: row.status for row in connection.execute(query)}
            running = {one for one, status in found.items() if status == AttemptStatus.RUNNING}
            new = found.keys() - running
            rows = connection.execute(_facts(new)).all() if new else []
        seen.highest = max(seen.highest, *found) if found else seen.highest
        seen.running = running
        seen.ended = {one for one in seen.ended | new if one > seen.highest - _LATE_BY}
        return [_ended(row) for row in rows if row.stream in streams]


def _facts(ids: Collection[int]) -> sa.Select[Any]:
    """Give the query of what ended attempts have done, of streams only."""
    size_bytes = (
        sa.select(sa.func.sum(part_file.c.size_bytes))
        .where(part_file.c.attempt_id == attempt.c.id, ~part_file.c.quarantine)
        .scalar_subquery()
    )
    registered_at = (
        sa.select(item.c.registered_at)
        .where(
            item.c.stream == job.c.stream,
            item.c.id >= batch.c.first_id,
            job.c.meta_table == _OWN_TABLE,
        )
        .order_by(item.c.id)
        .limit(1)
        .scalar_subquery()
    )
    landed_at = sa.func.coalesce(registered_at, batch.c.planned_at)
    lag = sa.func.extract("epoch", attempt.c.finished_at - landed_at)
    return (
        sa.select(
            job.c.stream,
            job.c.kind,
            attempt.c.status,
            attempt.c.generation,
            attempt.c.facts,
            sa.func.coalesce(size_bytes, 0).label("size_bytes"),
            sa.cast(lag, sa.Double).label("lag"),
        )
        .select_from(attempt)
        .join(batch, batch.c.id == attempt.c.batch_id)
        .join(job, job.c.id == batch.c.job_id)
        .where(
            attempt.c.id == sa.any_(_array(ids)),
            job.c.stream.is_not(None),
        )
    )


def _array(ids: Collection[int]) -> sa.Cast[Any]:
    return sa.cast(sorted(ids), sa.ARRAY(sa.BigInteger))


def _ended(row: sa.Row[Any]) -> EndedAttempt:
    facts = row.facts or {}
    is_first = row.generation == 1 and row.kind != JobKind.BACKFILL
    return EndedAttempt(
        stream=row.stream,
        kind=JobKind(row.kind),
        status=AttemptStatus(row.status),
        written=facts.get("written", 0),
        filtered=facts.get("filtered", 0),
        quarantined=facts.get("quarantined", 0),
        size_bytes=int(row.size_bytes),
        lag_seconds=row.lag if is_first else None,
    )
