"""Changes of batches since the last read: planned, published and waiting. Reads only.

Batch ids are assigned under the job's planning lock and publish numbers under the lock of the job's
row, so within a job both become visible in ascending order. A cursor per job therefore misses
nothing, unlike a cursor across jobs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import sqlalchemy as sa

from batch_pipeline.inventory.batch_states import BATCH_ROW, batch_from_row, select_statuses
from batch_pipeline.inventory.connection import fetch_column, fetch_rows, fetch_value, transaction
from batch_pipeline.inventory.jobs import is_job_of, is_paused
from batch_pipeline.inventory.tables import (
    UNFINISHED,
    attempt,
    attempts_of_jobs,
    batch,
    batch_state,
    batches_with_states,
    is_any_of,
    job,
)
from batch_pipeline.model.batch import WAITING, AttemptStatus, Batch, BatchState, BatchStatus
from batch_pipeline.model.job import OWN_KINDS, JobKind

_PAGE = 1_000
_Row: TypeAlias = sa.Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The position of a reader in a job: its last batch id and publish number."""

    batch_id: int = 0
    publish_number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Batches planned and published since given cursors, in order, with the new `cursors`.

    `planned` has no split batches. `published` includes batches planned earlier, each once.
    `generations` has the newest generation of each published batch by its id.
    """

    planned: Sequence[Batch]
    published: Sequence[Batch]
    generations: Mapping[int, int]
    cursors: Mapping[int, Cursor]


@dataclass(frozen=True, slots=True)
class ChangeFeed:
    """Incremental reads of the batches of all jobs."""

    engine: sa.Engine

    def publish_counts(self, stream: str) -> dict[int, int]:
        """Return the publish count of each job of a stream."""
        query = sa.select(job.c.id, job.c.publish_count).where(job.c.stream == stream)
        return {row.id: row.publish_count for row in fetch_rows(self.engine, query)}

    def published_at(self, stream: str) -> dict[int, datetime]:
        """Return when the newest generation of each batch of a stream was published, by id.

        Backfills are left out. Times are those of the database's clock.
        """
        query = (
            sa.select(attempt.c.batch_id, sa.func.max(attempt.c.finished_at).label("at"))
            .select_from(attempts_of_jobs)
            .where(*_has_published(stream))
            .group_by(attempt.c.batch_id)
        )
        return {row.batch_id: row.at for row in fetch_rows(self.engine, query)}

    def last_published_at(self, stream: str) -> datetime | None:
        """Return when a batch of a stream was last published; backfills are left out."""
        newest = sa.select(sa.func.max(attempt.c.finished_at)).select_from(attempts_of_jobs)
        return fetch_value(self.engine, newest.where(*_has_published(stream)))

    def since(
        self, stream: str, kinds: Sequence[JobKind], cursors: Mapping[int, Cursor]
    ) -> Changes:
        """Read what jobs of some kinds planned and published after their cursors (default: all)."""
        jobs = sa.select(job.c.id, job.c.publish_count).where(is_job_of(stream, *kinds))
        with transaction(self.engine) as connection:
            counts = {row.id: row.publish_count for row in connection.execute(jobs)}
            previous = {job_id: cursors.get(job_id, Cursor()) for job_id in counts}
            planned = _planned(connection, previous)
            new_jobs = {job_id for job_id, cursor in previous.items() if cursor == Cursor()}
            published: dict[int, _Row] = {
                row.id: row
                for row in planned
                if row.job_id in new_jobs and row.generation is not None
            }
            for job_id, count in counts.items():
                after = previous[job_id].publish_number
                if job_id not in new_jobs and count > after:
                    published |= _published(connection, job_id, after, count)
        last_batch_ids = {job_id: cursor.batch_id for job_id, cursor in previous.items()}
        last_batch_ids |= {row.job_id: row.id for row in planned}
        return Changes(
            planned=[batch_from_row(row) for row in planned if row.superseded_at is None],
            published=[batch_from_row(row) for row in published.values()],
            generations={batch_id: row.generation for batch_id, row in published.items()},
            cursors={
                job_id: Cursor(batch_id=last_batch_ids[job_id], publish_number=count)
                for job_id, count in counts.items()
            },
        )

    def due(self, stream: str, kinds: Sequence[JobKind]) -> Iterator[BatchStatus]:
        """Read the planned and interrupted batches of jobs of some kinds, oldest first.

        Leaves out paused jobs. Reads page by page, each in its own transaction.
        """
        after = 0
        while True:
            ids = (
                sa.select(batch_state.c.batch_id)
                .join(job, job.c.id == batch_state.c.job_id)
                .where(
                    is_job_of(stream, *kinds),
                    sa.not_(is_paused()),
                    sa.text(f"batch_state.{UNFINISHED}"),  # as in the partial index
                    batch_state.c.state.in_(sorted(WAITING)),
                    batch_state.c.batch_id > after,
                )
                .order_by(batch_state.c.batch_id)
                .limit(_PAGE)
            )
            with transaction(self.engine) as connection:
                batch_ids = list(connection.execute(ids).scalars())
                is_on_page = is_any_of(batch.c.id, batch_ids)
                statuses = select_statuses(connection, is_on_page, order_by=batch.c.id)
            yield from (status for status in statuses if status.state in WAITING)
            if len(batch_ids) < _PAGE:
                return
            after = batch_ids[-1]

    def recent_runs(self, stream: str) -> list[str]:
        """Return the runs of attempts on a stream's batches that started in the last two minutes.

        Only the newest attempts of the inventory are read.
        """
        newest = sa.select(attempt).order_by(attempt.c.id.desc()).limit(_PAGE).subquery()
        since = sa.func.now() - sa.text("interval '2 minutes'")
        runs = (
            sa.select(newest.c.run_id)
            .distinct()
            .join(batch, batch.c.id == newest.c.batch_id)
            .join(job, job.c.id == batch.c.job_id)
            .where(job.c.stream == stream, newest.c.started_at > since)
        )
        return fetch_column(self.engine, runs)

    def open_backfills(self, stream: str) -> list[str]:
        """Return the names of a stream's backfills that have unfinished batches."""
        waits = sa.exists().where(
            batch_state.c.job_id == job.c.id,
            sa.text(f"batch_state.{UNFINISHED}"),
            batch_state.c.state != BatchState.DEAD,
        )
        runs = sa.exists().where(
            batch_state.c.job_id == job.c.id,
            batch_state.c.state == sa.literal_column(f"'{BatchState.RUNNING}'"),
        )
        is_open = sa.and_(is_job_of(stream, JobKind.BACKFILL), sa.or_(waits, runs))
        return fetch_column(self.engine, sa.select(job.c.name).where(is_open).order_by(job.c.id))


def _has_published(stream: str) -> tuple[sa.ColumnElement[bool], ...]:
    return is_job_of(stream, *OWN_KINDS), attempt.c.status == AttemptStatus.SUCCEEDED


def _planned(connection: sa.Connection, cursors: Mapping[int, Cursor]) -> Sequence[_Row]:
    if not cursors:
        return []
    above = [
        sa.and_(batch.c.job_id == job_id, batch.c.id > cursor.batch_id)
        for job_id, cursor in cursors.items()
    ]
    lowest = min(cursor.batch_id for cursor in cursors.values())
    query = (
        sa.select(*BATCH_ROW, batch_state.c.generation)
        .select_from(batches_with_states)
        .where(batch.c.id > lowest, sa.or_(*above))
        .order_by(batch.c.id)
    )
    return connection.execute(query).all()


def _published(connection: sa.Connection, job_id: int, after: int, up_to: int) -> dict[int, _Row]:
    query = (
        sa.select(*BATCH_ROW, attempt.c.generation)
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
