"""The late-arrival audit: rows that appeared below a job's bookmark become batches after all.

No ceiling is above every doubt: cached sequences, ids given by hand, a delay that was too short, a
fail-over. So what published batches saw is compared with what is there now. Reads the meta table,
writes batches of the job's late job.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, groupby, islice
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.audit import Audit, Comparison
from batch_pipeline.domain.errors import JobChangedError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.filter import parse_filter
from batch_pipeline.domain.id_range import MAX_ID
from batch_pipeline.domain.job import MAX_NAME, Job, JobKind, JobTerms
from batch_pipeline.domain.planning import Limits
from batch_pipeline.domain.progress import counted
from batch_pipeline.inventory.jobs.audited import (
    NOTHING,
    Audited,
    Window,
    below_first,
    ids_seen,
    label,
    published_pages,
    set_aside,
    unchanged,
)
from batch_pipeline.inventory.jobs.item_lists import insert_lists
from batch_pipeline.inventory.jobs.jobs import job_id_of, open_job
from batch_pipeline.inventory.locks import lock_planning
from batch_pipeline.inventory.meta.meta_queries import Facts
from batch_pipeline.inventory.meta.range_facts import facts_of, present
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import batch, job
from batch_pipeline.inventory.upkeep.migrate import check_still
from batch_pipeline.inventory.work.batches import Writing

WEEK = timedelta(days=7)
_SUFFIX = ".late"
_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row that its batch did not see."""

    id: int
    weight: int
    of: Audited


@dataclass(slots=True)
class _Finding:
    """An audit under way: what was found so far."""

    audit: Audit


