"""Plan batches: cut the new items of a job into id ranges, or given items into lists of ids.

Also reads planned batches with the status of their latest attempt and the throughput of jobs, and
splits failing batches into halves until the failing item is alone. A half that fails is split
again after one attempt. Finding a bad item among n items costs the job's `max_attempts` for the
whole batch, about 2 log2(n) attempts on halves, and `max_attempts` for the item alone.
"""

import json
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory import batch_states
from batch_pipeline.inventory.batch_states import BATCH_ROW, batch_from_row, planned_ids
from batch_pipeline.inventory.connection import copy_rows, fetch_row, lock_planning, transaction
from batch_pipeline.inventory.jobs import (
    ALL_IDS,
    Gap,
    advance,
    find_batch,
    gaps,
    highest_planned,
    is_job_of,
    job_from_row,
    job_with_late_arrivals,
    of_stream,
    open_job,
    stream_bookmark,
    stream_job_id,
)
from batch_pipeline.inventory.meta_tables.reflected_table import MetaItem, ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import StreamTable
from batch_pipeline.inventory.migrate import ensure_revision_unchanged
from batch_pipeline.inventory.tables import (
    UNFINISHED,
    attempt,
    attempts_of_jobs,
    batch,
    batch_state,
    batches_with_states,
    job,
)
from batch_pipeline.model.backfill import Estimate, Throughput
from batch_pipeline.model.batch import (
    AttemptStatus,
    Batch,
    BatchState,
    BatchStatus,
    IdRange,
    IdRuns,
    SplitRange,
    halve,
)
from batch_pipeline.model.errors import ConfigurationError, JobPausedError, UnknownBatchError
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.job import JobKind, JobTerms
from batch_pipeline.model.planning import Cut, Limits, Planned

