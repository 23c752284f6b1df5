"""Planned batches: cutting all new ones of a job, and finding old ones."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.backfill import Estimate
from batch_pipeline.domain.batch import Batch, BatchState, BatchStatus
from batch_pipeline.domain.errors import (
    BatchSupersededError,
    InvalidValueError,
    JobPausedError,
    UnknownBatchError,
)
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.job import JobKind, JobTerms
from batch_pipeline.domain.partition_key import parse_partition_key
from batch_pipeline.domain.planning import Cut, Limits, Planned
from batch_pipeline.inventory.jobs.bookmarks import EVERYWHERE, Gap, advance, gaps, highest_planned
from batch_pipeline.inventory.jobs.jobs import of_stream, open_job
from batch_pipeline.inventory.jobs.paces import estimate, pace
from batch_pipeline.inventory.locks import lock_planning
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import attempt, batch, batch_state, job
from batch_pipeline.inventory.upkeep.migrate import check_still
from batch_pipeline.inventory.work import batch_states
from batch_pipeline.inventory.work.batch_rows import BATCH_ROW, batch_of, parts_of
from batch_pipeline.ports import MetaTable

_COPY = (
    "COPY batch_pipeline.batch "
    "(job_id, first_id, last_id, weight, item_count, oversized, config, item_ids, "
    "id_runs) FROM STDIN"
)


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """The batches of all jobs."""

    engine: sa.Engine

    def plan(self, table: MetaTable, limits: Limits, *, drain: bool) -> Planned:
        """Cut all items above the bookmark of a stream's job in one pass and one transaction.

        Holds the job's planning lock; a rival waits for it and then finds the rest.

        Raises:
            JobPausedError: the job is paused.
            JobChangedError, StreamMovedError: it was planned with another filter, other columns,
                another table or another database.
            MetaTableRestartedError: the table's ids start again.
        """
        terms = JobTerms(
            name=table.stream,
            meta_table=table.name,
            stream=table.stream,
            where=table.where,
            identity=table.identity,
        )
        with transaction(self.engine) as connection:
            check_still(connection)
            one = open_job(connection, terms)
            if one.paused is not None:
                raise JobPausedError(one.name, one.paused)
            lock_planning(connection, one.id)
            failpoint("plan.locked")
            ceiling = table.ceiling()
            planned = Planned()
            writing = Writing(job_id=one.id, limits=limits, config=limits.config())
            for gap in gaps(connection, one.id):
                if ceiling is None or ceiling < gap.ids.first_id:
                    break
                cuts = table.cuts(gap.after_id, min(ceiling, gap.ids.last_id), limits)
                if not drain and _is_young(table, gap, limits):
                    cuts = _without_short_tail(cuts, limits)
                planned = planned.and_then(insert_cuts(connection, writing, gap, cuts))
            if planned.ids is None:
                planned_up_to = highest_planned(connection, one.id, EVERYWHERE)
                if planned_up_to is not None:
                    table.check_not_restarted(planned_up_to)
            failpoint("plan.before_commit")
        failpoint("plan.after_commit")
        return planned

    def estimate(self, table: MetaTable, limits: Limits) -> Estimate:
        """Tell what draining `plan`s would make, and how long one worker would take for it.

        All is cut by the limits of now. Nothing is written or locked. The pace is the one of the
        stream's job.
        """
        with transaction(self.engine) as connection:
            query = sa.select(job.c.id).where(of_stream(table.stream))
            # Nothing is planned of a job that is not there, as of job 0, which there never is.
            job_id = connection.execute(query).scalar_one_or_none() or 0
            known = pace(connection, job.c.id == job_id)
            ceiling, found = table.ceiling(), list(gaps(connection, job_id))
        cuts = (
            table.cuts(gap.after_id, min(ceiling, gap.ids.last_id), limits)
            for gap in found
            if ceiling is not None and gap.ids.first_id <= ceiling
        )
        return estimate(chain.from_iterable(cuts), limits, known)

    def batch(self, stream: str, key: str) -> Batch:
        """Find a planned batch of a stream by its partition key.

        Raises:
            BatchSupersededError: it was split; the message names what took its place.
        """
        try:
            id_range = parse_partition_key(key)
        except InvalidValueError as error:
            raise UnknownBatchError(stream, key) from error
        query = _live(stream).where(
            batch.c.first_id == id_range.first_id, batch.c.last_id == id_range.last_id
        )
        found = self._one(query)
        if found is not None:
            return found
        with transaction(self.engine) as connection:
            parts = parts_of(connection, of_stream(stream), id_range)
        if parts:
            raise BatchSupersededError(stream, key, tuple(one.key for one in parts))
        raise UnknownBatchError(stream, key)

    def batch_of_item(self, stream: str, item_id: int) -> Batch | None:
        """Find the batch of a stream that has an item: a late one's list, or a range."""
        late = (
            sa.select(*BATCH_ROW)
            .join(job)
            .where(
                job.c.stream == stream,
                job.c.kind == JobKind.LATE,
                batch.c.superseded_at.is_(None),
                batch.c.first_id <= item_id,
                batch.c.last_id >= item_id,
                sa.literal(item_id, sa.BigInteger) == sa.any_(batch.c.item_ids),
            )
        )
        return self._one(late) or self._one(
            _live(stream)
            .where(batch.c.first_id <= item_id, batch.c.last_id >= item_id)
            .order_by(batch.c.first_id.desc())
            .limit(1)
        )

    def statuses(self, stream: str, within: IdRange = EVERYWHERE) -> list[BatchStatus]:
        """Read all batches of a stream in id order, each with the facts of its latest attempt."""
        query = status_query().where(
            of_stream(stream),
            batch.c.first_id >= within.first_id,
            batch.c.last_id <= within.last_id,
        )
        with transaction(self.engine) as connection:
            return [status_of(row) for row in connection.execute(query)]

    def status(self, one: Batch) -> BatchStatus:
        """Read the status of a batch."""
        with transaction(self.engine) as connection:
            query = status_query().where(batch.c.id == one.id)
            return status_of(connection.execute(query).one())

    def late_statuses(self, stream: str) -> list[BatchStatus]:
        """Read the batches of a stream's late arrivals that were not split, in id order."""
        query = status_query().where(
            job.c.stream == stream,
            job.c.kind == JobKind.LATE,
            batch.c.superseded_at.is_(None),
        )
        with transaction(self.engine) as connection:
            return [status_of(row) for row in connection.execute(query)]

    def backlog(self, table: MetaTable) -> tuple[int, int]:
        """Count a stream's items above the bookmark and their weight in bytes."""
        query = sa.select(job.c.id).where(of_stream(table.stream))
        with transaction(self.engine) as connection:
            job_id = connection.execute(query).scalar_one_or_none()
            planned = None if job_id is None else highest_planned(connection, job_id, EVERYWHERE)
        return table.backlog(planned)

    def _one(self, query: sa.Select[Any]) -> Batch | None:
        with transaction(self.engine) as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else batch_of(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """The job that batches are written for, and what is kept with each of them."""

    job_id: int
    limits: Limits
    config: Mapping[str, Any]


def insert_cuts(
    connection: sa.Connection, writing: Writing, gap: Gap, cuts: Iterable[Cut]
) -> Planned:
    """Write cuts of a gap as batches and move the bookmark; memory is constant.

    The caller holds the planning lock.
    """
    planned = insert_batches(connection, writing, ((one, None) for one in cuts))
    if planned.ids is not None:
        advance(connection, writing.job_id, gap, planned.ids.last_id)
    return planned


def insert_batches(
    connection: sa.Connection,
    writing: Writing,
    batches: Iterable[tuple[Cut, Sequence[int] | None]],
) -> Planned:
    """Write batches, each with its list of ids or None for all of its range.

    Memory is one batch. The caller holds the planning lock; bookmarks are its business.
    """
    job_id, most_weight = writing.job_id, writing.limits.max_weight
    highest = sa.select(sa.func.coalesce(sa.func.max(batch.c.id), 0)).where(
        batch.c.job_id == job_id
    )
    after_batch_id = connection.execute(highest).scalar_one()
    planned = Planned()
    raw = connection.connection.driver_connection
    assert raw is not None  # noqa: S101 - the connection is open
    written = json.dumps(dict(writing.config))
    with raw.cursor() as cursor, cursor.copy(_COPY) as rows:
        for one, item_ids in batches:
            ids, oversized = one.id_range, one.weight > most_weight
            facts = (ids.first_id, ids.last_id, one.weight, one.count, oversized, written)
            listed = None if item_ids is None else list(item_ids)
            runs = None if one.runs is None else [one.runs.firsts, one.runs.lasts]
            rows.write_row((job_id, *facts, listed, runs))
            planned = planned.with_cut(one)
    if planned.batches:
        batch_states.planned(connection, job_id, after_batch_id)
    return planned


def _is_young(table: MetaTable, gap: Gap, limits: Limits) -> bool:
    """Tell whether even the oldest unplanned item has not waited for `max_wait` yet."""
    if limits.min_weight == 0:
        return False
    waited = table.waited(gap.after_id)
    return waited is not None and waited < limits.max_wait


def _without_short_tail(cuts: Iterable[Cut], limits: Limits) -> Iterator[Cut]:
    for one in cuts:
        if one.closed or one.weight >= limits.min_weight:
            yield one


def _live(stream: str) -> sa.Select[Any]:
    return (
        sa.select(*BATCH_ROW)
        .join(job)
        .where(of_stream(stream), batch.c.superseded_at.is_(None), batch.c.item_ids.is_(None))
    )


def status_query() -> sa.Select[Any]:
    """Give the query of batches in id order, each with the facts of its latest attempt."""
    return (
        sa.select(
            *BATCH_ROW,
            batch_state.c.state,
            batch_state.c.attempts,
            batch_state.c.generation,
            attempt.c.error,
            attempt.c.finished_at,
        )
        .select_from(batch)
        .join(job, job.c.id == batch.c.job_id)
        .join(batch_state, batch_state.c.batch_id == batch.c.id)
        .outerjoin(
            attempt,
            sa.and_(attempt.c.batch_id == batch.c.id, attempt.c.number == batch_state.c.attempts),
        )
        .order_by(batch.c.first_id, batch.c.id)
    )


def status_of(row: sa.Row[Any]) -> BatchStatus:
    """Build a status from a row of `status_query`."""
    return BatchStatus(
        batch=batch_of(row),
        state=BatchState(row.state),
        attempts=row.attempts,
        generation=row.generation,
        error=row.error,
        finished_at=row.finished_at,
    )
