"""Acquiring in one round trip, where the meta table lives in the inventory's own database.

A shorter way to what `acquire` does, never another one: whatever is out of the ordinary is left to
the statements there.
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

from batch_pipeline.domain.batch import Attempt, Batch
from batch_pipeline.domain.id_range import MAX_ID, IdRange
from batch_pipeline.domain.job import JobTerms
from batch_pipeline.domain.planning import Limits
from batch_pipeline.inventory.locks import LockClass
from batch_pipeline.inventory.meta.meta_engine import reading
from batch_pipeline.inventory.meta.reflected_table import CutTexts
from batch_pipeline.inventory.server.engine import transaction

_DEFINED = "batch_pipeline_acquire"
_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
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
        *(sa.bindparam(name, type_=kind) for name, kind in _TYPES.items())
    ).table_valued(
        sa.column("token", pg.UUID(as_uuid=True)),
        *(
            sa.column(name, sa.BigInteger)
            for name in ("attempt_id", "batch_id", "first_id", "last_id", "weight", "item_count")
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """New batches of a job, all of one kind; those of several threads are sent together.

    `texts` are the statements that cut a batch up to the ceiling.
    """

    job_id: int
    terms: JobTerms
    limits: Limits
    window_first_id: int
    ceiling: int
    texts: CutTexts
    config: str
    liveness_key: int
    run_id: str
    lease: timedelta


class Turns:
    """Lets one thread at a time ask the server, for itself and for all that wait meanwhile.

    Sixteen threads that queue for the planning lock cost the server sixteen wake-ups; asked for
    together, their batches cost one.
    """

    def __init__(self, engine: sa.Engine, disown: Callable[[UUID], None]) -> None:
        self._disown = disown
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._mutex = threading.Lock()
        self._waiting: dict[Request, list[Future[Attempt | None]]] = {}
        self._turns: dict[int, threading.Lock] = {}

    def acquire(self, request: Request) -> Attempt | None:
        """Acquire the next new batch of a job, None when that is not ordinary."""
        mine: Future[Attempt | None] = Future()
        with self._mutex:
            self._waiting.setdefault(request, []).append(mine)
            turn = self._turns.setdefault(request.job_id, threading.Lock())
        with turn:
            if not mine.done():
                with self._mutex:
                    together = self._waiting.pop(request)
                self._answer(request, together)
        return mine.result()

    def _answer(self, request: Request, together: list[Future[Attempt | None]]) -> None:
        tokens = [uuid4() for _ in together]
        try:
            acquired = _acquire(self._engine, request, tokens)
        except Exception as error:  # noqa: BLE001 - each of the threads raises it
            for token, one in zip(tokens, together, strict=True):
                self._disown(token)  # written or not: perhaps only the reply was lost
                one.set_exception(error)
            return
        except BaseException:  # this thread is interrupted; the others ask for themselves
            for token, one in zip(tokens, together, strict=True):
                self._disown(token)
                one.set_result(None)
            raise
        for one, attempt in zip_longest(together, acquired):
            one.set_result(attempt)


def _acquire(engine: sa.Engine, request: Request, tokens: list[UUID]) -> list[Attempt]:
    values = {
        "planning": int(LockClass.PLAN),
        "of_job": request.job_id,
        "attempts_allowed": request.terms.max_attempts,
        "is_bisected": request.terms.bisect,
        "window_first_id": request.window_first_id,
        "highest_id": request.ceiling,
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
        if _DEFINED not in connection.info:
            text = resources.files(__package__).joinpath("acquire_in_server.sql").read_text()
            connection.exec_driver_sql(text)
            connection.info[_DEFINED] = True
        rows = connection.execute(_ACQUIRE, values).all()
    return [_attempt(row, request) for row in rows]


def _attempt(row: sa.Row[Any], request: Request) -> Attempt:
    acquired = Batch(
        id=row.batch_id,
        job=request.terms.name,
        id_range=IdRange(first_id=row.first_id, last_id=row.last_id),
        weight=row.weight,
        count=row.item_count,
        oversized=row.weight > request.limits.max_weight,
    )
    return Attempt(id=row.attempt_id, batch=acquired, number=1, token=row.token)


def share_a_database(inventory: sa.Engine, meta: sa.Engine) -> bool:
    """Tell whether two engines reach one database: a lock taken by one is seen by the other."""
    if inventory is meta:
        return True
    if meta.dialect.name != "postgresql":
        return False
    key = secrets.randbits(31)
    held = sa.text(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' "
        "AND database = (SELECT oid FROM pg_catalog.pg_database "
        "WHERE datname = current_database()) AND classid = :purpose AND objid = :key)"
    )
    names = {"purpose": int(LockClass.SAME_DATABASE), "key": key}
    with reading(meta) as one, transaction(inventory) as other:
        one.execute(sa.text("SELECT pg_catalog.pg_advisory_xact_lock(:purpose, :key)"), names)
        return bool(other.execute(held, names).scalar_one())
