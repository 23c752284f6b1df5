"""Backfills: select the items, plan them as id ranges or lists of ids, and report progress.

Their sources yield `(id, weight)` pairs in ascending order, each over a connection of its own.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter

import sqlalchemy as sa

from batch_pipeline.inventory.batch_states import planned_ids, read_statuses, select_statuses
from batch_pipeline.inventory.connection import fetch_rows, lock_planning, transaction
from batch_pipeline.inventory.jobs import (
    find_job_id,
    is_job_of,
    is_own_stream_job,
    is_paused,
    job_id_of,
    open_job,
    stream_job,
    stream_job_id,
)
from batch_pipeline.inventory.meta_tables.reflected_table import (
    ReflectedMetaTable,
    all_cuts,
    cuts_with_keys,
    ensure_ids_not_negative,
)
from batch_pipeline.inventory.meta_tables.sources import MetaSource, StreamTable
from batch_pipeline.inventory.meta_tables.watermarks import describe_reading
from batch_pipeline.inventory.migrate import ensure_revision_unchanged
from batch_pipeline.inventory.planning import (
    CutRange,
    estimate,
    insert_batches,
    insert_ranges,
    recent_throughput,
    stream_terms,
    unplanned_ranges,
)
from batch_pipeline.inventory.status import job_progress
from batch_pipeline.inventory.tables import batch, batch_state, batches_with_states, job
from batch_pipeline.model.backfill import Backfill, Estimate, Progress, Selection, cut_lists
from batch_pipeline.model.batch import MIN_ID, BatchState, BatchStatus, IdRange, IdRuns
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError, unfit_column
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.filter import AllOf, Condition, Filter, Operator
from batch_pipeline.model.job import JobKind, JobTerms
from batch_pipeline.model.planning import Cut, Limits, Planned

_CHUNK = 1_000
_STREAM_ROWS = 10_000
Source = StreamTable | MetaSource
WeighedIds = Iterator[tuple[int, int]]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BackfillSource:
    """The filtered items of a meta table; `time_column` is the default for selections.

    With `has_keys`, the ids must be valid in partition keys.
    """

    source: MetaSource
    time_column: str | None = None
    has_keys: bool = False

    @classmethod
    def of(cls, table: Source) -> "BackfillSource":
        """Open the source of a stream's table, or of a table of the library."""
        if isinstance(table, StreamTable):
            return cls(table.source, table.time_column, has_keys=True)
        return cls(table)

    @property
    def table(self) -> ReflectedMetaTable:
        """The table that is read."""
        return self.source.table

    def cuts(self, after_id: int | None, last_id: int, limits: Limits) -> Iterator[Cut]:
        """Cut all items above `after_id` (None: from the first row) up to `last_id`."""
        cut = cuts_with_keys if self.has_keys else all_cuts
        return cut(self.table, after_id, last_id, limits)

    def chosen(self, ids: IdRange, selection: Selection) -> WeighedIds:
        """Return the items of a range whose time column is within the selection's times.

        A column without a time zone is in UTC. NULL never matches.

        Raises:
            InvalidValueError: no time column is named.
            MetaTableError: the time column does not exist or has another type, or an id is
                negative where ids must be valid in partition keys.
        """
        table = self.table
        if self.has_keys:
            ensure_ids_not_negative(table)
        if selection.has_times:
            table = _filtered(table, *_times(table, selection, self.time_column))
        return table.weights(ids.first_id - 1, ids.last_id)

    def listed(self, ids: Sequence[int]) -> WeighedIds:
        """Yield the existing items of an ascending list of ids.

        Raises:
            MetaTableError: an id is negative where ids must be valid in partition keys.
        """
        if self.has_keys and ids and ids[0] < 0:
            ensure_ids_not_negative(self.table)
        for start in range(0, len(ids), _CHUNK):
            chunk = tuple(ids[start : start + _CHUNK])
            is_listed = Condition(self.table.columns.uid, Operator.IN, chunk)
            yield from _filtered(self.table, is_listed).weights(chunk[0] - 1, chunk[-1])


def _filtered(table: ReflectedMetaTable, *conditions: Filter) -> ReflectedMetaTable:
    parts = conditions if table.where is None else (table.where, *conditions)
    return replace(table, where=AllOf(parts))


