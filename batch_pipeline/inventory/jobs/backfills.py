"""Backfills: jobs over a part of the past, planned at once and never beyond what was asked.

A window of ids becomes ranges that tile it. Times, lists and failed batches become lists of ids:
8 bytes an item buy that a batch holds exactly the rows that were chosen when it was planned,
whoever reads it and whatever becomes of the columns it was chosen by.
"""

from dataclasses import dataclass
from itertools import chain

import sqlalchemy as sa

from batch_pipeline.domain.backfill import (
    Backfill,
    Estimate,
    Progress,
    backfill_job,
    cut_lists,
)
from batch_pipeline.domain.backfill_key import backfill_key, parse_backfill_key
from batch_pipeline.domain.batch import Batch, BatchStatus
from batch_pipeline.domain.errors import (
    BatchSupersededError,
    InvalidValueError,
    UnknownBatchError,
)
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.job import JobKind, JobTerms
from batch_pipeline.domain.planning import Planned
from batch_pipeline.inventory.jobs import progress
from batch_pipeline.inventory.jobs.backfill_items import Chosen, choose
from batch_pipeline.inventory.jobs.backfill_sources import Past, past_of
from batch_pipeline.inventory.jobs.item_lists import insert_lists
from batch_pipeline.inventory.jobs.jobs import (
    held,
    is_of_stream,
    job_id_of,
    known_job,
    of_stream,
    open_job,
    own_job,
)
from batch_pipeline.inventory.jobs.paces import estimate, pace
from batch_pipeline.inventory.locks import lock_planning
from batch_pipeline.inventory.meta.meta_source import MetaSource
from batch_pipeline.inventory.meta.meta_table import OwnMetaTable
from batch_pipeline.inventory.meta.user_meta_table import UserMetaTable
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import batch, job
from batch_pipeline.inventory.upkeep.migrate import check_still
from batch_pipeline.inventory.work.batch_rows import BATCH_ROW, batch_of, parts_of
from batch_pipeline.inventory.work.batches import Writing, insert_cuts, status_of, status_query

Source = OwnMetaTable | UserMetaTable | MetaSource


