"""Counts for monitoring, at a cost that depends on what changed. Reads only.

Unfinished batches are read through partial indexes, publish counts from the job, and attempts
incrementally as they end.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.jobs import ALL_IDS, highest_planned, of_stream
from batch_pipeline.inventory.planning import MetaTable
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
from batch_pipeline.model.batch import AttemptStatus, BatchState
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.status import EndedAttempt, NotPlanned, UnfinishedBatches

_MAX_ATTEMPTS = 5_000
# Ids are assigned before they are visible, so an attempt may appear this far below the highest id.
_ID_OVERLAP = 1_000
_REGISTERED_TABLE = f"{SCHEMA}.{item.name}"
_is_running = batch_state.c.state == sa.literal_column(f"'{BatchState.RUNNING}'")


@dataclass(slots=True)
class AttemptCursor:
    """The position of a reader of ended attempts, with the attempts that were still running."""

    highest: int = 0
    ended: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class WorkCounts:
    """Counts of batches, items and attempts of streams."""

    engine: sa.Engine

    def unfinished(self, streams: Collection[str]) -> list[UnfinishedBatches]:
        """Count the unfinished batches of streams by kind of job and state."""
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
        """Count the generations that jobs of streams have published."""
        query = (
            sa.select(job.c.stream, job.c.kind, sa.func.sum(job.c.publish_count).label("number"))
            .where(job.c.stream.in_(streams))
            .group_by(job.c.stream, job.c.kind)
        )
        with transaction(self.engine) as connection:
            rows = connection.execute(query).all()
        return {(row.stream, JobKind(row.kind)): int(row.number) for row in rows}

    def not_planned(self, table: MetaTable) -> NotPlanned:
        """Count the items of a stream that are not planned.

        Raises:
            PipelineError: the meta table cannot be read.
        """
        with transaction(self.engine) as connection:
            result = connection.execute(sa.select(job.c.id).where(of_stream(table.stream)))
            job_id = result.scalar_one_or_none()
            planned = None if job_id is None else highest_planned(connection, job_id, ALL_IDS)
        items, weight = table.backlog(planned)
        waited = table.oldest_age(planned) if items else None
        seconds = None if waited is None else waited.total_seconds()
        return NotPlanned(items=items, weight=weight, oldest_seconds=seconds)

    def start_cursor(self) -> AttemptCursor:
        """Return a cursor that skips the attempts that have already ended."""
        with transaction(self.engine) as connection:
            highest = connection.execute(
                sa.select(sa.func.coalesce(sa.func.max(attempt.c.id), 0))
            ).scalar_one()
            recent = sa.select(attempt.c.id).where(attempt.c.id > highest - _ID_OVERLAP)
            running = sa.select(attempt.c.id).where(attempt.c.status == AttemptStatus.RUNNING)
            are_running = set(connection.execute(running).scalars())
            known = set(connection.execute(recent).scalars())
        return AttemptCursor(highest=highest, ended=known - are_running, running=are_running)

    def ended(self, cursor: AttemptCursor, streams: Collection[str]) -> list[EndedAttempt]:
        """Return the attempts that ended since the last call, and advance `cursor`.

        Returns at most 5,000 new attempts; the next call continues.
        """
        is_new = sa.and_(
            attempt.c.id > cursor.highest - _ID_OVERLAP,
            attempt.c.id != sa.all_(_array(cursor.ended)),
        )
        is_known = attempt.c.id == sa.any_(_array(cursor.running))
        query = (
            sa.select(attempt.c.id, attempt.c.status)
            .where(sa.or_(is_new, is_known))
            .order_by(attempt.c.id)
            .limit(_MAX_ATTEMPTS)
        )
        with transaction(self.engine) as connection:
            statuses = {row.id: row.status for row in connection.execute(query)}
            running = {
                attempt_id
                for attempt_id, status in statuses.items()
                if status == AttemptStatus.RUNNING
            }
            new = statuses.keys() - running
            rows = connection.execute(_ended_query(new)).all() if new else []
        cursor.highest = max(cursor.highest, *statuses) if statuses else cursor.highest
        cursor.running = running
        cursor.ended = {
            attempt_id
            for attempt_id in cursor.ended | new
            if attempt_id > cursor.highest - _ID_OVERLAP
        }
        return [_ended(row) for row in rows if row.stream in streams]


def _ended_query(ids: Collection[int]) -> sa.Select[Any]:
    """Build the query of the results of ended attempts of streams."""
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
            job.c.meta_table == _REGISTERED_TABLE,
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
