"""What became of batches since somebody last looked: planned, published, waiting. Reads only.

A job gives numbers to its batches under its planning lock, and to what it publishes under the lock
of its row: within a job both become visible in rising order. So a mark of how far one has read
misses nothing, however many batches there are below it; across jobs it would.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, Batch, BatchState, BatchStatus
from batch_pipeline.domain.job import JobKind
from batch_pipeline.inventory.jobs.jobs import held, of_stream
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import UNFINISHED, attempt, batch, batch_state, job
from batch_pipeline.inventory.work.batch_rows import batch_of
from batch_pipeline.inventory.work.batches import status_of, status_query

_PAGE = 1_000
# All that a `Batch` is made of; reading how each was planned would take longer than the rest.
_BATCH = (
    *(column for column in batch.c if column.name not in {"config", "superseded_at"}),
    job.c.name,
)
_DUE = (BatchState.PLANNED.value, BatchState.INTERRUPTED.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a job has been read: its last batch, and its last publish number."""

    batch_id: int = 0
    publish_number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What was planned and published above some marks, in order; `marks` are those of now.

    `planned` has no batch that was split. `published` also has batches that were planned before;
    one that was published twice is there once. `generations` are the newest of those, by the id of
    the batch.
    """

    planned: Sequence[Batch]
    published: Sequence[Batch]
    generations: Mapping[int, int]
    marks: Mapping[int, Mark]


@dataclass(frozen=True, slots=True)
class BatchNews:
    """The batches of all jobs, as those see them who look again and again."""

    engine: sa.Engine

    def publish_counts(self, stream: str) -> dict[int, int]:
        """Give how often each job of a stream has published: what is the same means no news."""
        query = sa.select(job.c.id, job.c.publish_count).where(job.c.stream == stream)
        with transaction(self.engine) as connection:
            return {row.id: row.publish_count for row in connection.execute(query)}

    def published_at(self, stream: str) -> dict[int, datetime]:
        """Give when the newest generation of each of a stream's own batches was published, by id;
        by the clock of the database.
        """
        query = (
            sa.select(attempt.c.batch_id, sa.func.max(attempt.c.finished_at).label("at"))
            .join_from(attempt, batch, batch.c.id == attempt.c.batch_id)
            .join(job, job.c.id == batch.c.job_id)
            .where(of_stream(stream), attempt.c.status == AttemptStatus.SUCCEEDED)
            .group_by(attempt.c.batch_id)
        )
        with transaction(self.engine) as connection:
            return {row.batch_id: row.at for row in connection.execute(query)}

    def since(self, stream: str, kind: JobKind, marks: Mapping[int, Mark]) -> News:
        """Read what jobs of a kind planned and published above their marks; all without any."""
        jobs = sa.select(job.c.id, job.c.publish_count).where(_of(stream, kind))
        with transaction(self.engine) as connection:
            counts = {row.id: row.publish_count for row in connection.execute(jobs)}
            before = {one: marks.get(one, Mark()) for one in counts}
            planned = _planned(connection, before)
            unread = {one for one, mark in before.items() if mark == Mark()}
            published: dict[int, sa.Row[*tuple[Any, ...]]] = {
                row.id: row
                for row in planned
                if row.job_id in unread and row.state == BatchState.PUBLISHED
            }
            for one, count in counts.items():
                if one not in unread and count > before[one].publish_number:
                    published |= _published(connection, one, before[one].publish_number, count)
        reached = {one: mark.batch_id for one, mark in before.items()}
        reached |= {row.job_id: row.id for row in planned}
        return News(
            planned=[batch_of(row) for row in planned if row.superseded_at is None],
            published=[batch_of(row) for row in published.values()],
            generations={one: row.generation for one, row in published.items()},
            marks={
                one: Mark(batch_id=reached[one], publish_number=count)
                for one, count in counts.items()
            },
        )

    def due(self, stream: str, kind: JobKind) -> Iterator[BatchStatus]:
        """Read the batches of jobs of a kind that are planned or interrupted, oldest first.

        Those of paused jobs are left out. They come in pages as they are asked for, each in a
        transaction of its own.
        """
        after = 0
        while True:
            ids = (
                sa.select(batch_state.c.batch_id)
                .join(job, job.c.id == batch_state.c.job_id)
                .where(
                    _of(stream, kind),
                    sa.not_(held()),
                    sa.text(f"batch_state.{UNFINISHED}"),  # as the partial index has it
                    batch_state.c.state.in_(_DUE),
                    batch_state.c.batch_id > after,
                )
                .order_by(batch_state.c.batch_id)
                .limit(_PAGE)
            )
            with transaction(self.engine) as connection:
                chosen = list(connection.execute(ids).scalars())
                page = status_query().where(
                    batch.c.id == sa.any_(sa.cast(chosen, sa.ARRAY(sa.BigInteger)))
                )
                found = connection.execute(page.order_by(None).order_by(batch.c.id))
                statuses = [status_of(row) for row in found]
            yield from (one for one in statuses if one.state in _DUE)
            if len(chosen) < _PAGE:
                return
            after = chosen[-1]

    def open_backfills(self, stream: str) -> list[str]:
        """Name the backfills of a stream that have batches which may still be published."""
        waits = sa.exists().where(
            batch_state.c.job_id == job.c.id,
            sa.text(f"batch_state.{UNFINISHED}"),
            batch_state.c.state != BatchState.DEAD,
        )
        runs = sa.exists().where(
            batch_state.c.job_id == job.c.id,
            batch_state.c.state == sa.literal_column(f"'{BatchState.RUNNING}'"),
        )
        query = sa.select(job.c.name).where(_of(stream, JobKind.BACKFILL), sa.or_(waits, runs))
        with transaction(self.engine) as connection:
            return list(connection.execute(query.order_by(job.c.id)).scalars())


def _of(stream: str, kind: JobKind) -> sa.ColumnElement[bool]:
    return sa.and_(job.c.stream == stream, job.c.kind == kind)


def _planned(
    connection: sa.Connection, marks: Mapping[int, Mark]
) -> Sequence[sa.Row[*tuple[Any, ...]]]:
    if not marks:
        return []
    above = [
        sa.and_(batch.c.job_id == one, batch.c.id > mark.batch_id) for one, mark in marks.items()
    ]
    lowest = min(mark.batch_id for mark in marks.values())
    query = (
        sa.select(*_BATCH, batch.c.superseded_at, batch_state.c.state, batch_state.c.generation)
        .select_from(batch)
        .join(job)
        .join(batch_state, batch_state.c.batch_id == batch.c.id)
        .where(batch.c.id > lowest, sa.or_(*above))
        .order_by(batch.c.id)
    )
    return connection.execute(query).all()


def _published(
    connection: sa.Connection, job_id: int, after: int, up_to: int
) -> dict[int, sa.Row[*tuple[Any, ...]]]:
    query = (
        sa.select(*_BATCH, attempt.c.generation)
        .select_from(batch)
        .join(job)
        .join(attempt, attempt.c.batch_id == batch.c.id)
        .where(
            job.c.id == job_id,
            attempt.c.publish_number > after,
            attempt.c.publish_number <= up_to,
            attempt.c.status == AttemptStatus.SUCCEEDED,
        )
        .order_by(attempt.c.publish_number)
    )
    return {row.id: row for row in connection.execute(query)}
