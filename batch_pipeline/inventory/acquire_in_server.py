"""Acquire in one round trip, if the meta table is in the inventory's database.

The server-side function plans new batches exactly as `acquire` does. It returns nothing in every
special case, which is then handled by the statements of `acquire`.
"""

import json
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from itertools import zip_longest
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.locks import LockClass
from batch_pipeline.inventory.meta_tables.connection import read_transaction
from batch_pipeline.inventory.meta_tables.reflected_table import CutStatements
from batch_pipeline.model.batch import Attempt, Batch
from batch_pipeline.model.id_range import MAX_ID, IdRange
from batch_pipeline.model.job import JobTerms
from batch_pipeline.model.planning import Limits

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
    "config": pg.JSONB(),
    "tokens": sa.ARRAY(pg.UUID(as_uuid=True)),
    "liveness_key": sa.BigInteger(),
    "run_id": sa.Text(),
    "lease": sa.Interval(),
}
_ACQUIRE = sa.select(
    sa.func.pg_temp.batch_pipeline_acquire(
        *(sa.bindparam(name, type_=kind) for name, kind in _PARAMETER_TYPES.items())
    ).table_valued(
        sa.column("token", pg.UUID(as_uuid=True)),
        *(
            sa.column(name, sa.BigInteger)
            for name in ("attempt_id", "batch_id", "first_id", "last_id", "weight", "item_count")
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSideRequest:
    """A request for the next new batch of a job. Equal requests of several threads are combined.

    `texts` are the statements that cut a batch up to the high watermark.
    """

    job_id: int
    terms: JobTerms
    limits: Limits
    window_first_id: int
    high_watermark: int
    texts: CutStatements
    config: str
    liveness_key: int
    run_id: str
    lease: timedelta


class ServerSideAcquirer:
    """Combines the requests of waiting threads into one statement per job at a time.

    Sixteen threads that queue for the planning lock cost the server sixteen wake-ups; one combined
    statement costs one.
    """

    def __init__(self, engine: sa.Engine, expire_unconfirmed: Callable[[UUID], None]) -> None:
        self._expire_unconfirmed = expire_unconfirmed
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._mutex = threading.Lock()
        self._waiting: dict[ServerSideRequest, list[Future[Attempt | None]]] = {}
        self._job_locks: dict[int, threading.Lock] = {}

    def acquire(self, request: ServerSideRequest) -> Attempt | None:
        """Acquire the next new batch of a job; None in every special case."""
        future: Future[Attempt | None] = Future()
        with self._mutex:
            self._waiting.setdefault(request, []).append(future)
            job_lock = self._job_locks.setdefault(request.job_id, threading.Lock())
        with job_lock:
            if not future.done():
                with self._mutex:
                    futures = self._waiting.pop(request)
                self._acquire_for_all(request, futures)
        return future.result()

    def _acquire_for_all(
        self, request: ServerSideRequest, futures: list[Future[Attempt | None]]
    ) -> None:
        tokens = [uuid4() for _ in futures]
        try:
            acquired = _acquire(self._engine, request, tokens)
        except Exception as error:  # noqa: BLE001 - each of the threads raises it
            for token, future in zip(tokens, futures, strict=True):
                self._expire_unconfirmed(
                    token
                )  # the commit may have succeeded and only its reply been lost
                future.set_exception(error)
            return
        except BaseException:  # this thread is interrupted; the others acquire without it
            for token, future in zip(tokens, futures, strict=True):
                self._expire_unconfirmed(token)
                future.set_result(None)
            raise
        for future, attempt in zip_longest(futures, acquired):
            future.set_result(attempt)


def _acquire(engine: sa.Engine, request: ServerSideRequest, tokens: list[UUID]) -> list[Attempt]:
    values = {
        "planning": int(LockClass.PLAN),
        "of_job": request.job_id,
        "attempts_allowed": request.terms.max_attempts,
        "is_bisected": request.terms.bisect,
        "window_first_id": request.window_first_id,
        "highest_id": request.high_watermark,
        "weight_allowed": request.limits.max_weight,
        "count_allowed": min(request.limits.max_count, MAX_ID),
        "cut": request.texts.cut,
        "runs": request.texts.runs,
        "config": json.loads(request.config),
        "tokens": tokens,
        "liveness_key": request.liveness_key,
        "run_id": request.run_id,
        "lease": request.lease,
    }
    with transaction(engine) as connection:
        if _FUNCTION_NAME not in connection.info:
            text = resources.files(__package__).joinpath("acquire_in_server.sql").read_text()
            connection.exec_driver_sql(text)
            connection.info[_FUNCTION_NAME] = True
        rows = connection.execute(_ACQUIRE, values).all()
    return [_attempt(row, request) for row in rows]


def _attempt(row: sa.Row[Any], request: ServerSideRequest) -> Attempt:
    acquired = Batch(
        id=row.batch_id,
        job=request.terms.name,
        id_range=IdRange(first_id=row.first_id, last_id=row.last_id),
        weight=row.weight,
        count=row.item_count,
        oversized=row.weight > request.limits.max_weight,
    )
    return Attempt(id=row.attempt_id, batch=acquired, number=1, token=row.token)


def is_same_database(inventory: sa.Engine, meta: sa.Engine) -> bool:
    """Return whether two engines are connected to one database, by an advisory lock."""
    if inventory is meta:
        return True
    if meta.dialect.name != "postgresql":
        return False
    key = secrets.randbits(31)
    is_locked = sa.text(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' "
        "AND database = (SELECT oid FROM pg_catalog.pg_database "
        "WHERE datname = current_database()) AND classid = :purpose AND objid = :key)"
    )
    names = {"purpose": int(LockClass.SAME_DATABASE), "key": key}
    with read_transaction(meta) as meta_connection, transaction(inventory) as inventory_connection:
        meta_connection.execute(
            sa.text("SELECT pg_catalog.pg_advisory_xact_lock(:purpose, :key)"), names
        )
        return bool(inventory_connection.execute(is_locked, names).scalar_one())
