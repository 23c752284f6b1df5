"""Acquire batches: take a waiting batch, or plan the next one, and start an attempt on it.

If the meta table is in the inventory's database, `Acquirer` first tries a server-side function,
which plans and acquires in one round trip and returns nothing in every special case. Otherwise it
executes the statements built here: each takes or inserts a batch and starts its attempt in one
round trip.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import resources
from itertools import zip_longest
from math import inf
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.inventory.attempts import FencedAttempts, close_dead
from batch_pipeline.inventory.batch_states import batch_from_row
from batch_pipeline.inventory.connection import (
    LockClass,
    lock_planning,
    named_statement,
    transaction,
    translate_errors,
)
from batch_pipeline.inventory.jobs import (
    ALL_IDS,
    Gap,
    gaps,
    highest_planned,
    job_from_row,
    job_to_acquire,
    job_with_late_arrivals,
    merge_with_next_run,
)
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.inventory.planning import split_first_dead
from batch_pipeline.model.batch import MAX_ID, Attempt, Batch, IdRange
from batch_pipeline.model.errors import JobPausedError
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.job import Job, JobKind, JobTerms
from batch_pipeline.model.planning import Cut, Limits

_FUNCTION_NAME = "batch_pipeline_acquire"
_PARAMETER_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "planning": sa.Integer(),
    "of_job": sa.Integer(),
    "attempts_allowed": sa.Integer(),
    "is_bisected": sa.Boolean(),
    "window_first_id": sa.BigInteger(),
    "highest_id": sa.BigInteger(),
    "weight_allowed": sa.BigInteger(),
    "count_allowed": sa.BigInteger(),
    "cut": sa.Text(),
    "runs": sa.Text(),
    "config": sa.Text(),
    "tokens": sa.ARRAY(pg.UUID(as_uuid=True)),
    "liveness_key": sa.BigInteger(),
    "run_id": sa.Text(),
    "lease": sa.Interval(),
}
_RETURNED = (
    "attempt_id",
    "batch_id",
    "first_id",
    "last_id",
    "weight",
    "item_count",
    "key_digits",
)
_ACQUIRE = sa.select(
    sa.func.pg_temp.batch_pipeline_acquire(
        *(sa.bindparam(name, type_=kind) for name, kind in _PARAMETER_TYPES.items())
    ).table_valued(
        sa.column("token", pg.UUID(as_uuid=True)),
        *(sa.column(name, sa.BigInteger) for name in _RETURNED),
    )
)


class ServerSideAcquirer:
    """Combines the requests of waiting threads into one statement per job at a time.

    Sixteen threads that queue for the planning lock cost the server sixteen wake-ups; one combined
    statement costs one.
    """

    def __init__(self, engine: sa.Engine, expire_unconfirmed: Callable[[UUID], None]) -> None:
        self._expire_unconfirmed = expire_unconfirmed
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._mutex = threading.Lock()
        self._waiting: dict[UUID, tuple[tuple[Any, ...], Future[Attempt | None]]] = {}
        self._job_locks: dict[int, threading.Lock] = {}

    def acquire(self, job: str, token: UUID, values: Mapping[str, Any]) -> Attempt | None:
        """Acquire the next new batch of a job; None in every special case.

        `values` are the hashable parameters of the function; requests with equal ones are combined.
        After an error the caller must expire the token.
        """
        future: Future[Attempt | None] = Future()
        request = (job, *values.values())
        try:
            with self._mutex:
                self._waiting[token] = request, future
                job_lock = self._job_locks.setdefault(values["of_job"], threading.Lock())
            with job_lock:
                if not future.done():
                    self._acquire_for_all(job, request, values)
            return future.result()
        except BaseException:
            # If this thread is interrupted, another one may be acquiring a batch for it.
            future.add_done_callback(lambda _: self._expire_unconfirmed(token))
            raise
        finally:
            with self._mutex:
                self._waiting.pop(token, None)

    def _acquire_for_all(
        self, job: str, request: tuple[Any, ...], values: Mapping[str, Any]
    ) -> None:
        with self._mutex:
            futures = {
                token: future
                for token, (other, future) in self._waiting.items()
                if other == request and not future.done()
            }
        try:
            tokens = list(futures)
            parameters = {**values, "planning": int(LockClass.PLAN), "tokens": tokens}
            try:
                rows = self._execute(parameters)
            except exc.DBAPIError:  # such as a table that has changed: the statements translate it
                rows = []
            for future, row in zip_longest(futures.values(), rows):
                future.set_result(None if row is None else _started(row, job, values))
        except BaseException as error:
            for token, future in futures.items():
                if isinstance(error, Exception):
                    future.set_exception(error)  # each of the threads raises it
                elif not future.done():  # this thread is interrupted, the others continue
                    self._expire_unconfirmed(token)
                    future.set_result(None)
            if not isinstance(error, Exception):
                raise

    def _execute(self, values: Mapping[str, Any]) -> Sequence[sa.Row[Any]]:
        with transaction(self._engine) as connection:
            if _FUNCTION_NAME not in connection.info:
                text = resources.files(__package__).joinpath("acquire_in_server.sql").read_text()
                connection.exec_driver_sql(text)
                connection.info[_FUNCTION_NAME] = True
            return connection.execute(_ACQUIRE, values).all()


def _started(row: sa.Row[Any], job: str, values: Mapping[str, Any]) -> Attempt:
    acquired = Batch(
        id=row.batch_id,
        job=job,
        id_range=IdRange(first_id=row.first_id, last_id=row.last_id),
        weight=row.weight,
        count=row.item_count,
        oversized=row.weight > values["weight_allowed"],
        key_digits=row.key_digits,
    )
    return Attempt(id=row.attempt_id, batch=acquired, number=1, token=row.token)


_SWEEP_INTERVAL_SECONDS = 5.0
_TAKE_FIRST = "'planned', 'interrupted'"
_TAKE_ANY = "'planned', 'interrupted', 'failed'"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireRequest:
    """A request for the next batch of a job, within a window of ids.

    `run_id` is stored with the attempt and `config` with the batch.
    """

    terms: JobTerms
    limits: Limits
    config: Mapping[str, Any]
    window: IdRange = ALL_IDS
    run_id: str = ""
    lease: timedelta = timedelta(minutes=5)


class Acquirer:
    """Starts attempts on batches of all jobs. Safe for any number of threads and processes."""

    def __init__(self, engine: sa.Engine, attempts: FencedAttempts) -> None:
        self._engine = engine
        self._server_side = ServerSideAcquirer(engine, attempts.heartbeat.expire_unconfirmed)
        self._attempts = attempts
        self._job_ids: dict[tuple[str, ...], int] = {}
        self._swept: dict[int, float] = {}
        self._mutex = threading.Lock()

    def acquire(self, request: AcquireRequest, source: MetaSource) -> Attempt | None:
        """Start an attempt on the next batch; None if nothing is left.

        The caller owns the attempt and must end it; its lease is renewed until then. If the server
        crashes right afterwards, the acquisition may be lost: the attempt then cannot be
        published, and the batch is acquired again.

        Raises:
            JobChangedError: the job has another filter, other columns or another database.
            JobPausedError: the job is paused.
            MetaTableRestartedError: nothing is left because the table's ids restart.
        """
        with translate_errors(self._engine):
            self._attempts.heartbeat.take_lock()
        # Two: if the thread that acquires for others is interrupted, their first may be committed.
        tokens = uuid4(), uuid4()
        try:
            job_id = self._job_ids.get(_key(request.terms))
            sweeps = job_id is None or self._is_sweep_due(job_id)
            acquired = None
            if job_id is not None and not sweeps:
                acquired = self._in_server(request, source, job_id, tokens[0])
            if acquired is None:
                acquired = self._in_transaction(request, source, tokens[1], sweeps=sweeps)
            if acquired is not None:
                # Not before the commit: a renewal that does not see the row considers it lost.
                self._attempts.heartbeat.renew(acquired.token, request.lease)
                failpoint("acquire.after_commit")
            return acquired
        except BaseException as error:
            # The commit may have succeeded even though its reply was lost.
            self._attempts.heartbeat.expire_unconfirmed(*tokens, error=error)
            raise

    def _in_transaction(
        self, request: AcquireRequest, source: MetaSource, token: UUID, *, sweeps: bool
    ) -> Attempt | None:
        with transaction(self._engine) as connection:
            job_record, acquired = self._take_first(connection, request, token, sweeps=sweeps)
            is_growing = job_record.kind is not JobKind.BACKFILL  # a backfill is fully planned
            if acquired is None and is_growing:
                failpoint("acquire.before_lock")
                lock_planning(connection, job_record.id)
                acquired = self._plan_next(connection, job_record, request, source, token)
            if acquired is None:
                acquired = self._take_retryable(connection, job_record, request, source, token)
            if acquired is None:
                planned = highest_planned(connection, job_record.id, request.window)
                if planned is not None and is_growing:
                    source.check_not_restarted(job_record.name, planned)
                return None
            failpoint("acquire.before_commit")
        return acquired

    def _in_server(
        self, request: AcquireRequest, source: MetaSource, job_id: int, token: UUID
    ) -> Attempt | None:
        """Acquire in one round trip if the table is in the inventory's database."""
        if request.window.last_id != MAX_ID:
            return None
        texts = source.cut_statements(self._engine)
        high_watermark = None if texts is None else source.known_high_watermark()
        if texts is None or high_watermark is None:
            return None
        values = {
            "of_job": job_id,
            "attempts_allowed": request.terms.max_attempts,
            "is_bisected": request.terms.bisect,
            "window_first_id": request.window.first_id,
            "highest_id": high_watermark,
            "weight_allowed": request.limits.max_weight,
            "count_allowed": min(request.limits.max_count, MAX_ID),
            "cut": texts.cut,
            "runs": texts.runs,
            "config": json.dumps(dict(request.config)),
            "liveness_key": self._attempts.heartbeat.liveness_key,
            "run_id": request.run_id,
            "lease": request.lease,
        }
        return self._server_side.acquire(request.terms.name, token, values)

    def _is_sweep_due(self, job_id: int) -> bool:
        """Return True to one thread per interval, which then closes dead attempts."""
        with self._mutex:
            now = monotonic()
            if now - self._swept.get(job_id, -inf) < _SWEEP_INTERVAL_SECONDS:
                return False
            self._swept[job_id] = now
            return True

    def _take_first(
        self, connection: sa.Connection, request: AcquireRequest, token: UUID, *, sweeps: bool
    ) -> tuple[Job, Attempt | None]:
        """Find the job, and start an attempt on its first waiting batch if there is one."""
        key = _key(request.terms)
        job_id = self._job_ids.get(key)
        if job_id is None:
            job_id = self._job_ids[key] = job_to_acquire(connection, request.terms).id
        if sweeps:
            self._sweep(connection, job_id)
        job_record, acquired = _take(connection, _TAKE_FIRST, self._values(job_id, request, token))
        limits = (request.terms.max_attempts, request.terms.bisect)
        if job_record is None or (job_record.max_attempts, job_record.bisect) != limits:
            job_record = job_to_acquire(connection, request.terms)  # deleted, or with other limits
            self._job_ids[key] = job_record.id
        if job_record.paused is not None:
            raise JobPausedError(job_record.name, job_record.paused)
        return job_record, acquired

    def _take_retryable(
        self,
        connection: sa.Connection,
        job_record: Job,
        request: AcquireRequest,
        source: MetaSource,
        token: UUID,
    ) -> Attempt | None:
        """Take a failed batch, or split a dead one and take its first half."""
        self._sweep(connection, job_record.id)
        values = self._values(job_record.id, request, token)
        acquired = _take(connection, _TAKE_ANY, values)[1]
        if acquired is not None or not job_record.bisect:
            return acquired
        halves = split_first_dead(connection, job_record.id, request.window, source.table)
        return None if halves is None else _take(connection, _TAKE_FIRST, values)[1]

    def _values(self, job_id: int, request: AcquireRequest, token: UUID) -> dict[str, Any]:
        return {
            "of_job": job_id,
            "window_first_id": request.window.first_id,
            "window_last_id": request.window.last_id,
            "token": token,
            "liveness_key": self._attempts.heartbeat.liveness_key,
            "run_id": request.run_id,
            "lease": request.lease,
        }

    def _sweep(self, connection: sa.Connection, job_id: int) -> None:
        """Close attempts whose process is gone. This costs more than acquiring a batch."""
        self._swept[job_id] = monotonic()
        close_dead(connection, job_with_late_arrivals(job_id))

    def _plan_next(
        self,
        connection: sa.Connection,
        job_record: Job,
        request: AcquireRequest,
        source: MetaSource,
        token: UUID,
    ) -> Attempt | None:
        for gap in gaps(connection, job_record.id, request.window):
            cut = source.next_cut(gap.after_id, gap.ids.last_id, request.limits)
            if cut is not None:
                failpoint("acquire.cut")
                return self._insert(connection, job_record, request, gap, cut, token)
        return None

    def _insert(
        self,
        connection: sa.Connection,
        job_record: Job,
        request: AcquireRequest,
        gap: Gap,
        cut: Cut,
        token: UUID,
    ) -> Attempt:
        run = gap.planned_up_to(cut.id_range.last_id)
        values = self._values(job_record.id, request, token) | {
            "first_id": cut.id_range.first_id,
            "last_id": cut.id_range.last_id,
            "weight": cut.weight,
            "item_count": cut.count,
            "oversized": cut.weight > request.limits.max_weight,
            "config": dict(request.config),
            "id_runs": None if cut.runs is None else [cut.runs.firsts, cut.runs.lasts],
            "run_first_id": run.first_id,
            "run_last_id": run.last_id,
        }
        row = connection.execute(named_statement("insert_batch", "config"), values).one()
        merge_with_next_run(connection, job_record.id, gap, cut.id_range.last_id)
        acquired = Batch(
            id=row.batch_id,
            job=job_record.name,
            id_range=cut.id_range,
            weight=cut.weight,
            count=cut.count,
            oversized=values["oversized"],
            key_digits=job_record.key_digits,
        )
        return Attempt(id=row.attempt_id, batch=acquired, number=1, token=token)


def _key(terms: JobTerms) -> tuple[str, ...]:
    # Filters as text, because 1 == True in Python.
    return terms.name, terms.meta_table, json.dumps(terms.config(), sort_keys=True)


def _take(
    connection: sa.Connection, states: str, values: dict[str, Any]
) -> tuple[Job | None, Attempt | None]:
    """Return a job, None if it does not exist, and an attempt on its first batch in some states."""
    statement = named_statement("take_waiting", STATES=states)
    row = connection.execute(statement, values).one_or_none()
    if row is None:
        return None, None
    # The row's `key_digits` is that of the batch, which may be missing or of the late-arrivals job.
    job_record = replace(
        job_from_row(row, values["of_job"], row.job_name), key_digits=row.job_key_digits
    )
    if row.attempt_id is None:
        return job_record, None
    taken, token = batch_from_row(row), values["token"]
    return job_record, Attempt(id=row.attempt_id, batch=taken, number=row.number, token=token)