def _times(
    table: ReflectedMetaTable, selection: Selection, time_column: str | None
) -> list[Filter]:
    name = selection.time_column or time_column
    if name is None:
        raise InvalidValueError("time_column", None, "the name of a column of times")
    column_type = table.column(name, "time").type
    if not isinstance(column_type, sa.DateTime | sa.Date):
        problem = f"its type is {column_type!r}, but a date or a time is needed"
        step = "Name the column with the time at which a row was inserted."
        raise unfit_column(table.canonical_name, name, "time", problem, step)
    is_date = isinstance(column_type, sa.Date)
    bounds = (
        ("since", Operator.GREATER_OR_EQUAL, selection.since),
        ("until", Operator.LESS, selection.until),
    )
    return [
        Condition(name, operator, _format_bound(bound, moment, days=is_date))
        for bound, operator, moment in bounds
        if moment is not None
    ]


def _format_bound(bound: str, moment: datetime, *, days: bool) -> str:
    moment = moment.astimezone(UTC)
    if not days:
        return moment.isoformat()
    if moment.time() != time(0):
        raise InvalidValueError(bound, moment.isoformat(), "a whole day, for a column of days")
    return moment.date().isoformat()


def _high_watermark(source: BackfillSource) -> int | None:
    """Read the high watermark; log what holds it back."""
    reading = source.source.read_high_watermark()
    if reading.held_by:
        name = source.table.canonical_name
        log.warning("%s: nothing is planned above the %s", name, describe_reading(reading))
    return reading.value


def _ranges(
    connection: sa.Connection, request: Backfill, source: BackfillSource, job_id: int | None
) -> list[CutRange]:
    """Cut the items of a window that the backfill's job has not planned."""
    window, last_id = request.selection.ids, _high_watermark(source)
    return unplanned_ranges(
        connection, job_id, source.cuts, request.limits, last_id=last_id, window=window
    )


def _items(
    connection: sa.Connection,
    request: Backfill,
    source: BackfillSource,
    *,
    job_id: int | None,
    parent_id: int | None,
) -> WeighedIds:
    """Yield the selected items that the backfill's job has not planned, in ascending order.

    Reads the meta table lazily, which needs no connection of the inventory.

    Raises:
        ConfigurationError: a listed item does not exist.
    """
    selection, last_id = request.selection, _high_watermark(source)
    if selection.item_ids is not None:
        requested = ((item_id, 0) for item_id in sorted(set(selection.item_ids)))
        new_ids = [item_id for item_id, _ in _exclude_listed(connection.engine, job_id, requested)]
        return _listed_items(source, new_ids, last_id)
    if last_id is None or last_id < selection.ids.first_id:
        return iter(())
    ids = IdRange(first_id=selection.ids.first_id, last_id=min(last_id, selection.ids.last_id))
    items = (
        _failed_items(connection, source, parent_id, ids)
        if selection.failed_only
        else source.chosen(ids, selection)
    )
    return _exclude_listed(connection.engine, job_id, items)


def _exclude_listed(
    engine: sa.Engine, job_id: int | None, weighed_ids: Iterable[tuple[int, int]]
) -> WeighedIds:
    """Yield the pairs whose ids no committed list of a job contains, streaming both in id order."""
    if job_id is None:
        yield from weighed_ids
        return
    item_id = sa.func.unnest(batch.c.item_ids).label("item_id")
    is_list = (batch.c.superseded_at.is_(None), batch.c.item_ids.is_not(None))
    query = sa.select(item_id).where(batch.c.job_id == job_id, *is_list).order_by(item_id)
    query = query.execution_options(yield_per=_STREAM_ROWS)
    # Idle while the meta table is read, which may take longer than the limit of other transactions.
    no_limit = sa.func.set_config("idle_in_transaction_session_timeout", "0", sa.true())
    with transaction(engine) as connection:
        connection.execute(sa.select(no_limit))
        with connection.execute(query) as result:
            listed = result.scalars()
            known = next(listed, None)
            for new_id, weight in weighed_ids:
                while known is not None and known < new_id:
                    known = next(listed, None)
                if known != new_id:
                    yield new_id, weight


def _listed_items(
    source: BackfillSource, item_ids: Sequence[int], high_watermark: int | None
) -> WeighedIds:
    up_to = MIN_ID - 1 if high_watermark is None else high_watermark
    weights = dict(source.listed([item_id for item_id in item_ids if item_id <= up_to]))
    missing = [item_id for item_id in item_ids if item_id not in weights]
    if missing:
        name = source.table.canonical_name
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        limit = "" if high_watermark is None else f" up to its high watermark {high_watermark}"
        raise ConfigurationError(
            f"{name} has no items {', '.join(map(str, missing[:10]))}{more}{limit}. Nothing "
            f"was planned. Leave these ids out; the filter excludes them, or they are above the "
            f"high watermark."
        )
    return iter(weights.items())