_COLUMNS = (
    "job_id",
    "first_id",
    "last_id",
    "weight",
    "item_count",
    "oversized",
    "config",
    "item_ids",
    "id_runs",
)
CutRange = tuple[Gap, Iterator[Cut]]


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """The batches of all jobs."""

    engine: sa.Engine

    def plan(self, table: StreamTable, limits: Limits, *, drain: bool) -> Planned:
        """Cut all items above the bookmark of a stream's job in one pass and one transaction.

        Holds the job's planning lock; a concurrent call waits for it.

        Raises:
            JobPausedError: the job is paused.
            JobChangedError, MetaTableError: the job was planned with another filter, other columns,
                another table or another database.
            MetaTableRestartedError: the table's ids restart.
        """
        terms = stream_terms(table.stream, table.reflected())
        with transaction(self.engine) as connection:
            ensure_revision_unchanged(connection)
            job_row = open_job(connection, terms)
            if job_row.paused is not None:
                raise JobPausedError(job_row.name, job_row.paused)
            lock_planning(connection, job_row.id)
            failpoint("plan.locked")
            last_id = table.high_watermark()
            ranges = unplanned_ranges(connection, job_row.id, table.cuts, limits, last_id=last_id)
            if not drain:
                ranges = [(gap, _without_young(table, limits, cuts)) for gap, cuts in ranges]
            planned = insert_ranges(connection, job_row.id, limits, limits.config(), ranges)
            if planned.ids is None:
                planned_up_to = highest_planned(connection, job_row.id, ALL_IDS)
                if planned_up_to is not None:
                    table.check_not_restarted(planned_up_to)
            failpoint("plan.before_commit")
        failpoint("plan.after_commit")
        return planned

    def estimate(self, table: StreamTable, limits: Limits) -> Estimate:
        """Estimate the batches that `plan` with `drain` would plan, and the time for one worker.

        Nothing is written or locked. The throughput is that of the stream's job.
        """
        with transaction(self.engine) as connection:
            job_id = stream_job_id(connection, table.stream)
            throughput = recent_throughput(connection, job.c.id == job_id)
            last_id = table.high_watermark()
            ranges = unplanned_ranges(connection, job_id, table.cuts, limits, last_id=last_id)
        return estimate(chain.from_iterable(cuts for _, cuts in ranges), limits, throughput)

    def batch(self, stream: str, key: str, kinds: Collection[JobKind] = tuple(JobKind)) -> Batch:
        """Find a planned batch of a stream's jobs of some kinds by its partition key.

        Raises:
            UnknownBatchError: there is no such batch.
            BatchSupersededError: the batch was split; the message names its parts.
        """
        with transaction(self.engine) as connection:
            return batch_states.find_partition(connection, stream, key, kinds)

    def find(self, stream: str, identifier: str) -> Batch:
        """Find a batch of a stream by its partition key, id range or number; of backfills by key.

        Raises:
            UnknownBatchError: there is no such batch.
            BatchSupersededError: the batch was split; the message names its parts.
            InvalidValueError: several batches have this range.
        """
        with transaction(self.engine) as connection:
            row = connection.execute(sa.select(job).where(of_stream(stream))).one_or_none()
            if row is not None:
                with suppress(UnknownBatchError):
                    return find_batch(connection, job_from_row(row, row.id, row.name), identifier)
            return batch_states.find_partition(connection, stream, identifier, tuple(JobKind))

    def bookmark(self, stream: str) -> int | None:
        """Return the highest planned id of a stream, None if nothing is planned."""
        with transaction(self.engine) as connection:
            return stream_bookmark(connection, stream)

    def batch_of_item(self, stream: str, item_id: int) -> Batch | None:
        """Find the batch of a stream that contains an item: a list of late items, or a range."""
        around = (
            sa.select(*BATCH_ROW)
            .join(job)
            .where(batch.c.superseded_at.is_(None))
            .where(batch.c.first_id <= item_id, batch.c.last_id >= item_id)
        )
        is_listed = sa.literal(item_id, sa.BigInteger) == sa.any_(batch.c.item_ids)
        late = around.where(is_job_of(stream, JobKind.LATE), is_listed)
        of_range = around.where(of_stream(stream), batch.c.item_ids.is_(None))
        of_range = of_range.order_by(batch.c.first_id.desc()).limit(1)
        row = fetch_row(self.engine, late) or fetch_row(self.engine, of_range)
        if row is None:
            return None
        found = batch_from_row(row)
        with transaction(self.engine) as connection:
            planned = planned_ids(connection, found)
        # A row that appeared in the range later is in no batch until an audit finds it.
        return found if planned is None or item_id in planned else None

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
        return batch_states.read_statuses(self.engine, is_job_of(stream, JobKind.LATE), is_live)


def stream_terms(stream: str, table: ReflectedMetaTable) -> JobTerms:
    """Return the terms of the incremental job of a stream."""
    return JobTerms(
        name=stream,
        meta_table=table.canonical_name,
        stream=stream,
        where=table.where,
        identity=table.identity,
    )


def unplanned_ranges(
    connection: sa.Connection,
    job_id: int | None,
    cuts: Callable[[int | None, int, Limits], Iterator[Cut]],
    limits: Limits,
    *,
    last_id: int | None,
    window: IdRange = ALL_IDS,
) -> list[CutRange]:
    """Pair the gaps of a window up to `last_id` (None: no item) with the cuts of their items.

    `cuts` lazily cuts all items above one id up to another.
    """
    if last_id is None:
        return []
    return [
        (gap, cuts(gap.after_id, min(gap.ids.last_id, last_id), limits))
        # Job 0 stands for a missing job: it never exists, so it has planned nothing.
        for gap in gaps(connection, job_id or 0, window)
        if gap.ids.first_id <= last_id
    ]


def insert_ranges(
    connection: sa.Connection,
    job_id: int,
    limits: Limits,
    config: Mapping[str, Any],
    ranges: Iterable[CutRange],
) -> Planned:
    """Insert the cuts of gaps as batches and advance the bookmark, in constant memory.

    `config` is stored with each batch. The caller must hold the planning lock.
    """
    total = Planned()
    for gap, cuts in ranges:
        planned = insert_batches(connection, job_id, limits, config, ((cut, None) for cut in cuts))
        if planned.ids is not None:
            advance(connection, job_id, gap, planned.ids.last_id)
        total = total.followed_by(planned)
    return total


