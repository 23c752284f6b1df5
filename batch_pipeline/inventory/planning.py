"""Plan batches: cut the new items of a job into id ranges, or given items into lists of ids.

Also reads planned batches with the status of their latest attempt, and the throughput of jobs.
"""

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory import batch_states
from batch_pipeline.inventory.batch_states import BATCH_ROW, batch_from_row, live_parts
from batch_pipeline.inventory.connection import lock_planning, transaction
from batch_pipeline.inventory.jobs import (
    ALL_IDS,
    Gap,
    advance,
    gaps,
    highest_planned,
    of_stream,
    open_job,
    stream_bookmark,
    stream_job_id,
)
from batch_pipeline.inventory.meta_tables.registered_table import OwnMetaTable
from batch_pipeline.inventory.meta_tables.user_table import UserMetaTable
from batch_pipeline.inventory.migrate import ensure_revision_unchanged
from batch_pipeline.inventory.tables import attempt, batch, job
from batch_pipeline.model.backfill import Estimate, Throughput, cut_lists
from batch_pipeline.model.batch import (
    AttemptStatus,
    Batch,
    BatchStatus,
    late_key,
    parse_late_key,
    parse_partition_key,
)
from batch_pipeline.model.errors import (
    BatchSupersededError,
    InvalidValueError,
    JobPausedError,
    UnknownBatchError,
)
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.job import JobKind, JobTerms
from batch_pipeline.model.planning import Cut, Limits, Planned

_STREAM_ROWS = 10_000
_COPY = (
    "COPY batch_pipeline.batch "
    "(job_id, first_id, last_id, weight, item_count, oversized, config, item_ids, "
    "id_runs) FROM STDIN"
)