def _failed_items(
    connection: sa.Connection, source: BackfillSource, parent_id: int | None, within: IdRange
) -> WeighedIds:
    """Return the items of failed and dead batches of a job and of its late arrivals."""
    late = sa.and_(job.c.parent_id == parent_id, job.c.kind == JobKind.LATE)
    query = (
        sa.select(batch.c.first_id, batch.c.last_id, batch.c.item_ids, batch.c.id_runs)
        .select_from(batches_with_states)
        .where(
            sa.or_(job.c.id == parent_id, late),
            batch_state.c.state.in_([BatchState.FAILED.value, BatchState.DEAD.value]),
            batch.c.first_id <= within.last_id,
            batch.c.last_id >= within.first_id,
        )
        .order_by(batch.c.first_id)
    )
    rows = connection.execute(query).all()
    ranges = [(row.first_id, row.last_id) for row in rows if row.item_ids is None]
    listed = {item_id for row in rows for item_id in row.item_ids or () if item_id in within}
    planned = IdRuns.joined(
        IdRuns([row.first_id], [row.last_id]) if row.id_runs is None else IdRuns(*row.id_runs)
        for row in rows
        if row.item_ids is None
    )
    adjacent = IdRuns.joined(IdRuns([first], [last]) for first, last in ranges).within(within)
    # Read one after the other, because each holds a connection.
    of_ranges = chain.from_iterable(
        source.chosen(IdRange(first_id=first, last_id=last), Selection())
        for first, last in zip(adjacent.firsts, adjacent.lasts, strict=True)
    )
    items = (item for item in of_ranges if item[0] in planned)
    both = merge(items, source.listed(sorted(listed)))
    return (next(same) for _, same in groupby(both, itemgetter(0)))