def insert_batches(
    connection: sa.Connection,
    job_id: int,
    limits: Limits,
    config: Mapping[str, Any],
    batches: Iterable[tuple[Cut, Sequence[int] | None]],
) -> Planned:
    """Insert batches, each with its list of ids, or None for its whole range.

    Holds one batch in memory. The caller must hold the planning lock and advance the bookmark.
    """
    highest = sa.select(sa.func.coalesce(sa.func.max(batch.c.id), 0)).where(
        batch.c.job_id == job_id
    )
    after_batch_id = connection.execute(highest).scalar_one()
    planned = Planned()
    config_json = json.dumps(dict(config))

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal planned
        for cut, item_ids in batches:
            ids, oversized = cut.id_range, cut.weight > limits.max_weight
            values = (ids.first_id, ids.last_id, cut.weight, cut.count, oversized, config_json)
            listed = None if item_ids is None else list(item_ids)
            runs = None if cut.runs is None else [cut.runs.firsts, cut.runs.lasts]
            yield (job_id, *values, listed, runs)
            planned = planned.plus_cut(cut)

    copy_rows(connection, batch, _COLUMNS, rows())
    if planned.batches:
        is_new = (batch.c.job_id == job_id, batch.c.id > after_batch_id)
        batch_states.insert_states(connection, *is_new)
    return planned


def _without_young(table: StreamTable, limits: Limits, cuts: Iterator[Cut]) -> Iterator[Cut]:
    """Leave out a last short cut while its oldest item has waited for less than `max_wait`."""
    for cut in cuts:
        waited = None
        if not cut.closed and cut.weight < limits.min_weight:
            waited = table.oldest_age(cut.id_range.first_id - 1)
        if waited is None or waited >= limits.max_wait:
            yield cut


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
            .select_from(attempts_of_jobs)
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


def split_batch(engine: sa.Engine, parent: Batch, table: ReflectedMetaTable) -> tuple[Batch, Batch]:
    """Replace a batch that is neither published nor running by two halves.

    Reads the items before it locks anything. One transaction then inserts both halves as planned,
    or changes nothing.

    Raises:
        ConfigurationError: the batch has fewer than two items, or is published, split or running.
    """
    with transaction(engine) as connection:
        planned = planned_ids(connection, parent)
    items = table.items_of_batch(parent, planned)
    halves = _halve(parent, items, planned)
    if halves is None:
        raise _too_few_items_error(parent, items)
    with transaction(engine) as connection:
        job_id = sa.select(batch.c.job_id).where(batch.c.id == parent.id)
        lock_planning(connection, connection.execute(job_id).scalar_one())
        batch_states.lock(connection, parent.id)
        _ensure_splittable(connection, parent)
        split_into = _insert_halves(connection, parent, halves)
        failpoint("bisect.before_commit")
    failpoint("bisect.after_commit")
    return split_into


def split_first_dead(
    connection: sa.Connection, job_id: int, window: IdRange, table: ReflectedMetaTable
) -> tuple[Batch, Batch] | None:
    """Split the first divisible dead batch of a job or its late-arrivals job; None without any.

    Takes the planning lock of the job whose batch is split. Skips paused jobs, and batches that
    another transaction has locked.
    """
    dead = (
        sa.select(*BATCH_ROW)
        .select_from(batches_with_states)
        .where(
            job_with_late_arrivals(job_id),
            job.c.paused_at.is_(None),
            sa.text(f"batch_state.{UNFINISHED}"),  # as in the partial index
            batch_state.c.state == BatchState.DEAD,
            batch.c.item_count > 1,
            batch.c.first_id >= window.first_id,
            batch.c.last_id <= window.last_id,
        )
        .order_by(batch_state.c.batch_id)
        .with_for_update(of=batch_state, skip_locked=True)
    )
    for row in connection.execute(dead).all():
        dead_batch = batch_from_row(row)
        planned = planned_ids(connection, dead_batch)
        halves = _halve(dead_batch, table.items_of_batch(dead_batch, planned), planned)
        if halves is not None:
            lock_planning(connection, row.job_id)
            return _insert_halves(connection, dead_batch, halves)
    return None


