"""Where streams stand: what waits, what is stuck, and whether their ranges tile. Reads only."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.partition_key import partition_key
from batch_pipeline.domain.standing import (
    MANY_PARTITIONS,
    UNFINISHED,
    Amount,
    ManyPartitions,
    Standing,
    Stuck,
    Tiling,
)
from batch_pipeline.inventory.jobs.bookmarks import EVERYWHERE, highest_planned
from batch_pipeline.inventory.jobs.jobs import of_stream
from batch_pipeline.inventory.jobs.tiling import tiling
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import attempt, batch, batch_state, job
from batch_pipeline.inventory.work.batches import status_of, status_query
from batch_pipeline.ports import MetaTable

# Assets whose partitions are batches, by the kind of the jobs.
_PARTITIONED = {JobKind.INCREMENTAL.value: "batches", JobKind.BACKFILL.value: "backfill"}


@dataclass(frozen=True, slots=True)
class Standings:
    """Where the own and the late batches of streams stand; backfills are not counted."""

    engine: sa.Engine

    def states(self, stream: str) -> Mapping[BatchState, int]:
        """Count the batches by state, without those that were split."""
        query = (
            sa.select(batch_state.c.state, sa.func.count().label("batches"))
            .join(job, job.c.id == batch_state.c.job_id)
            .where(_own(stream), batch_state.c.state != BatchState.SUPERSEDED)
            .group_by(batch_state.c.state)
        )
        with transaction(self.engine) as connection:
            return {BatchState(row.state): row.batches for row in connection.execute(query)}

    def standing(self, stream: str, table: MetaTable) -> Standing:
        """Tell where a stream stands.

        Raises:
            PipelineError: the user's table cannot be read.
        """
        with transaction(self.engine) as connection:
            states = {
                BatchState(row.state): Amount(
                    batches=row.batches, items=int(row.items), size_bytes=int(row.weight)
                )
                for row in connection.execute(_amounts(stream))
            }
            waits = connection.execute(_longest_waiting(stream)).one_or_none()
            which = connection.execute(sa.select(job.c.id).where(of_stream(stream)))
            job_id = which.scalar_one_or_none()
            planned = None if job_id is None else highest_planned(connection, job_id, EVERYWHERE)
        items, weight = table.backlog(planned)
        oldest = None if waits is None else IdRange(first_id=waits.first_id, last_id=waits.last_id)
        return Standing(
            states=states,
            items_not_planned=items,
            bytes_not_planned=weight,
            not_planned_for=table.waited(planned) if items else None,
            not_published_for=None if waits is None else waits.age,
            oldest_batch=None if oldest is None else partition_key(oldest),
            bookmark=planned,
            ceiling=table.ceiling(),
        )

    def many_partitions(self, stream: str) -> list[ManyPartitions]:
        """Return the assets of a stream that have too many partitions, backfills included."""
        with transaction(self.engine) as connection:
            return many_partitions(connection, job.c.stream == stream)

    def stuck(self, stream: str, longer_than: timedelta) -> Stuck:
        """Find the batches that have been failed or dead for longer than a while."""
        since = sa.func.clock_timestamp() - longer_than
        query = (
            status_query()
            .add_columns(sa.func.count().over().label("batches"))
            .where(
                _own(stream),
                batch_state.c.state.in_([BatchState.FAILED.value, BatchState.DEAD.value]),
                attempt.c.finished_at < since,
            )
            .order_by(None)
            .order_by(attempt.c.finished_at)
            .limit(1)
        )
        paused = sa.select(job.c.paused_reason).where(
            of_stream(stream), job.c.paused_at.is_not(None)
        )
        with transaction(self.engine) as connection:
            row = connection.execute(query).one_or_none()
            reasons = [reason or "" for reason in connection.execute(paused).scalars()]
        is_paused = reasons[0] if reasons else None
        if row is None:
            return Stuck(paused=is_paused)
        first = status_of(row)
        return Stuck(
            batches=row.batches, first=first.batch.label, error=first.error, paused=is_paused
        )

    def tiling(self, stream: str) -> Tiling:
        """Check that the live ranges of a stream tile its bookmarks, and that no late item is in
        two batches.
        """
        with transaction(self.engine) as connection:
            which = connection.execute(sa.select(job.c.id).where(of_stream(stream)))
            job_id = which.scalar_one_or_none()
            return Tiling() if job_id is None else tiling(connection, job_id)


def many_partitions(
    connection: sa.Connection, of_jobs: sa.ColumnElement[bool]
) -> list[ManyPartitions]:
    """Return the assets of streams that have too many partitions, each a batch of `of_jobs`.

    One scan of `batch_state`, whose rows are small.
    """
    query = (
        sa.select(job.c.stream, job.c.kind, sa.func.count().label("partitions"))
        .join(batch_state, batch_state.c.job_id == job.c.id)
        .where(
            of_jobs,
            job.c.stream.is_not(None),
            job.c.kind.in_(_PARTITIONED),
            batch_state.c.state != BatchState.SUPERSEDED,
        )
        .group_by(job.c.stream, job.c.kind)
        .having(sa.func.count() >= MANY_PARTITIONS)
        .order_by(job.c.stream, job.c.kind.desc())
    )
    return [
        ManyPartitions(
            stream=row.stream,
            asset=f"{row.stream}/{_PARTITIONED[row.kind]}",
            partitions=row.partitions,
        )
        for row in connection.execute(query)
    ]


def _own(stream: str) -> sa.ColumnElement[bool]:
    kinds = [JobKind.INCREMENTAL.value, JobKind.LATE.value]
    return sa.and_(job.c.stream == stream, job.c.kind.in_(kinds))


def _amounts(stream: str) -> sa.Select[Any]:
    return (
        sa.select(
            batch_state.c.state,
            sa.func.count().label("batches"),
            sa.func.sum(batch.c.item_count).label("items"),
            sa.func.sum(batch.c.weight).label("weight"),
        )
        .join(job, job.c.id == batch_state.c.job_id)
        .join(batch, batch.c.id == batch_state.c.batch_id)
        .where(_own(stream), batch_state.c.state != BatchState.SUPERSEDED)
        .group_by(batch_state.c.state)
    )


def _longest_waiting(stream: str) -> sa.Select[Any]:
    age = sa.func.clock_timestamp() - batch.c.planned_at
    return (
        sa.select(batch.c.first_id, batch.c.last_id, age.label("age"))
        .join(batch_state, batch_state.c.batch_id == batch.c.id)
        .join(job, job.c.id == batch_state.c.job_id)
        .where(_own(stream), batch_state.c.state.in_(sorted(UNFINISHED)))
        .order_by(batch.c.planned_at, batch.c.first_id)
        .limit(1)
    )