@dataclass(frozen=True, slots=True)
class Backfills:
    """The backfills of all jobs: planned in one transaction, visible when complete."""

    engine: sa.Engine

    def plan(self, request: Backfill, table: Source) -> Planned:
        """Plan the items of a backfill up to the high watermark that are not planned yet.

        Holds the planning lock of the backfill's job, not that of its parent. Creates no job if
        there is nothing to plan.

        Raises:
            JobChangedError: the name belongs to another job, or the backfill has other terms.
            ConfigurationError: a listed item does not exist.
            UnknownJobError: the parent job does not exist.
        """
        source = BackfillSource.of(table)
        terms = _terms(request, source.table)
        self._ensure_parent(request, source)
        with transaction(self.engine) as connection:
            ensure_revision_unchanged(connection)
            is_new = find_job_id(connection, terms) is None
            parent_id = _parent_id(connection, request, source)
            backfill_row = open_job(connection, terms, parent_id=parent_id)
            lock_planning(connection, backfill_row.id)
            failpoint("backfill.locked")
            job_id, limits = backfill_row.id, request.limits
            config = {**limits.config(), "selection": request.selection.to_json()}
            if request.selection.is_window:
                ranges = _ranges(connection, request, source, job_id)
                planned = insert_ranges(connection, job_id, limits, config, ranges)
            else:
                items = _items(connection, request, source, job_id=job_id, parent_id=parent_id)
                planned = insert_batches(
                    connection, job_id, limits, config, cut_lists(items, limits)
                )
            if is_new and not planned.batches:
                connection.rollback()
            failpoint("backfill.before_commit")
        failpoint("backfill.after_commit")
        return planned

    def estimate(self, request: Backfill, table: Source) -> Estimate:
        """Estimate the batches that `plan` would plan and their duration. Nothing is written.

        The throughput is the backfill's own, else its parent's, else that of any job of the stream.

        Raises:
            JobChangedError, ConfigurationError, UnknownJobError: as for `plan`.
        """
        source = BackfillSource.of(table)
        with transaction(self.engine) as connection:
            job_id = find_job_id(connection, _terms(request, source.table))
            parent_id = _parent_id(connection, request, source)
            throughput = recent_throughput(
                connection, job.c.id == job_id, *_related_jobs(request, parent_id)
            )
            if request.selection.is_window:
                ranges = _ranges(connection, request, source, job_id)
                cuts: Iterator[Cut] = chain.from_iterable(of_gap for _, of_gap in ranges)
            else:
                items = _items(connection, request, source, job_id=job_id, parent_id=parent_id)
                cuts = (cut for cut, _ in cut_lists(items, request.limits))
        return estimate(cuts, request.limits, throughput)

    def statuses(self, name: str, meta_table: str) -> list[BatchStatus]:
        """Read the unsplit batches of a backfill in id order.

        Raises:
            UnknownJobError: there is no such job.
        """
        with transaction(self.engine) as connection:
            is_its = job.c.id == job_id_of(connection, name, meta_table)
            return select_statuses(connection, is_its, batch.c.superseded_at.is_(None))

    def of_all(self, stream: str) -> list[BatchStatus]:
        """Read the unsplit batches of all backfills of a stream, in planning order."""
        is_live = (is_job_of(stream, JobKind.BACKFILL), batch.c.superseded_at.is_(None))
        return read_statuses(self.engine, *is_live, order_by=batch.c.id)

    def of_item(self, stream: str, item_id: int) -> list[BatchStatus]:
        """Read the unsplit batches of a stream's backfills that contain an item, oldest first."""
        listed = sa.literal(item_id, sa.BigInteger) == sa.any_(batch.c.item_ids)
        around = (
            is_job_of(stream, JobKind.BACKFILL),
            batch.c.superseded_at.is_(None),
            batch.c.first_id <= item_id,
            batch.c.last_id >= item_id,
            sa.or_(batch.c.item_ids.is_(None), listed),
        )
        with transaction(self.engine) as connection:
            statuses = select_statuses(connection, *around, order_by=batch.c.id)
            planned = [planned_ids(connection, status.batch) for status in statuses]
        # A row that appeared in the range of a batch later is not in the batch.
        each = zip(statuses, planned, strict=True)
        return [status for status, ids in each if ids is None or item_id in ids]

    def paused(self, stream: str) -> dict[str, str]:
        """Return the paused backfills of a stream with their reasons, which may be empty.

        Pausing a stream pauses its backfills.
        """
        of_stream = sa.select(stream_job.c.paused_reason).where(is_own_stream_job).scalar_subquery()
        own = (job.c.paused_at.is_not(None), job.c.paused_reason)
        reason = sa.func.coalesce(sa.case(own, else_=of_stream), "").label("reason")
        query = sa.select(job.c.name, reason).where(
            is_job_of(stream, JobKind.BACKFILL), is_paused()
        )
        return {row.name: row.reason for row in fetch_rows(self.engine, query.order_by(job.c.id))}

    def progress(self, name: str, meta_table: str) -> Progress:
        """Return the progress of a backfill.

        Raises:
            UnknownJobError: there is no such job.
        """
        with transaction(self.engine) as connection:
            job_id = job_id_of(connection, name, meta_table)
            return job_progress(connection, job.c.id == job_id)[0]

    def of_stream(self, stream: str) -> list[Progress]:
        """Return the progress of each backfill of a stream, in creation order."""
        with transaction(self.engine) as connection:
            return job_progress(connection, is_job_of(stream, JobKind.BACKFILL))

    def _ensure_parent(self, request: Backfill, source: BackfillSource) -> None:
        """Create the job of a stream that was never planned.

        In a separate transaction, because other transactions that create it wait for the commit.
        """
        if request.stream is None:
            return
        with transaction(self.engine) as connection:
            if _parent_id(connection, request, source) is None:
                open_job(connection, stream_terms(request.stream, source.table))


def _terms(request: Backfill, table: ReflectedMetaTable) -> JobTerms:
    return request.terms(table.canonical_name, table.where, table.identity)


def _related_jobs(request: Backfill, parent_id: int | None) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for jobs with a similar throughput, most similar first."""
    kin = []
    if parent_id is not None:
        kin += [job.c.id == parent_id, job.c.parent_id == parent_id]
    if request.stream is not None:
        kin.append(job.c.stream == request.stream)
    return kin


def _parent_id(connection: sa.Connection, request: Backfill, source: BackfillSource) -> int | None:
    if request.stream is not None:
        return stream_job_id(connection, request.stream)
    if request.parent is not None:
        return job_id_of(connection, request.parent, source.table.canonical_name)
    if request.selection.failed_only:
        raise InvalidValueError("parent", None, "the name of the job with the failed batches")
    return None