@dataclass(frozen=True, slots=True)
class Backfills:
    """The backfills of all jobs: planned in one transaction, visible when complete."""

    engine: sa.Engine

    def plan(self, request: Backfill, source: Source) -> Planned:
        """Plan a backfill up to the ceiling; of one that is there, what is not planned yet.

        Holds the planning lock of the backfill's own job: its parent goes on meanwhile. When there
        is nothing to plan, a new job is not made.

        Raises:
            JobChangedError: the name is taken by other work, or the backfill was planned otherwise.
            UnknownItemsError: an item that was named is not there.
            UnknownJobError: there is no such parent.
        """
        past = past_of(source)
        terms = request.terms(past.name, past.where, past.identity)
        self._make_parent(request, past)
        with transaction(self.engine) as connection:
            check_still(connection)
            is_new = known_job(connection, terms) is None
            parent_id = _parent_id(connection, request, past)
            one = open_job(connection, terms, parent_id=parent_id)
            lock_planning(connection, one.id)
            failpoint("backfill.locked")
            chosen = choose(connection, request, past, job_id=one.id, parent_id=parent_id)
            config = {**request.limits.config(), "selection": request.selection.to_json()}
            writing = Writing(job_id=one.id, limits=request.limits, config=config)
            planned = _write(connection, writing, chosen, in_lists=not request.selection.is_window)
            if is_new and not planned.batches:
                connection.rollback()
            failpoint("backfill.before_commit")
        failpoint("backfill.after_commit")
        return planned

    def estimate(self, request: Backfill, source: Source) -> Estimate:
        """Tell what `plan` would make and how long it would take; nothing is written or locked.

        The pace is the backfill's own, else its parent's, else that of any job of the stream.

        Raises:
            JobChangedError, UnknownItemsError, UnknownJobError: as `plan`.
        """
        past = past_of(source)
        with transaction(self.engine) as connection:
            job_id = known_job(connection, request.terms(past.name, past.where, past.identity))
            parent_id = _parent_id(connection, request, past)
            known = pace(connection, job.c.id == job_id, *_kin(request, parent_id))
            chosen = choose(connection, request, past, job_id=job_id, parent_id=parent_id)
        lists = (one for one, _ in cut_lists(chosen.items, request.limits))
        return estimate(chain(*(cuts for _, cuts in chosen.ranges), lists), request.limits, known)

    def statuses(self, name: str, meta_table: str) -> list[BatchStatus]:
        """Read the batches of a backfill in id order, without those that were split.

        Raises:
            UnknownJobError: there is no such job.
        """
        with transaction(self.engine) as connection:
            job_id = job_id_of(connection, name, meta_table)
            query = status_query().where(job.c.id == job_id, batch.c.superseded_at.is_(None))
            return [status_of(row) for row in connection.execute(query)]

    def of_all(self, stream: str) -> list[BatchStatus]:
        """Read the batches of all backfills of a stream, without those that were split.

        They come in the order in which they were planned.
        """
        query = status_query().where(_of_backfills(stream), batch.c.superseded_at.is_(None))
        with transaction(self.engine) as connection:
            rows = connection.execute(query.order_by(None).order_by(batch.c.id))
            return [status_of(row) for row in rows]

    def of_item(self, stream: str, item_id: int) -> list[BatchStatus]:
        """Read the batches of a stream's backfills that have an item, oldest first."""
        listed = sa.literal(item_id, sa.BigInteger) == sa.any_(batch.c.item_ids)
        query = status_query().where(
            _of_backfills(stream),
            batch.c.superseded_at.is_(None),
            batch.c.first_id <= item_id,
            batch.c.last_id >= item_id,
            sa.or_(batch.c.item_ids.is_(None), listed),
        )
        with transaction(self.engine) as connection:
            rows = connection.execute(query.order_by(None).order_by(batch.c.id))
            return [status_of(row) for row in rows]

    def paused(self, stream: str) -> dict[str, str]:
        """Return the paused backfills of a stream, each with the reason, maybe empty.

        A paused stream pauses its backfills.
        """
        of_stream = sa.select(own_job.c.paused_reason).where(is_of_stream).scalar_subquery()
        own = (job.c.paused_at.is_not(None), job.c.paused_reason)
        reason = sa.func.coalesce(sa.case(own, else_=of_stream), "").label("reason")
        query = sa.select(job.c.name, reason).where(_of_backfills(stream), held())
        with transaction(self.engine) as connection:
            rows = connection.execute(query.order_by(job.c.id))
            return {row.name: row.reason for row in rows}

    def batch(self, stream: str, key: str) -> Batch:
        """Find a planned batch of a stream's backfill by its partition key.

        Raises:
            UnknownBatchError: there is none.
            BatchSupersededError: it was split; the message names what took its place.
        """
        try:
            name, ids = parse_backfill_key(key)
        except InvalidValueError as error:
            raise UnknownBatchError(stream, key) from error
        mine = sa.and_(_of_backfills(stream), job.c.name == backfill_job(stream, name))
        query = (
            sa.select(*BATCH_ROW)
            .join(job)
            .where(
                mine,
                batch.c.superseded_at.is_(None),
                batch.c.first_id == ids.first_id,
                batch.c.last_id == ids.last_id,
            )
            .order_by(batch.c.id.desc())
            .limit(1)
        )
        with transaction(self.engine) as connection:
            row = connection.execute(query).one_or_none()
            if row is not None:
                return batch_of(row)
            parts = parts_of(connection, mine, ids)
        if parts:
            keys = tuple(backfill_key(name, one.id_range) for one in parts)
            raise BatchSupersededError(stream, key, keys)
        raise UnknownBatchError(stream, key)

    def progress(self, name: str, meta_table: str) -> Progress:
        """Tell how far a backfill is.

        Raises:
            UnknownJobError: there is no such job.
        """
        with transaction(self.engine) as connection:
            job_id = job_id_of(connection, name, meta_table)
            return progress.of_jobs(connection, job.c.id == job_id)[0]

    def of_stream(self, stream: str) -> list[Progress]:
        """Tell how far each backfill of a stream is, in the order in which they were planned."""
        with transaction(self.engine) as connection:
            return progress.of_jobs(connection, _of_backfills(stream))

    def _make_parent(self, request: Backfill, past: Past) -> None:
        """Make the job of a stream that was never planned; in a transaction of its own, since the
        row of a new job keeps others from making it until the end.
        """
        if request.stream is None:
            return
        with transaction(self.engine) as connection:
            if _parent_id(connection, request, past) is None:
                open_job(
                    connection,
                    JobTerms(
                        name=request.stream,
                        meta_table=past.name,
                        stream=request.stream,
                        where=past.where,
                        identity=past.identity,
                    ),
                )


def _of_backfills(stream: str) -> sa.ColumnElement[bool]:
    return sa.and_(job.c.stream == stream, job.c.kind == JobKind.BACKFILL)


def _kin(request: Backfill, parent_id: int | None) -> list[sa.ColumnElement[bool]]:
    """Pick the jobs whose past tells something of a backfill that has none: nearest first."""
    kin = []
    if parent_id is not None:
        kin += [job.c.id == parent_id, job.c.parent_id == parent_id]
    if request.stream is not None:
        kin.append(job.c.stream == request.stream)
    return kin


def _parent_id(connection: sa.Connection, request: Backfill, past: Past) -> int | None:
    if request.stream is not None:
        query = sa.select(job.c.id).where(of_stream(request.stream))
        found: int | None = connection.execute(query).scalar_one_or_none()
        return found
    if request.parent is not None:
        return job_id_of(connection, request.parent, past.name)
    if request.selection.failed_only:
        raise InvalidValueError(
            "parent", None, "the name of the job whose failed batches are meant"
        )
    return None


def _write(
    connection: sa.Connection, writing: Writing, chosen: Chosen, *, in_lists: bool
) -> Planned:
    if in_lists:
        return insert_lists(connection, writing, chosen.items)
    planned = Planned()
    for gap, cuts in chosen.ranges:
        planned = planned.and_then(insert_cuts(connection, writing, gap, cuts))
    return planned
