"""Acquiring: the next batch of a job and an attempt on it, in one transaction of the inventory.

What an acquire reads of the meta table is the batch and one row more. Work that waits comes first,
then the next new batch, then failed batches that may be tried again.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from time import monotonic
from typing import Any, Protocol
from uuid import UUID, uuid4

import sqlalchemy as sa

from batch_pipeline.domain.batch import Attempt, Batch
from batch_pipeline.domain.errors import JobPausedError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.id_range import MAX_ID, IdRange
from batch_pipeline.domain.job import Job, JobKind, JobTerms
from batch_pipeline.domain.planning import Cut, Limits
from batch_pipeline.inventory.jobs.bookmarks import (
    EVERYWHERE,
    Gap,
    gaps,
    highest_planned,
    swallow,
)
from batch_pipeline.inventory.jobs.jobs import job_to_acquire, with_late
from batch_pipeline.inventory.locks import lock_planning
from batch_pipeline.inventory.meta.reflected_table import CutTexts
from batch_pipeline.inventory.server.engine import named_errors, transaction
from batch_pipeline.inventory.work.acquire_in_server import Request, Turns
from batch_pipeline.inventory.work.acquire_statements import INSERT, TAKE_ANY, TAKE_FIRST
from batch_pipeline.inventory.work.attempts import FencedAttempts, close_dead
from batch_pipeline.inventory.work.batch_rows import batch_of
from batch_pipeline.inventory.work.bisect import Divisible, halve_dead

_SECONDS_BETWEEN_SWEEPS = 5.0


class Source(Divisible, Protocol):
    """The meta table as acquiring needs it."""

    def next_cut(self, after_id: int | None, last_id: int, limits: Limits) -> Cut | None:
        """Cut the next batch above an id (None: from the first row on), up to one and the ceiling.

        None when no item is there below which no row can still appear.
        """
        ...

    def known_ceiling(self) -> int | None:
        """Give the ceiling of less than a second ago."""
        ...

    def cut_texts(self, inventory: sa.Engine) -> CutTexts | None:
        """Return the statements that cut a batch, for the inventory's own connection to execute.

        None where they have to be executed by the table's own connection.
        """
        ...

    def check_not_restarted(self, job: str, planned_up_to: int) -> None:
        """Check that ids still go on above what is planned.

        Raises:
            MetaTableRestartedError: they start again.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants to acquire: of which job, how much, within which ids.

    `run_id` and `config` are kept with the attempt and the batch.
    """

    terms: JobTerms
    limits: Limits
    config: Mapping[str, Any]
    window: IdRange = EVERYWHERE
    run_id: str = ""
    lease: timedelta = timedelta(minutes=5)


class Acquisitions:
    """Hands out batches of all jobs. Safe from any number of threads and processes."""

    def __init__(self, engine: sa.Engine, attempts: FencedAttempts) -> None:
        self._engine = engine
        self._turns = Turns(engine, attempts.heartbeat.disown)
        self._attempts = attempts
        self._job_ids: dict[tuple[str, ...], int] = {}
        self._swept: dict[int, float] = {}
        self._mutex = threading.Lock()

    def acquire(self, wish: Wish, source: Source) -> Attempt | None:
        """Start an attempt on the next batch, None when nothing is left.

        Who acquires owns the attempt and must end it; its lease is kept alive meanwhile. When the
        server crashes right afterwards, the acquisition may be as if it had never been: then the
        attempt cannot be published, and the batch is handed out again.

        Raises:
            JobChangedError: the job has another filter, other columns or another database.
            JobPausedError: the job is paused.
            MetaTableRestartedError: nothing is left since the table's ids start again.
        """
        token = uuid4()
        with named_errors(self._engine):
            self._attempts.heartbeat.hold()
        try:
            return self._acquire(wish, source, token)
        except BaseException:
            # The commit may have happened and only its reply been lost: nobody works on it then.
            self._attempts.heartbeat.disown(token)
            raise

    def _acquire(self, wish: Wish, source: Source, token: UUID) -> Attempt | None:
        job_id = self._job_ids.get(_key(wish.terms))
        must_look = job_id is None or self._must_sweep(job_id)
        acquired = None if must_look else self._in_server(wish, source, job_id)
        if acquired is not None:
            self._attempts.heartbeat.keep(acquired.token, wish.lease)
            failpoint("acquire.after_commit")
            return acquired
        with transaction(self._engine) as connection:
            one, acquired = self._look(connection, wish, token, sweeps=must_look)
            grows = one.kind is not JobKind.BACKFILL  # which is complete as it was planned
            if acquired is None and grows:
                failpoint("acquire.before_lock")
                lock_planning(connection, one.id)
                acquired = self._next_new(connection, one, wish, source, token)
            if acquired is None:
                acquired = self._once_more(connection, one, wish, source, token)
            if acquired is None:
                planned = highest_planned(connection, one.id, wish.window)
                if planned is not None and grows:
                    source.check_not_restarted(one.name, planned)
                return None
            failpoint("acquire.before_commit")
        # Not before the commit: a renewal that does not see the row takes the lease for lost.
        self._attempts.heartbeat.keep(token, wish.lease)
        failpoint("acquire.after_commit")
        return acquired

    def _in_server(self, wish: Wish, source: Source, job_id: int | None) -> Attempt | None:
        """Try the short way, which needs to know the job and a table in the same database."""
        if job_id is None or wish.window.last_id != MAX_ID:
            return None
        texts = source.cut_texts(self._engine)
        ceiling = None if texts is None else source.known_ceiling()
        if texts is None or ceiling is None:
            return None
        return self._turns.acquire(
            Request(
                job_id=job_id,
                terms=wish.terms,
                limits=wish.limits,
                window_first_id=wish.window.first_id,
                ceiling=ceiling,
                texts=texts,
                config=json.dumps(dict(wish.config)),
                liveness_key=self._attempts.heartbeat.liveness_key,
                run_id=wish.run_id,
                lease=wish.lease,
            )
        )

    def _must_sweep(self, job_id: int) -> bool:
        """Tell one of the threads, now and then, that it should look for dead attempts."""
        with self._mutex:
            now = monotonic()
            if now - self._swept.get(job_id, -inf) < _SECONDS_BETWEEN_SWEEPS:
                return False
            self._swept[job_id] = now
            return True

    def _look(
        self, connection: sa.Connection, wish: Wish, token: UUID, *, sweeps: bool
    ) -> tuple[Job, Attempt | None]:
        """Find the job and start an attempt on a batch of it that waits, if there is one."""
        job_id = self._job_ids.get(_key(wish.terms))
        if job_id is None:
            job_id = self._job_ids[_key(wish.terms)] = job_to_acquire(connection, wish.terms).id
        if sweeps:
            self._sweep(connection, job_id)
        one, acquired = _take(connection, TAKE_FIRST, self._values(job_id, wish, token))
        if one is None or not _meets(one, wish.terms):
            one = job_to_acquire(connection, wish.terms)  # forgotten, or with other terms
            self._job_ids[_key(wish.terms)] = one.id
        if one.paused is not None:
            raise JobPausedError(one.name, one.paused)
        return one, acquired

    def _once_more(
        self, connection: sa.Connection, one: Job, wish: Wish, source: Source, token: UUID
    ) -> Attempt | None:
        """Take what was tried before: as it is, or in halves when it was tried often enough."""
        self._sweep(connection, one.id)
        values = self._values(one.id, wish, token)
        acquired = _take(connection, TAKE_ANY, values)[1]
        if acquired is not None or not one.bisect:
            return acquired
        halves = halve_dead(connection, one.id, wish.window, source)
        return None if halves is None else _take(connection, TAKE_FIRST, values)[1]

    def _values(self, job_id: int, wish: Wish, token: UUID) -> dict[str, Any]:
        return {
            "of_job": job_id,
            "window_first_id": wish.window.first_id,
            "window_last_id": wish.window.last_id,
            "token": token,
            "liveness_key": self._attempts.heartbeat.liveness_key,
            "run_id": wish.run_id,
            "lease": wish.lease,
        }

    def _sweep(self, connection: sa.Connection, job_id: int) -> None:
        """Close attempts whose process is gone; costs more than an acquire."""
        self._swept[job_id] = monotonic()
        close_dead(connection, with_late(job_id))

    def _next_new(
        self, connection: sa.Connection, one: Job, wish: Wish, source: Source, token: UUID
    ) -> Attempt | None:
        for gap in gaps(connection, one.id, wish.window):
            cut = source.next_cut(gap.after_id, gap.ids.last_id, wish.limits)
            if cut is not None:
                failpoint("acquire.cut")
                return self._insert(connection, one, wish, gap, cut, token)
        return None

    def _insert(
        self, connection: sa.Connection, one: Job, wish: Wish, gap: Gap, cut: Cut, token: UUID
    ) -> Attempt:
        run = gap.planned_up_to(cut.id_range.last_id)
        values = self._values(one.id, wish, token) | {
            "job_id": one.id,
            "first_id": cut.id_range.first_id,
            "last_id": cut.id_range.last_id,
            "weight": cut.weight,
            "item_count": cut.count,
            "oversized": cut.weight > wish.limits.max_weight,
            "config": dict(wish.config),
            "id_runs": None if cut.runs is None else [cut.runs.firsts, cut.runs.lasts],
            "run_first_id": run.first_id,
            "run_last_id": run.last_id,
        }
        row = connection.execute(INSERT, values).one()
        swallow(connection, one.id, gap, cut.id_range.last_id)
        acquired = Batch(
            id=row.batch_id,
            job=one.name,
            id_range=cut.id_range,
            weight=cut.weight,
            count=cut.count,
            oversized=cut.weight > wish.limits.max_weight,
        )
        return Attempt(id=row.attempt_id, batch=acquired, number=1, token=token)


def _key(terms: JobTerms) -> tuple[str, ...]:
    # Filters as text, since 1 and true are equal here.
    return terms.name, terms.meta_table, json.dumps(terms.config(), sort_keys=True)


def _meets(one: Job, terms: JobTerms) -> bool:
    return (one.max_attempts, one.bisect) == (terms.max_attempts, terms.bisect)


def _take(
    connection: sa.Connection, statement: sa.Select[Any], values: dict[str, Any]
) -> tuple[Job | None, Attempt | None]:
    row = connection.execute(statement, values).one_or_none()
    if row is None:
        return None, None
    one = Job(
        id=values["of_job"],
        name=row.job_name,
        meta_table=row.meta_table,
        kind=JobKind(row.kind),
        stream=row.stream,
        max_attempts=row.max_attempts,
        bisect=row.bisect,
        paused=None if row.paused_at is None else row.paused_reason or "",
    )
    if row.attempt_id is None:
        return one, None
    taken = batch_of(row)
    return one, Attempt(id=row.attempt_id, batch=taken, number=row.number, token=values["token"])