MetaTable = OwnMetaTable | UserMetaTable


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """The batches of all jobs."""

    engine: sa.Engine

    def plan(self, table: MetaTable, limits: Limits, *, drain: bool) -> Planned:
        """Cut all items above the bookmark of a stream's job in one pass and one transaction.

        Holds the job's planning lock; a concurrent call waits for it.

        Raises:
            JobPausedError: the job is paused.
            JobChangedError, MetaTableError: the job was planned with another filter, other columns,
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
            ensure_revision_unchanged(connection)
            job_row = open_job(connection, terms)
            if job_row.paused is not None:
                raise JobPausedError(job_row.name, job_row.paused)
            lock_planning(connection, job_row.id)
            failpoint("plan.locked")
            high_watermark = table.high_watermark()
            planned = Planned()
            job_plan = JobPlan(job_id=job_row.id, limits=limits, config=limits.config())
            for gap in gaps(connection, job_row.id):
                if high_watermark is None or high_watermark < gap.ids.first_id:
                    break
                cuts = table.cuts(gap.after_id, min(high_watermark, gap.ids.last_id), limits)
                if not drain and _is_too_young(table, gap, limits):
                    cuts = _without_short_tail(cuts, limits)
                planned = planned.followed_by(insert_cuts(connection, job_plan, gap, cuts))
            if planned.ids is None:
                planned_up_to = highest_planned(connection, job_row.id, ALL_IDS)
                if planned_up_to is not None:
                    table.check_not_restarted(planned_up_to)
            failpoint("plan.before_commit")
        failpoint("plan.after_commit")
        return planned

    def estimate(self, table: MetaTable, limits: Limits) -> Estimate:
        """Estimate the batches that `plan` with `drain` would plan, and the time for one worker.

        Nothing is written or locked. The throughput is that of the stream's job.
        """
        with transaction(self.engine) as connection:
            # Without a job, job 0 stands for it: it never exists, so it has planned nothing.
            job_id = stream_job_id(connection, table.stream) or 0
            throughput = recent_throughput(connection, job.c.id == job_id)
            high_watermark, job_gaps = table.high_watermark(), list(gaps(connection, job_id))
        cuts = (
            table.cuts(gap.after_id, min(high_watermark, gap.ids.last_id), limits)
            for gap in job_gaps
            if high_watermark is not None and gap.ids.first_id <= high_watermark
        )
        return estimate(chain.from_iterable(cuts), limits, throughput)

    def batch(self, stream: str, key: str) -> Batch:
        """Find a planned batch of a stream by its partition key.

        Raises:
            UnknownBatchError: there is no such batch.
            BatchSupersededError: the batch was split; the message names its parts.
        """
        batch_id = parse_late_key(key)
        if batch_id is not None:
            return self._late_batch(stream, key, batch_id)
        try:
            id_range = parse_partition_key(key)
        except InvalidValueError as error:
            raise UnknownBatchError.of_partition(stream, key) from error
        query = _live_ranges(stream).where(
            batch.c.first_id == id_range.first_id, batch.c.last_id == id_range.last_id
        )
        live_batch = self._one(query)
        if live_batch is not None:
            return live_batch
        with transaction(self.engine) as connection:
            parts = live_parts(connection, of_stream(stream), id_range)
        if parts:
            raise BatchSupersededError(stream, key, tuple(part.key for part in parts))
        raise UnknownBatchError.of_partition(stream, key)

    def _late_batch(self, stream: str, key: str, batch_id: int) -> Batch:
        condition = sa.and_(_is_late(stream), batch.c.id >= batch_id)
        query = sa.select(*BATCH_ROW).join(job).where(condition, batch.c.id == batch_id)
        with transaction(self.engine) as connection:
            row = connection.execute(query).one_or_none()
            if row is None:
                raise UnknownBatchError.of_partition(stream, key)
            if row.superseded_at is None:
                return batch_from_row(row)
            parts = live_parts(connection, condition, batch_from_row(row).id_range)
        raise BatchSupersededError(stream, key, tuple(late_key(part.id) for part in parts))

    def batch_of_item(self, stream: str, item_id: int) -> Batch | None:
        """Find the batch of a stream that contains an item: a list of late items, or a range."""
        late = (
            sa.select(*BATCH_ROW)
            .join(job)
            .where(
                _is_late(stream),
                batch.c.superseded_at.is_(None),
                batch.c.first_id <= item_id,
                batch.c.last_id >= item_id,
                sa.literal(item_id, sa.BigInteger) == sa.any_(batch.c.item_ids),
            )
        )
        return self._one(late) or self._one(
            _live_ranges(stream)
            .where(batch.c.first_id <= item_id, batch.c.last_id >= item_id)
            .order_by(batch.c.first_id.desc())
            .limit(1)
        )

    def statuses(self, stream: str, within: IdRange = ALL_IDS) -> list[BatchStatus]:
        """Read all batches of a stream in id order, each with its latest attempt."""
        is_within = (batch.c.first_id >= within.first_id, batch.c.last_id <= within.last_id)
        return batch_states.read_statuses(self.engine, of_stream(stream), *is_within)

    def status(self, planned_batch: Batch) -> BatchStatus:
        """Read the status of a batch."""
        [status] = batch_states.read_statuses(self.engine, batch.c.id == planned_batch.id)
        return status

    def late_statuses(self, stream: str) -> list[BatchStatus]:
        """Read the unsplit batches of a stream's late arrivals, in id order."""
        is_live = batch.c.superseded_at.is_(None)
        return batch_states.read_statuses(self.engine, _is_late(stream), is_live)

    def backlog(self, table: MetaTable) -> tuple[int, int]:
        """Count a stream's items above the bookmark and their weight in bytes."""
        with transaction(self.engine) as connection:
            planned = stream_bookmark(connection, table.stream)
        return table.backlog(planned)

    def _one(self, query: sa.Select[Any]) -> Batch | None:
        with transaction(self.engine) as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else batch_from_row(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The job that batches are inserted for, with their limits and stored configuration."""

    job_id: int
    limits: Limits
    config: Mapping[str, Any]


def insert_cuts(connection: sa.Connection, plan: JobPlan, gap: Gap, cuts: Iterable[Cut]) -> Planned:
    """Insert the cuts of a gap as batches and advance the bookmark, in constant memory.

    The caller must hold the planning lock.
    """
    planned = insert_batches(connection, plan, ((cut, None) for cut in cuts))
    if planned.ids is not None:
        advance(connection, plan.job_id, gap, planned.ids.last_id)
    return planned


def insert_batches(
    connection: sa.Connection,
    plan: JobPlan,
    batches: Iterable[tuple[Cut, Sequence[int] | None]],
) -> Planned:
    """Insert batches, each with its list of ids, or None for its whole range.

    Holds one batch in memory. The caller must hold the planning lock and advance the bookmark.
    """
    job_id, max_weight = plan.job_id, plan.limits.max_weight
    highest = sa.select(sa.func.coalesce(sa.func.max(batch.c.id), 0)).where(
        batch.c.job_id == job_id
    )
    after_batch_id = connection.execute(highest).scalar_one()
    planned = Planned()
    raw = connection.connection.driver_connection
    assert raw is not None  # noqa: S101 - the connection is open
    config = json.dumps(dict(plan.config))
    with raw.cursor() as cursor, cursor.copy(_COPY) as copy:
        for cut, item_ids in batches:
            ids, oversized = cut.id_range, cut.weight > max_weight
            values = (ids.first_id, ids.last_id, cut.weight, cut.count, oversized, config)
            listed = None if item_ids is None else list(item_ids)
            runs = None if cut.runs is None else [cut.runs.firsts, cut.runs.lasts]
            copy.write_row((job_id, *values, listed, runs))
            planned = planned.plus_cut(cut)
    if planned.batches:
        batch_states.insert_planned_states(connection, job_id, after_batch_id)
    return planned


def _is_too_young(table: MetaTable, gap: Gap, limits: Limits) -> bool:
    """Return whether the oldest unplanned item has waited for less than `max_wait`."""
    if limits.min_weight == 0:
        return False
    waited = table.oldest_age(gap.after_id)
    return waited is not None and waited < limits.max_wait


def _without_short_tail(cuts: Iterable[Cut], limits: Limits) -> Iterator[Cut]:
    for cut in cuts:
        if cut.closed or cut.weight >= limits.min_weight:
            yield cut


def _is_late(stream: str) -> sa.ColumnElement[bool]:
    return sa.and_(job.c.stream == stream, job.c.kind == JobKind.LATE)


def _live_ranges(stream: str) -> sa.Select[Any]:
    return (
        sa.select(*BATCH_ROW)
        .join(job)
        .where(of_stream(stream), batch.c.superseded_at.is_(None), batch.c.item_ids.is_(None))
    )


def insert_lists(
    connection: sa.Connection, plan: JobPlan, weighed_ids: Iterable[tuple[int, int]]
) -> Planned:
    """Cut `(id, weight)` pairs in ascending order into lists and insert them as batches.

    Holds one batch in memory. The caller must hold the planning lock.
    """
    return insert_batches(connection, plan, cut_lists(weighed_ids, plan.limits))


def exclude_listed(
    engine: sa.Engine, job_id: int | None, weighed_ids: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the pairs whose ids no committed list of a job contains, streaming both in id order."""
    with closing(_listed_ids(engine, job_id)) as listed:
        known = next(listed, None)
        for item_id, weight in weighed_ids:
            while known is not None and known < item_id:
                known = next(listed, None)
            if known != item_id:
                yield item_id, weight


def _listed_ids(engine: sa.Engine, job_id: int | None) -> Generator[int, None, None]:
    if job_id is None:
        return
    item_id = sa.func.unnest(batch.c.item_ids).label("item_id")
    query = (
        sa.select(item_id)
        .where(
            batch.c.job_id == job_id,
            batch.c.superseded_at.is_(None),
            batch.c.item_ids.is_not(None),
        )
        .order_by(item_id)
        .execution_options(yield_per=_STREAM_ROWS)
    )
    with transaction(engine) as connection, connection.execute(query) as result:
        yield from result.scalars()


LAST_ATTEMPTS = 50


def recent_throughput(
    connection: sa.Connection, *candidates: sa.ColumnElement[bool]
) -> Throughput | None:
    """Return the throughput of the first candidate with a successful attempt, None without any.

    Each candidate is a condition on jobs; their newest 50 attempts count.
    """
    for condition in candidates:
        seconds = sa.extract("epoch", attempt.c.finished_at - attempt.c.started_at)
        query = (
            sa.select(sa.cast(seconds, sa.Double).label("seconds"), batch.c.weight, job.c.name)
            .select_from(attempt)
            .join(batch, batch.c.id == attempt.c.batch_id)
            .join(job, job.c.id == batch.c.job_id)
            .where(condition, attempt.c.status == AttemptStatus.SUCCEEDED)
            .order_by(attempt.c.id.desc())
            .limit(LAST_ATTEMPTS)
        )
        rows = connection.execute(query).all()
        if rows:
            speeds = [row.weight / row.seconds for row in rows if row.seconds > 0]
            speed = median(speeds) if speeds else 0.0
            return Throughput(
                job=rows[0].name,
                attempts=len(rows),
                seconds_per_batch=median(row.seconds for row in rows),
                weight_per_second=speed or None,
            )
    return None


def estimate(cuts: Iterable[Cut], limits: Limits, throughput: Throughput | None) -> Estimate:
    """Sum up cuts as an estimate, in constant memory."""
    batches = items = weight = oversized = 0
    for cut in cuts:
        batches += 1
        items += cut.count
        weight += cut.weight
        oversized += cut.weight > limits.max_weight
    return Estimate(
        batches=batches, items=items, weight=weight, oversized=oversized, pace=throughput
    )