@dataclass(frozen=True, slots=True)
class LateArrivals:
    """Audits jobs. Safe to repeat, and beside anybody, other audits included."""

    engine: sa.Engine

    def audit(
        self,
        name: str,
        table: ReflectedMetaTable,
        *,
        limits: Limits | None = None,
        since: timedelta | None = WEEK,
    ) -> Audit:
        """Compare the published batches of a job with its meta table, and plan what came late.

        `table` is opened as for the job itself, with the job's filter. Looks at batches published
        within `since`, None for all. Late rows become batches of the job `<name>.late`, cut by
        `limits` (None: as the job's newest batch was), which acquiring hands out before new ones.
        Each late id is planned once, however often one audits; it holds the job's planning lock
        while it writes, at most 50,000 ids at a time.

        Raises:
            UnknownJobError: there is no such job on this table.
            JobChangedError: the job `<name>.late` is there for another purpose.
        """
        with transaction(self.engine) as connection:
            check_still(connection)
            job_id = job_id_of(connection, name, table.canonical_name)
            late = _late_name(connection, job_id, name)
            problems = _other_table(connection, job_id, table)
            if problems:
                return Audit(job=name, late_job=late, other_table=problems)
            first = below_first(connection, job_id)
            limits = limits or _last_limits(connection, job_id)
        finding = _Finding(Audit(job=name, late_job=late))
        pages = published_pages(self.engine, job_id, since)
        rows = self._late_rows(table, finding, chain([[first]] if first else [], pages))
        for chunk in chain(_chunks(rows), _chunks(self._unplanned_rows(table, finding, job_id))):
            failpoint("audit.found")
            self._plan(job_id, late, limits, chunk, finding)
        return finding.audit

    def look(
        self, name: str, table: ReflectedMetaTable, *, since: timedelta | None = WEEK
    ) -> Audit:
        """Compare as `audit` does and plan nothing: `late` are the items that it would plan.

        Raises:
            UnknownJobError: there is no such job on this table.
        """
        with transaction(self.engine) as connection:
            job_id = job_id_of(connection, name, table.canonical_name)
            late = _late_name(connection, job_id, name)
            problems = _other_table(connection, job_id, table)
            if problems:
                return Audit(job=name, late_job=late, other_table=problems)
            first = below_first(connection, job_id)
        finding = _Finding(Audit(job=name, late_job=late))
        pages = published_pages(self.engine, job_id, since)
        rows = self._late_rows(table, finding, chain([[first]] if first else [], pages))
        for chunk in chain(_chunks(rows), _chunks(self._unplanned_rows(table, finding, job_id))):
            with transaction(self.engine) as connection:
                known = _planned(connection, job_id, chunk)
            ids = [row.id for row in chunk if row.id not in known]
            finding.audit = finding.audit.with_late(ids, batches=0, known=len(known))
        return finding.audit

    def _late_rows(
        self, table: ReflectedMetaTable, finding: _Finding, pages: Iterable[Sequence[Audited]]
    ) -> Iterator[_Row]:
        """Compare page by page and note what is not late; memory is a page and a batch."""
        for page in counted(pages, "comparing batches", size=_batches):
            comparable = [one for one in page if one.seen is not None]
            found = facts_of(table, [one.ids for one in comparable])
            differing = [
                (one, facts)
                for one, facts in zip(comparable, found, strict=True)
                if _differs(one, facts)
            ]
            finding.audit = replace(
                finding.audit,
                batches=finding.audit.batches + sum(one.batch_id is not None for one in comparable),
                left_out=finding.audit.left_out + len(page) - len(comparable),
            )
            attempts = [one.attempt_id for one, _ in differing if one.attempt_id is not None]
            with_ids = ids_seen(self.engine, attempts) if attempts else {}
            for one, facts in differing:
                seen = NOTHING if one.attempt_id is None else with_ids[one.attempt_id]
                is_empty = facts is not None and facts.count == 0
                rows = iter(()) if is_empty else present(table, one.ids)
                yield from _compare(one, Comparison(seen=seen, rows=rows), finding)

    def _unplanned_rows(
        self, table: ReflectedMetaTable, finding: _Finding, job_id: int
    ) -> Iterator[_Row]:
        """Compare batches that are dead or cancelled with what they were planned with."""
        for one in set_aside(self.engine, job_id):
            if one.planned is not None:
                comparison = Comparison(seen=one.planned, rows=present(table, one.ids))
                yield from _surplus(one, comparison, finding)

    def _plan(
        self, job_id: int, late: str, limits: Limits, rows: Sequence[_Row], finding: _Finding
    ) -> None:
        """Plan those rows that nobody planned meanwhile, all of them or none."""
        with transaction(self.engine) as connection:
            check_still(connection)
            lock_planning(connection, job_id)
            failpoint("audit.locked")
            fresh, known = _fresh(connection, job_id, rows)
            batches = 0
            if fresh:
                child = _open_late(connection, job_id, late)
                lock_planning(connection, child.id)
                for window, group in groupby(fresh, lambda row: row.of.window):
                    weighed = [(row.id, row.weight) for row in group]
                    writing = Writing(
                        job_id=child.id, limits=limits, config=_config(limits, window)
                    )
                    batches += insert_lists(connection, writing, weighed).batches
            failpoint("audit.before_commit")
        failpoint("audit.after_commit")
        ids = [row.id for row in fresh]
        finding.audit = finding.audit.with_late(ids, batches=batches, known=known)


def _other_table(
    connection: sa.Connection, job_id: int, table: ReflectedMetaTable
) -> tuple[str, ...]:
    """Return how a job's table differs from the one its batches were cut from.

    Earlier releases let the column of the ids change, which passes rows over.
    """
    found = connection.execute(sa.select(job.c.config).where(job.c.id == job_id)).scalar_one()
    problems = [] if table.identity is None else [*table.identity.differences(found)]
    uid = batch.c.config["meta_table"]["cols"]["uid"].astext
    used = sa.select(uid).where(batch.c.job_id == job_id, uid.is_not(None)).distinct().order_by(uid)
    names = [repr(name) for name in connection.execute(used).scalars()]
    if len(names) > 1:
        problems.append(
            f"its batches were cut by the ids of several columns ({', '.join(names)}), so rows may "
            f"have been passed over or handed out twice"
        )
    return tuple(problems)


