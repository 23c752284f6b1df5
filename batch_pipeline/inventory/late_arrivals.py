"""Audit jobs: compare published batches with the meta table, and plan batches of late arrivals.

An audit leaves out unpublished batches (a later audit compares them), split batches (their halves
are compared), lists of ids (nothing can arrive in a list) and ids that no window of the job has
reached. Dead and cancelled batches may never be published, so they are compared with their planned
ids.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, groupby, islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.inventory.batch_states import BATCH_ROW, batch_from_row, planned_ids
from batch_pipeline.inventory.connection import fetch_column, fetch_rows, lock_planning, transaction
from batch_pipeline.inventory.jobs import job_id_of, open_job
from batch_pipeline.inventory.meta_tables.reflected_table import (
    RangeFacts,
    ReflectedMetaTable,
    range_facts,
    stream_weights,
)
from batch_pipeline.inventory.migrate import ensure_revision_unchanged
from batch_pipeline.inventory.planning import insert_batches
from batch_pipeline.inventory.tables import (
    attempt,
    batch,
    batch_state,
    batches_with_states,
    bookmark,
    job,
)
from batch_pipeline.model.audit import Audit, Comparison
from batch_pipeline.model.backfill import cut_lists
from batch_pipeline.model.batch import MAX_ID, MIN_ID, BatchState, IdRange, IdRuns
from batch_pipeline.model.errors import JobChangedError
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.item import ItemIdSet
from batch_pipeline.model.job import MAX_NAME, Job, JobKind, JobTerms
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.progress import track

_PAGE = 1_000
_CHUNK_ROWS = 50_000
_SUFFIX = ".late"
WEEK = timedelta(days=7)
NO_ITEMS = ItemIdSet.of((), weight=0)
Window = tuple[Any, Any]
_WINDOW = (
    batch.c.config["batch_id_min"].label("window_first_id"),
    batch.c.config["batch_id_max"].label("window_last_id"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRange:
    """A range of ids with the items that the latest published attempt read.

    `batch_id` is None for the ids below a job's first batch. `seen` is None if it was not stored or
    the batch is being reprocessed; it has no runs of ids. `window` is the id window that the batch
    was requested with, None for no bound. `planned` are the planned ids of an unpublished batch; no
    attempt will read other ids.
    """

    ids: IdRange
    batch_id: int | None = None
    label: str = ""
    generation: int | None = None
    attempt_id: int | None = None
    seen: ItemIdSet | None = NO_ITEMS
    window: Window = (None, None)
    planned: IdRuns | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _LateRow:
    """A row that its batch did not read."""

    id: int
    weight: int
    of: AuditedRange


@dataclass(frozen=True, slots=True)
class LateArrivals:
    """Audits of jobs. Safe to repeat, and to run concurrently with all other work."""

    engine: sa.Engine

    def audit(
        self,
        name: str,
        table: ReflectedMetaTable,
        *,
        limits: Limits | None = None,
        since: timedelta | None = WEEK,
        dry_run: bool = False,
    ) -> Audit:
        """Compare the published batches of a job with its meta table, and plan late arrivals.

        `table` must be opened with the job's filter. Compares batches published within `since`
        (None: all). Late rows become batches of the job `<name>.late`, cut by `limits` (None: those
        of the job's newest batch), which are acquired before new ones. Late ids are planned once,
        however often the job is audited. The job's planning lock is held while ids are written, at
        most 50,000 at a time. With `dry_run` nothing is planned: `late` lists the items that would
        be.

        Raises:
            UnknownJobError: the table has no such job.
            JobChangedError: the job `<name>.late` exists for another purpose.
        """
        with transaction(self.engine) as connection:
            if not dry_run:
                ensure_revision_unchanged(connection)
            job_id = job_id_of(connection, name, table.canonical_name)
            result = Audit(job=name, late_job=_late_name(connection, job_id, name))
            query = sa.select(job.c.stream, job.c.config).where(job.c.id == job_id)
            stream, config = connection.execute(query).one()
            problems = _table_differences(connection, job_id, config, table)
            if problems:
                return replace(result, other_table=problems)
            first = _range_below_first_batch(connection, job_id)
            limits = None if dry_run else limits or _newest_limits(connection, job_id)
        has_keys = stream is not None
        running = _RunningAudit(
            engine=self.engine, table=table, job_id=job_id, audit=result, has_keys=has_keys
        )
        pages = chain([[first]] if first else [], _published_ranges(self.engine, job_id, since))
        for rows in (running.late_rows(pages), running.unplanned_rows()):
            while chunk := list(islice(rows, _CHUNK_ROWS)):
                running.plan(chunk, limits)
        return running.audit


@dataclass(slots=True, kw_only=True)
class _RunningAudit:
    """An audit of a job with its result so far; with `has_keys`, batches have partition keys."""

    engine: sa.Engine
    table: ReflectedMetaTable
    job_id: int
    audit: Audit
    has_keys: bool

    def late_rows(self, pages: Iterable[Sequence[AuditedRange]]) -> Iterator[_LateRow]:
        """Yield the late rows of published batches; hold one page and one batch in memory."""
        for page in track(pages, "comparing batches", size=_count_batches):
            comparable = [audited for audited in page if audited.seen is not None]
            current_facts = range_facts(self.table, [audited.ids for audited in comparable])
            differing = [
                (audited, facts)
                for audited, facts in zip(comparable, current_facts, strict=True)
                if _differs(audited, facts)
            ]
            self.audit = replace(
                self.audit,
                batches=self.audit.batches + _count_batches(comparable),
                left_out=self.audit.left_out + len(page) - len(comparable),
            )
            for audited, facts in differing:
                rows = stream_weights(self.table, audited.ids) if facts.count else iter(())
                comparison = Comparison(seen=self._seen_items(audited), rows=rows)
                yield from self._compare(audited, comparison)

    def unplanned_rows(self) -> Iterator[_LateRow]:
        """Yield the rows that dead and cancelled batches were not planned with."""
        for audited in _dead_or_cancelled_ranges(self.engine, self.job_id):
            if audited.planned is not None:
                rows = stream_weights(self.table, audited.ids)
                yield from self._surplus(audited, Comparison(seen=audited.planned, rows=rows))

    def plan(self, rows: Sequence[_LateRow], limits: Limits | None) -> None:
        """Plan the rows that were not planned in the meantime, in one transaction.

        Without limits the rows are only counted, not planned.
        """
        batches = 0
        failpoint("audit.found")
        with transaction(self.engine) as connection:
            if limits is not None:
                ensure_revision_unchanged(connection)
                lock_planning(connection, self.job_id)
                failpoint("audit.locked")
            known = _planned(connection, self.job_id, rows)
            unplanned = [row for row in rows if row.id not in known]
            if limits is not None:
                unplanned = _exclude_read_again(connection, unplanned)
            if limits is not None and unplanned:
                batches = self._insert(connection, unplanned, limits)
            failpoint("audit.before_commit")
        failpoint("audit.after_commit")
        self.audit = self.audit.with_late(
            [row.id for row in unplanned], batches=batches, known=len(known)
        )

    def _insert(self, connection: sa.Connection, rows: Sequence[_LateRow], limits: Limits) -> int:
        late_job = _open_late(connection, self.job_id, self.audit.late_job)
        lock_planning(connection, late_job.id)
        batches = 0
        for window, group in groupby(rows, lambda row: row.of.window):
            lists = cut_lists(((row.id, row.weight) for row in group), limits)
            config = {
                "late": True,
                "max_weight": str(limits.max_weight),
                "max_count": str(limits.max_count),
                # Requests within the window find the batches.
                "batch_id_min": window[0],
                "batch_id_max": window[1],
            }
            batches += insert_batches(connection, late_job.id, limits, config, lists).batches
        return batches

    def _seen_items(self, audited: AuditedRange) -> ItemIdSet:
        """Read the items that the attempt of a batch read, with the runs of ids."""
        if audited.attempt_id is None:
            return NO_ITEMS
        query = sa.select(attempt.c.seen).where(attempt.c.id == audited.attempt_id)
        [seen] = fetch_column(self.engine, query)
        return ItemIdSet.from_json(seen)

    def _surplus(self, audited: AuditedRange, comparison: Comparison) -> Iterator[_LateRow]:
        """Yield the rows that a batch did not read; record those that cannot be planned."""
        for item_id, weight in comparison.surplus():
            if weight is None or (self.has_keys and item_id < 0):
                refused = self.audit.refused.extended([item_id])
                self.audit = replace(self.audit, refused=refused)
            else:
                yield _LateRow(id=item_id, weight=weight, of=audited)

    def _compare(self, audited: AuditedRange, comparison: Comparison) -> Iterator[_LateRow]:
        """Yield the late rows of a batch; record missing, changed and invalid ones."""
        yield from self._surplus(audited, comparison)
        if comparison.missing.count:
            missing = self.audit.missing.plus(comparison.missing)
            self.audit = replace(self.audit, missing=missing)
        elif audited.seen is not None and comparison.weight != audited.seen.weight:
            changed = self.audit.changed.extended([audited.label])
            self.audit = replace(self.audit, changed=changed)


def _range_below_first_batch(connection: sa.Connection, job_id: int) -> AuditedRange | None:
    """Return the ids below a job's first batch if its bookmark includes them, else None.

    A job without a window starts its first batch at the first existing row.
    """
    first = sa.select(sa.func.min(batch.c.first_id)).where(
        batch.c.job_id == job_id, batch.c.superseded_at.is_(None), batch.c.item_ids.is_(None)
    )
    passed = sa.exists().where(bookmark.c.job_id == job_id, bookmark.c.first_id == MIN_ID)
    lowest = connection.execute(first.where(passed)).scalar_one()
    if lowest is None or lowest == MIN_ID:
        return None
    return AuditedRange(ids=IdRange(first_id=MIN_ID, last_id=lowest - 1))


def _published_ranges(
    engine: sa.Engine, job_id: int, since: timedelta | None
) -> Iterator[list[AuditedRange]]:
    """Read the batches of a job published within `since` (None: all) in id order, in pages."""
    query = page = _published(job_id, since)
    while rows := fetch_rows(engine, page):
        yield [_audited(row) for row in rows]
        page = query.where(batch.c.first_id > rows[-1].first_id)


def _dead_or_cancelled_ranges(engine: sa.Engine, job_id: int) -> Iterator[AuditedRange]:
    """Read the dead and cancelled batches of a job whose ranges have gaps, in id order.

    Rows that arrived in a gap must not wait for a retry of the batch.
    """
    query = (
        sa.select(*BATCH_ROW, *_WINDOW)
        .select_from(batches_with_states)
        .where(
            batch.c.job_id == job_id,
            batch.c.superseded_at.is_(None),
            batch.c.id_runs.is_not(None),
            batch_state.c.state.in_([BatchState.DEAD.value, BatchState.CANCELLED.value]),
        )
        .order_by(batch.c.first_id)
    )
    for row in fetch_rows(engine, query):
        dead_batch = batch_from_row(row)
        with transaction(engine) as connection:
            planned = planned_ids(connection, dead_batch)
        window = (row.window_first_id, row.window_last_id)
        yield AuditedRange(
            ids=dead_batch.id_range, batch_id=dead_batch.id, window=window, planned=planned
        )


def _published(job_id: int, since: timedelta | None) -> sa.Select[Any]:
    query = (
        sa.select(
            *BATCH_ROW,
            *_WINDOW,
            batch_state.c.state,
            batch_state.c.generation,
            attempt.c.id.label("attempt_id"),
            attempt.c.seen.op("-", return_type=pg.JSONB())(sa.literal("runs")).label("seen"),
        )
        .select_from(batches_with_states)
        .join(
            attempt,
            sa.and_(
                attempt.c.batch_id == batch.c.id,
                attempt.c.generation == batch_state.c.generation,
            ),
        )
        .where(
            batch.c.job_id == job_id,
            batch.c.superseded_at.is_(None),
            batch.c.item_ids.is_(None),
        )
        .order_by(batch.c.first_id)
        .limit(_PAGE)
    )
    if since is None:
        return query
    return query.where(attempt.c.finished_at > sa.func.clock_timestamp() - since)


def _audited(row: sa.Row[Any]) -> AuditedRange:
    is_comparable = row.seen is not None and row.state == BatchState.PUBLISHED
    audited_batch = batch_from_row(row)
    return AuditedRange(
        ids=audited_batch.id_range,
        batch_id=audited_batch.id,
        label=audited_batch.label,
        generation=row.generation,
        attempt_id=row.attempt_id,
        seen=ItemIdSet.from_json({**row.seen, "runs": []}) if is_comparable else None,
        window=(row.window_first_id, row.window_last_id),
    )


def _table_differences(
    connection: sa.Connection, job_id: int, config: Mapping[str, Any], table: ReflectedMetaTable
) -> tuple[str, ...]:
    """Return how a job's table differs from the one its batches were cut from.

    Earlier releases allowed a job to change its id column, which skips rows.
    """
    problems = [] if table.identity is None else [*table.identity.differences(config)]
    uid = batch.c.config["meta_table"]["cols"]["uid"].astext
    uid_columns = (
        sa.select(uid).where(batch.c.job_id == job_id, uid.is_not(None)).distinct().order_by(uid)
    )
    names = [repr(name) for name in connection.execute(uid_columns).scalars()]
    if len(names) > 1:
        problems.append(
            f"its batches were cut by the ids of several columns ({', '.join(names)}), so rows may "
            f"have been skipped or acquired twice"
        )
    return tuple(problems)


def _count_batches(page: Sequence[AuditedRange]) -> int:
    return sum(audited.batch_id is not None for audited in page)


def _differs(audited: AuditedRange, current: RangeFacts) -> bool:
    seen = audited.seen
    if seen is None or current.bad_id is not None:
        return current.bad_id is not None
    published = (seen.count, seen.weight, seen.fingerprint)
    return published != (current.count, current.weight, current.fingerprint)


def _exclude_read_again(connection: sa.Connection, rows: Sequence[_LateRow]) -> list[_LateRow]:
    """Leave out rows of batches that were published again since they were compared.

    The new attempt may have read them. A batch with planned ids never reads other ids.
    """
    generations = {row.of.batch_id: row.of.generation for row in rows if row.of.generation}
    # No attempt on the locked batches can start until the transaction ends.
    current = (
        sa.select(batch_state.c.batch_id, batch_state.c.generation)
        .where(
            batch_state.c.batch_id.in_(sorted(generations)),
            batch_state.c.state == BatchState.PUBLISHED,
        )
        .order_by(batch_state.c.batch_id)
        .with_for_update()
    )
    rows_now = connection.execute(current).all() if generations else ()
    unchanged = {row.batch_id for row in rows_now if row.generation == generations[row.batch_id]}
    return [
        row
        for row in rows
        if row.of.batch_id is None or row.of.planned is not None or row.of.batch_id in unchanged
    ]


def _planned(connection: sa.Connection, job_id: int, rows: Sequence[_LateRow]) -> set[int]:
    """Return the ids of the rows that a batch of the late-arrivals job contains."""
    listed = sa.func.unnest(batch.c.item_ids).label("item_id")
    late = (
        sa.select(listed)
        .join(job, job.c.id == batch.c.job_id)
        .where(
            job.c.parent_id == job_id,
            job.c.kind == JobKind.LATE,
            batch.c.first_id <= rows[-1].id,
            batch.c.last_id >= rows[0].id,
        )
        .subquery()
    )
    ids = sa.cast([row.id for row in rows], sa.ARRAY(sa.BigInteger))
    query = sa.select(late.c.item_id).where(late.c.item_id == sa.any_(ids)).distinct()
    return set(connection.execute(query).scalars())


def _late_name(connection: sa.Connection, job_id: int, name: str) -> str:
    query = sa.select(job.c.name).where(job.c.parent_id == job_id, job.c.kind == JobKind.LATE)
    existing: str | None = connection.execute(query).scalar_one_or_none()
    return existing or name[: MAX_NAME - len(_SUFFIX)] + _SUFFIX


def _open_late(connection: sa.Connection, parent_id: int, name: str) -> Job:
    """Find or create the late-arrivals job of a job, with its filter and `max_attempts`."""
    parent = connection.execute(sa.select(job).where(job.c.id == parent_id)).one()
    where = parent.config.get("where")
    terms = JobTerms(
        name=name,
        meta_table=parent.meta_table,
        kind=JobKind.LATE,
        stream=parent.stream,
        where=None if where is None else parse_filter(where),
        max_attempts=parent.max_attempts,
        bisect=parent.bisect,
    )
    late_job = open_job(connection, terms, parent_id=parent_id)
    parent_of_late = connection.execute(
        sa.select(job.c.parent_id).where(job.c.id == late_job.id)
    ).scalar_one()
    if parent_of_late != parent_id:
        raise JobChangedError(name, parent.meta_table, "it is for the late arrivals of another job")
    return late_job


def _newest_limits(connection: sa.Connection, job_id: int) -> Limits:
    """Return the limits that the job's newest batch was cut with; unlimited if not stored."""
    newest = sa.select(batch.c.config).where(batch.c.job_id == job_id).order_by(batch.c.id.desc())
    config = connection.execute(newest.limit(1)).scalar_one_or_none() or {}
    return Limits(
        max_weight=_limit(config.get("max_weight") or config.get("batch_weight")),
        max_count=_limit(config.get("max_count") or config.get("batch_count")),
    )


def _limit(stored: Any) -> int:
    return MAX_ID if stored is None else min(MAX_ID, max(1, int(stored)))