def _halve(
    parent: Batch, items: Sequence[MetaItem], planned: IdRuns | None
) -> tuple[SplitRange, SplitRange] | None:
    return halve(parent, [(item.id, item.weight) for item in items], planned)


def _insert_halves(
    connection: sa.Connection, parent: Batch, halves: tuple[SplitRange, SplitRange]
) -> tuple[Batch, Batch]:
    """Replace a batch, whose state the transaction has locked, by its halves.

    The halves have exactly the ids of the batch, so the job's bookmark does not move.
    """
    failpoint("bisect.locked")
    update = sa.update(batch).where(batch.c.id == parent.id)
    connection.execute(update.values(superseded_at=sa.func.clock_timestamp()))
    is_parent = batch_state.c.batch_id == parent.id
    batch_states.set_state(connection, is_parent, BatchState.SUPERSEDED)
    failpoint("bisect.superseded")
    first, second = (_insert_half(connection, parent, half) for half in halves)
    failpoint("bisect.inserted")
    batch_states.insert_states(connection, batch.c.id.in_([first.id, second.id]))
    return first, second


def _insert_half(connection: sa.Connection, parent: Batch, half: SplitRange) -> Batch:
    values: dict[str, Any] = {
        "first_id": half.id_range.first_id,
        "last_id": half.id_range.last_id,
        "weight": half.weight,
        "item_count": half.count,
        "item_ids": None if half.item_ids is None else list(half.item_ids),
        "parent_id": parent.id,
        "id_runs": None if half.runs is None else [half.runs.firsts, half.runs.lasts],
    }
    parent_values = sa.select(
        batch.c.job_id,
        batch.c.config,
        *(sa.cast(sa.literal(value), batch.c[name].type) for name, value in values.items()),
    ).where(batch.c.id == parent.id)
    insert = sa.insert(batch).from_select(("job_id", "config", *values), parent_values)
    batch_id: int = connection.execute(insert.returning(batch.c.id)).scalar_one()
    return Batch(
        id=batch_id,
        job=parent.job,
        id_range=half.id_range,
        weight=half.weight,
        count=half.count,
        item_ids=half.item_ids,
        key_digits=parent.key_digits,
    )


def _ensure_splittable(connection: sa.Connection, parent: Batch) -> None:
    query = sa.select(batch_state.c.state).where(batch_state.c.batch_id == parent.id)
    state = BatchState(connection.execute(query).scalar_one())
    if state is BatchState.RUNNING:
        step = "Wait for it to end, or cancel it."
        raise _indivisible_error(parent, "an attempt on it is running", step)
    if state in {BatchState.PUBLISHED, BatchState.SUPERSEDED}:
        raise _indivisible_error(parent, f"it is {state.value} already", "No action is needed.")


def _too_few_items_error(parent: Batch, items: Sequence[MetaItem]) -> ConfigurationError:
    if not items:
        step = "If its items were deleted on purpose, cancel the batch."
        return _indivisible_error(parent, "none of its items is left", step)
    problem = f"it holds one item, {items[0].id} ({items[0].item})"
    retry = f"batch-pipeline jobs retry {shlex.quote(parent.job)} --batch {parent.id}"
    step = f"Repair the item and `{retry}`, or cancel it."
    return _indivisible_error(parent, problem, step)


def _indivisible_error(parent: Batch, problem: str, next_step: str) -> ConfigurationError:
    failed = f"{parent.job}: batch {parent.label} cannot be split: {problem}."
    return ConfigurationError(f"{failed} Nothing was changed. {next_step}")