def _batches(page: Sequence[Audited]) -> int:
    return sum(one.batch_id is not None for one in page)


def _differs(one: Audited, found: Facts | None) -> bool:
    seen = one.seen
    if seen is None or found is None:
        return found is None
    before = (seen.count, seen.weight, seen.fingerprint)
    return before != (found.count, found.weight, found.fingerprint)


def _chunks(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    while chunk := list(islice(rows, _AT_ONCE)):
        yield chunk


def _surplus(one: Audited, comparison: Comparison, finding: _Finding) -> Iterator[_Row]:
    """Give the late rows of a batch; note what is refused."""
    for item_id, weight in comparison.surplus():
        if weight is None:
            refused = finding.audit.refused.and_also([item_id])
            finding.audit = replace(finding.audit, refused=refused)
        else:
            yield _Row(id=item_id, weight=weight, of=one)


def _compare(one: Audited, comparison: Comparison, finding: _Finding) -> Iterator[_Row]:
    """Give the late rows of a batch; note what is gone, changed or refused."""
    yield from _surplus(one, comparison, finding)
    audit = finding.audit
    if comparison.missing.count:
        finding.audit = replace(audit, missing=audit.missing.plus(comparison.missing))
    elif one.seen is not None and comparison.weight != one.seen.weight:
        finding.audit = replace(audit, changed=audit.changed.and_also([label(one)]))


def _fresh(connection: sa.Connection, job_id: int, rows: Sequence[_Row]) -> tuple[list[_Row], int]:
    """Pick the rows that no late batch has yet, and count those that one has.

    A published batch that was tried again since it was looked at is left to the next audit: its new
    attempt may have seen them. A batch with a record of its planned ids never will.
    """
    known = _planned(connection, job_id, rows)
    unknown = [row for row in rows if row.id not in known]
    looked_at = {
        row.of.batch_id: row.of.generation
        for row in unknown
        if row.of.batch_id is not None and row.of.generation is not None
    }
    still = unchanged(connection, looked_at) if looked_at else set()
    fresh = [
        row
        for row in unknown
        if row.of.batch_id is None or row.of.planned is not None or row.of.batch_id in still
    ]
    return fresh, len(known)


def _planned(connection: sa.Connection, job_id: int, rows: Sequence[_Row]) -> set[int]:
    """Give the ids of those rows that are in a batch of the late job."""
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
    found: str | None = connection.execute(query).scalar_one_or_none()
    return found or name[: MAX_NAME - len(_SUFFIX)] + _SUFFIX


def _open_late(connection: sa.Connection, parent_id: int, name: str) -> Job:
    """Find or make the late job of a job, with the parent's filter and number of attempts."""
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
    one = open_job(connection, terms, parent_id=parent_id)
    owner = connection.execute(sa.select(job.c.parent_id).where(job.c.id == one.id)).scalar_one()
    if owner != parent_id:
        raise JobChangedError(name, parent.meta_table, "it is for the late arrivals of another job")
    return one


def _last_limits(connection: sa.Connection, job_id: int) -> Limits:
    """Read the limits that the job's newest batch was cut by; none where it had none."""
    newest = sa.select(batch.c.config).where(batch.c.job_id == job_id).order_by(batch.c.id.desc())
    config = connection.execute(newest.limit(1)).scalar_one_or_none() or {}
    return Limits(
        max_weight=_limit(config.get("max_weight") or config.get("batch_weight")),
        max_count=_limit(config.get("max_count") or config.get("batch_count")),
    )


def _limit(written: Any) -> int:
    return MAX_ID if written is None else min(MAX_ID, max(1, int(written)))


def _config(limits: Limits, window: Window) -> dict[str, Any]:
    """Say with what a late batch was planned; the window lets who asks within one find it."""
    return {
        "late": True,
        "max_weight": str(limits.max_weight),
        "max_count": str(limits.max_count),
        "batch_id_min": window[0],
        "batch_id_max": window[1],
    }
