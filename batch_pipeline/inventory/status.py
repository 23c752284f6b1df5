"""The status of jobs and streams: batches by state, unplanned items, progress and consistency.

`WorkCounts` has the counts for monitoring, at a cost that depends on what changed. Reads only.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory import tables
from batch_pipeline.inventory.batch_states import (
    BATCH_ROW,
    label_from_row,
    select_statuses,
    status_query,
)
from batch_pipeline.inventory.connection import fetch_rows, named_statement, transaction
from batch_pipeline.inventory.jobs import (
    ALL_IDS,
    check_same_rows,
    gaps,
    is_job_of,
    job_with_late_arrivals,
    of_stream,
    stream_bookmark,
    stream_job_id,
)
from batch_pipeline.inventory.meta_tables.sources import MetaSource, StreamTable
from batch_pipeline.inventory.meta_tables.watermarks import describe_reading
from batch_pipeline.inventory.planning import recent_throughput
from batch_pipeline.inventory.tables import (
    attempt,
    attempts_of_jobs,
    batch,
    batch_state,
    is_any_of,
    item,
    job,
    part_file,
)
from batch_pipeline.model.backfill import Progress
from batch_pipeline.model.batch import MIN_ID, AttemptStatus, BatchState
from batch_pipeline.model.job import OWN_KINDS, JobKind, JobStatus, JobTerms
from batch_pipeline.model.status import (
    MANY_PARTITIONS,
    UNFINISHED,
    BatchTotals,
    EndedAttempt,
    ManyPartitions,
    NotPlanned,
    StreamStatus,
    Stuck,
    Tiling,
    UnfinishedBatches,
)

FINISHED = (BatchState.PUBLISHED.value, BatchState.SUPERSEDED.value)


def read_job_status(inventory: sa.Engine, terms: JobTerms, source: MetaSource) -> JobStatus:
    """Return the status of a job; for an unknown job, the items that it would plan.

    Counting unplanned items costs as much as reading their ids and weights.

    Raises:
        JobChangedError: the job has another filter, other columns or another database.
        PipelineError: the meta table cannot be read.
    """
    is_named = sa.and_(job.c.name == terms.name, job.c.meta_table == terms.meta_table)
    with transaction(inventory) as connection:
        row = connection.execute(sa.select(job).where(is_named)).one_or_none()
        if row is not None:
            check_same_rows(row, terms)
        job_id = 0 if row is None else row.id
        is_its = job_with_late_arrivals(job_id)
        batches = _count_by_state(connection, is_its)
        statuses = select_statuses(connection, is_its, batch_state.c.state.not_in(FINISHED))
        is_growing = row is None or row.kind != JobKind.BACKFILL
        unplanned = [gap.ids for gap in gaps(connection, job_id, ALL_IDS)] if is_growing else []
    facts = [source.table.facts(ids) for ids in unplanned]
    return JobStatus(
        name=terms.name,
        meta_table=terms.meta_table,
        paused=None if row is None or row.paused_at is None else row.paused_reason or "",
        batches=batches,
        unfinished=tuple(statuses),
        items_not_planned=sum(of_range.count for of_range in facts),
        weight_not_planned=sum(of_range.weight for of_range in facts),
        ceiling=describe_reading(source.read_high_watermark()),
    )


def _count_by_state(
    connection: sa.Connection, condition: sa.ColumnElement[bool]
) -> dict[BatchState, int]:
    query = (
        sa.select(batch_state.c.state, sa.func.count().label("batches"))
        .join(job, job.c.id == batch_state.c.job_id)
        .where(condition)
        .group_by(batch_state.c.state)
    )
    return {BatchState(row.state): row.batches for row in connection.execute(query)}


def select_totals(
    connection: sa.Connection, *conditions: sa.ColumnElement[bool], by: Sequence[sa.Column[Any]]
) -> Sequence[sa.Row[Any]]:
    """Read the number, items, weight and age in seconds of batches, by state and columns of jobs.

    A job without batches has one row, whose state is None.
    """
    seconds = sa.extract("epoch", sa.func.clock_timestamp() - sa.func.min(batch.c.planned_at))
    query: sa.Select[Any] = (
        sa.select(
            *by,
            batch_state.c.state,
            sa.func.count(batch.c.id).label("batches"),
            sa.cast(sa.func.coalesce(sa.func.sum(batch.c.item_count), 0), sa.BigInteger).label(
                "items"
            ),
            sa.func.coalesce(sa.func.sum(batch.c.weight), 0).label("weight"),
            sa.cast(seconds, sa.Double).label("seconds"),
        )
        .select_from(job)
        .outerjoin(batch_state, batch_state.c.job_id == job.c.id)
        .outerjoin(batch, batch.c.id == batch_state.c.batch_id)
        .where(*conditions)
        .group_by(*by, batch_state.c.state)
        .order_by(*by, batch_state.c.state)
    )
    return connection.execute(query).all()


def _find_tiling(connection: sa.Connection, job_id: int) -> Tiling:
    problems: dict[str, list[tuple[int, int]]] = defaultdict(list)
    values = {"job_id": job_id, "lowest_id": MIN_ID}
    for kind, first_id, last_id in connection.execute(named_statement("tiling"), values):
        problems[kind].append((first_id, last_id))
    [(batches, _)] = problems["range"]
    overlaps, holes, doubled = problems["overlap"], problems["hole"], problems["doubled"]
    worst = f"item {doubled[0][0]} is in two late batches" if doubled else None
    if overlaps or holes:
        first_id, last_id = max(overlaps or holes, key=lambda ids: ids[1] - ids[0])
        where = "in two live batches" if overlaps else "planned and in no live batch"
        worst = f"ids {first_id}..{last_id} are {where}"
    return Tiling(
        batches=batches,
        overlaps=len(overlaps),
        holes=len(holes),
        doubled_items=len(doubled),
        worst=worst,
    )


# A lookup by name, as of `to_regclass`, would fail without USAGE on the schema.
_MAY_READ = sa.text("""
SELECT CASE WHEN count(*) = cardinality(:names) THEN bool_and(
           has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')) END
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'public' AND c.relname = ANY (:names)
""").bindparams(sa.bindparam("names", type_=sa.ARRAY(sa.Text)))
_AUTOMATION = sa.text(
    "SELECT instigator_body::json #>> '{origin,job_name}' AS name, status FROM public.instigators"
)


def may_read_dagster(connection: sa.Connection, *names: str) -> bool | None:
    """Return whether this login may read tables of Dagster; None if one does not exist."""
    readable: bool | None = connection.execute(_MAY_READ, {"names": [*names]}).scalar_one()
    return readable


@dataclass(frozen=True, slots=True)
class StreamStatuses:
    """The status of streams: batches of their job and late arrivals, without backfills."""

    engine: sa.Engine

    def states(self, stream: str, kinds: Sequence[JobKind] = OWN_KINDS) -> Mapping[BatchState, int]:
        """Count the unsplit batches of a stream's jobs of some kinds by state."""
        is_live = sa.and_(is_job_of(stream, *kinds), batch_state.c.state != BatchState.SUPERSEDED)
        with transaction(self.engine) as connection:
            return _count_by_state(connection, is_live)

    def status(self, stream: str, table: StreamTable) -> StreamStatus:
        """Return the status of a stream.

        Raises:
            PipelineError: the user's table cannot be read.
        """
        with transaction(self.engine) as connection:
            states = {
                BatchState(row.state): BatchTotals(
                    batches=row.batches, items=int(row.items), size_bytes=int(row.weight)
                )
                for row in select_totals(
                    connection,
                    is_job_of(stream, *OWN_KINDS),
                    batch_state.c.state != BatchState.SUPERSEDED,
                    by=(),
                )
            }
            oldest = connection.execute(_oldest_unfinished(stream)).one_or_none()
            planned = stream_bookmark(connection, stream)
        items, weight = table.backlog(planned)
        return StreamStatus(
            states=states,
            items_not_planned=items,
            bytes_not_planned=weight,
            not_planned_for=table.oldest_age(planned) if items else None,
            not_published_for=None if oldest is None else oldest.age,
            oldest_batch=None if oldest is None else label_from_row(oldest),
            bookmark=planned,
            ceiling=table.high_watermark(),
        )

    def many_partitions(self, stream: str) -> list[ManyPartitions]:
        """Return the assets of a stream that have too many partitions, backfills included."""
        with transaction(self.engine) as connection:
            return many_partitions(connection, job.c.stream == stream)

    def automation(self) -> Mapping[str, Collection[str]] | None:
        """Return the stored statuses of Dagster's sensors and schedules, by their names.

        Several code locations may use the same name. Return None if no Dagster instance is in this
        database, or this login may not read its tables.
        """
        with transaction(self.engine) as connection:
            if not may_read_dagster(connection, "instigators"):
                return None
            statuses: dict[str, set[str]] = defaultdict(set)
            for row in connection.execute(_AUTOMATION):
                statuses[row.name].add(row.status)
        return statuses

    def stuck(self, stream: str, longer_than: timedelta) -> Stuck:
        """Count the batches that have been failed or dead for longer than `longer_than`."""
        since = sa.func.clock_timestamp() - longer_than
        query = (
            status_query()
            .add_columns(sa.func.count().over().label("batches"))
            .where(
                is_job_of(stream, *OWN_KINDS),
                batch_state.c.state.in_([BatchState.FAILED.value, BatchState.DEAD.value]),
                attempt.c.finished_at < since,
            )
            .order_by(attempt.c.finished_at)
            .limit(1)
        )
        paused = sa.select(job.c.paused_reason).where(
            of_stream(stream), job.c.paused_at.is_not(None)
        )
        with transaction(self.engine) as connection:
            row = connection.execute(query).one_or_none()
            reasons = [reason or "" for reason in connection.execute(paused).scalars()]
        reason = reasons[0] if reasons else None
        if row is None:
            return Stuck(paused=reason)
        first = label_from_row(row)
        return Stuck(batches=row.batches, first=first, error=row.error, paused=reason)

    def tiling(self, stream: str) -> Tiling:
        """Check that the live ranges of a stream cover its bookmarks without overlap.

        Also checks that no late item is in two batches.
        """
        with transaction(self.engine) as connection:
            job_id = stream_job_id(connection, stream)
            return Tiling() if job_id is None else _find_tiling(connection, job_id)


def many_partitions(
    connection: sa.Connection, condition: sa.ColumnElement[bool]
) -> list[ManyPartitions]:
    """Return the assets of the selected jobs that have too many partitions.

    Late batches are partitions of `<stream>/batches`. Scans `batch_state` once; its rows are small.
    """
    asset = sa.case((job.c.kind == JobKind.BACKFILL, "backfill"), else_="batches").label("asset")
    query = (
        sa.select(job.c.stream, asset, sa.func.count().label("partitions"))
        .join(batch_state, batch_state.c.job_id == job.c.id)
        .where(
            condition,
            job.c.stream.is_not(None),
            batch_state.c.state != BatchState.SUPERSEDED,
        )
        .group_by(job.c.stream, "asset")
        .having(sa.func.count() >= MANY_PARTITIONS)
        .order_by(job.c.stream, sa.desc("asset"))
    )
    return [
        ManyPartitions(
            stream=row.stream, asset=f"{row.stream}/{row.asset}", partitions=row.partitions
        )
        for row in connection.execute(query)
    ]


def _oldest_unfinished(stream: str) -> sa.Select[Any]:
    age = sa.func.clock_timestamp() - batch.c.planned_at
    return (
        sa.select(*BATCH_ROW, age.label("age"))
        .join(batch_state, batch_state.c.batch_id == batch.c.id)
        .join(job, job.c.id == batch_state.c.job_id)
        .where(is_job_of(stream, *OWN_KINDS), batch_state.c.state.in_(sorted(UNFINISHED)))
        .order_by(batch.c.planned_at, batch.c.first_id)
        .limit(1)
    )


def job_progress(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[Progress]:
    """Return the progress of the selected jobs, oldest first."""
    by = (job.c.id, job.c.name, job.c.stream, job.c.parent_id)
    groups: dict[int, list[sa.Row[Any]]] = defaultdict(list)
    for row in select_totals(connection, condition, by=by):
        groups[row.id].append(row)
    return [_progress(connection, rows) for rows in groups.values()]


def _progress(connection: sa.Connection, rows: list[sa.Row[Any]]) -> Progress:
    by_state = {BatchState(row.state): row for row in rows if row.state is not None}
    by_state.pop(BatchState.SUPERSEDED, None)  # replaced by its halves
    done = by_state.get(BatchState.PUBLISHED)
    return Progress(
        job=rows[0].name,
        states={state: row.batches for state, row in by_state.items()},
        items=sum(row.items for row in by_state.values()),
        items_done=0 if done is None else done.items,
        weight=int(sum(row.weight for row in by_state.values())),
        weight_done=0 if done is None else int(done.weight),
        remaining=_remaining(connection, rows[0], by_state),
    )


def _remaining(
    connection: sa.Connection, job_row: sa.Row[Any], by_state: dict[BatchState, sa.Row[Any]]
) -> timedelta | None:
    """Estimate the time to finish with the current number of workers."""
    states = UNFINISHED - {BatchState.DEAD}
    remaining = [row for state, row in by_state.items() if state in states]
    if not remaining:
        return timedelta(0)
    same_stream = sa.and_(job.c.stream.is_not(None), job.c.stream == job_row.stream)
    throughput = recent_throughput(
        connection, job.c.id == job_row.id, job.c.id == job_row.parent_id, same_stream
    )
    if throughput is None:
        return None
    running = by_state.get(BatchState.RUNNING)
    workers = 1 if running is None else running.batches
    batches, weight = sum(row.batches for row in remaining), sum(row.weight for row in remaining)
    return timedelta(seconds=throughput.seconds(batches, int(weight)) / workers)


_MAX_ATTEMPTS = 5_000
# Ids are assigned before they are visible, so an attempt may appear this far below the highest id.
_ID_OVERLAP = 1_000
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
        is_unfinished = sa.or_(sa.text(tables.UNFINISHED), _is_running)
        of_streams = job.c.stream.in_(streams)
        with transaction(self.engine) as connection:
            rows = select_totals(
                connection, is_unfinished, of_streams, by=(job.c.stream, job.c.kind)
            )
        return [
            UnfinishedBatches(
                stream=row.stream,
                kind=JobKind(row.kind),
                state=BatchState(row.state),
                batches=row.batches,
                items=row.items,
                weight=int(row.weight),
                oldest_seconds=row.seconds,
            )
            for row in rows
        ]

    def published(self, streams: Collection[str]) -> Mapping[tuple[str, JobKind], int]:
        """Count the generations that jobs of streams have published."""
        query = (
            sa.select(job.c.stream, job.c.kind, sa.func.sum(job.c.publish_count).label("number"))
            .where(job.c.stream.in_(streams))
            .group_by(job.c.stream, job.c.kind)
        )
        rows = fetch_rows(self.engine, query)
        return {(row.stream, JobKind(row.kind)): int(row.number) for row in rows}

    def not_planned(self, table: StreamTable) -> NotPlanned:
        """Count the items of a stream that are not planned.

        Raises:
            PipelineError: the meta table cannot be read.
        """
        with transaction(self.engine) as connection:
            planned = stream_bookmark(connection, table.stream)
        items, weight = table.backlog(planned)
        waited = table.oldest_age(planned) if items else None
        seconds = None if waited is None else waited.total_seconds()
        return NotPlanned(items=items, weight=weight, oldest_seconds=seconds)

    def start_cursor(self) -> AttemptCursor:
        """Return a cursor that skips the attempts that have already ended."""
        with transaction(self.engine) as connection:
            newest = sa.select(sa.func.coalesce(sa.func.max(attempt.c.id), 0))
            highest = connection.execute(newest).scalar_one()
            recent = sa.select(attempt.c.id).where(attempt.c.id > highest - _ID_OVERLAP)
            running = sa.select(attempt.c.id).where(attempt.c.status == AttemptStatus.RUNNING)
            # Before the running ones: an attempt that starts in between has not ended.
            known = set(connection.execute(recent).scalars())
            are_running = set(connection.execute(running).scalars())
        return AttemptCursor(highest=highest, ended=known - are_running, running=are_running)

    def ended(self, cursor: AttemptCursor, streams: Collection[str]) -> list[EndedAttempt]:
        """Return the attempts that ended since the last call, and advance `cursor`.

        Returns at most 5,000 new attempts; the next call continues.
        """
        is_new = sa.and_(
            attempt.c.id > cursor.highest - _ID_OVERLAP,
            attempt.c.id != sa.all_(sa.cast(sorted(cursor.ended), sa.ARRAY(sa.BigInteger))),
        )
        is_known = is_any_of(attempt.c.id, cursor.running)
        query = (
            sa.select(attempt.c.id, attempt.c.status)
            .where(sa.or_(is_new, is_known))
            .order_by(attempt.c.id)
            .limit(_MAX_ATTEMPTS)
        )
        with transaction(self.engine) as connection:
            statuses = {row.id: row.status for row in connection.execute(query)}
            running = {number for number in statuses if statuses[number] == AttemptStatus.RUNNING}
            new = statuses.keys() - running
            rows = connection.execute(_ended_query(new)).all() if new else []
        cursor.highest = max(cursor.highest, *statuses) if statuses else cursor.highest
        oldest = cursor.highest - _ID_OVERLAP
        cursor.running = running
        cursor.ended = {number for number in cursor.ended | new if number > oldest}
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
            job.c.meta_table == item.fullname,
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
        .select_from(attempts_of_jobs)
        .where(is_any_of(attempt.c.id, ids), job.c.stream.is_not(None))
    )


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
