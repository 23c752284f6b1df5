"""Acquiring: the next batch of a job and an attempt on it, in one transaction of the inventory.

What an acquire reads of the meta table is the batch and one row more. Work that waits comes first,
then the next new batch, then failed batches that may be tried again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, Protocol
from uuid import UUID, uuid4

import sqlalchemy as sa

from batch_pipeline.domain.batch import Attempt, AttemptStatus, Batch, BatchState
from batch_pipeline.domain.errors import JobPausedError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.job import Job, JobKind, JobTerms
from batch_pipeline.domain.planning import Cut, Limits
from batch_pipeline.inventory.attempts import FencedAttempts, close_dead
from batch_pipeline.inventory.batches import batch_of
from batch_pipeline.inventory.bookmarks import (
    EVERYWHERE,
    REACH,
    Gap,
    gaps,
    highest_planned,
    swallow,
)
from batch_pipeline.inventory.engine import transaction
from batch_pipeline.inventory.jobs import open_job
from batch_pipeline.inventory.locks import lock_planning
from batch_pipeline.inventory.tables import UNFINISHED, attempt, batch, batch_state, job

_SECONDS_BETWEEN_SWEEPS = 5.0


class Source(Protocol):
    """The meta table as acquiring needs it."""

    def next_cut(self, after_id: int | None, last_id: int, limits: Limits) -> Cut | None:
        """Cut the next batch above an id (None: from the first row on), up to one and the ceiling.

        None when no item is there below which no row can still appear.
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
        self._attempts = attempts
        self._swept: dict[int, float] = {}

    def acquire(self, wish: Wish, source: Source) -> Attempt | None:
        """Start an attempt on the next batch, None when nothing is left.

        Who acquires owns the attempt and must end it; its lease is kept alive meanwhile. When the
        server crashes right afterwards, the acquisition may be as if it had never been: then the
        attempt cannot be published, and the batch is handed out again.

        Raises:
            JobChangedError: the job has another filter.
            JobPausedError: the job is paused.
            MetaTableRestartedError: nothing is left since the table's ids start again.
        """
        token = uuid4()
        self._attempts.heartbeat.hold()
        with transaction(self._engine) as connection:
            connection.execute(_WITHOUT_FLUSH)
            one = open_job(connection, wish.terms)
            if one.paused is not None:
                raise JobPausedError(one.name, one.paused)
            self._sweep(connection, one)
            acquired = self._waiting(connection, one, wish, token, _FIRST)
            if acquired is None:
                failpoint("acquire.before_lock")
                lock_planning(connection, one.id)
                acquired = self._next_new(connection, one, wish, source, token)
            if acquired is None:
                self._sweep(connection, one, at_once=True)
                acquired = self._waiting(connection, one, wish, token, _LAST)
            if acquired is None:
                planned = highest_planned(connection, one.id, wish.window)
                if planned is not None:
                    source.check_not_restarted(one.name, planned)
                return None
            self._attempts.heartbeat.keep(token, wish.lease)
            failpoint("acquire.before_commit")
        failpoint("acquire.after_commit")
        return acquired

    def _sweep(self, connection: sa.Connection, one: Job, *, at_once: bool = False) -> None:
        """Close attempts whose process is gone, now and then: it costs more than an acquire."""
        now = monotonic()
        if at_once or now - self._swept.get(one.id, -1e9) > _SECONDS_BETWEEN_SWEEPS:
            self._swept[one.id] = now
            close_dead(connection, _of_job_or_late(one))

    def _waiting(
        self,
        connection: sa.Connection,
        one: Job,
        wish: Wish,
        token: UUID,
        states: sa.Select[Any],
    ) -> Attempt | None:
        bounds = {
            "job_id": one.id,
            "first_id": wish.window.first_id,
            "last_id": wish.window.last_id,
        }
        row = connection.execute(states, bounds).one_or_none()
        if row is None:
            return None
        return self._attempts.start(
            connection, batch_of(row), token, run_id=wish.run_id, lease=wish.lease
        )

    def _next_new(
        self,
        connection: sa.Connection,
        one: Job,
        wish: Wish,
        source: Source,
        token: UUID,
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
        values = {
            "job_id": one.id,
            "first_id": cut.id_range.first_id,
            "last_id": cut.id_range.last_id,
            "weight": cut.weight,
            "item_count": cut.count,
            "oversized": cut.weight > wish.limits.max_weight,
            "config": dict(wish.config),
            "token": token,
            "liveness_key": self._attempts.heartbeat.liveness_key,
            "run_id": wish.run_id,
            "lease": wish.lease,
            "run_first_id": run.first_id,
            "run_last_id": run.last_id,
        }
        row = connection.execute(_INSERT, values).one()
        swallow(connection, one.id, gap, cut.id_range.last_id)
        acquired = Batch(
            id=row.batch_id,
            job=one.name,
            id_range=cut.id_range,
            weight=cut.weight,
            count=cut.count,
            oversized=cut.weight > wish.limits.max_weight,
        )
        return Attempt(id=row.id, batch=acquired, number=1, token=token)


# An acquisition that a crash of the server takes back harms nobody: its token is unknown then.
_WITHOUT_FLUSH = sa.text("SET LOCAL synchronous_commit = off")


def _of_job_or_late(one: Job) -> sa.ColumnElement[bool]:
    return sa.or_(
        job.c.id == one.id, sa.and_(job.c.parent_id == one.id, job.c.kind == JobKind.LATE)
    )


def _waiting_in(*states: BatchState) -> sa.Select[Any]:
    """Find the first batch in some states that nobody else is just taking, and lock its state."""
    job_id = sa.bindparam("job_id", type_=sa.Integer)
    late = sa.select(job.c.id).where(job.c.parent_id == job_id, job.c.kind == JobKind.LATE)
    mine = sa.or_(batch_state.c.job_id == job_id, batch_state.c.job_id.in_(late))
    return (
        sa.select(batch, job.c.name)
        .select_from(batch_state)
        .join(batch, batch.c.id == batch_state.c.batch_id)
        .join(job, job.c.id == batch.c.job_id)
        .where(
            mine,
            sa.text(UNFINISHED),  # word for word as the partial index has it
            batch_state.c.state.in_([state.value for state in states]),
            batch.c.first_id >= sa.bindparam("first_id", type_=sa.BigInteger),
            batch.c.last_id <= sa.bindparam("last_id", type_=sa.BigInteger),
        )
        .order_by(batch_state.c.batch_id)
        .limit(1)
        .with_for_update(of=batch_state, skip_locked=True)
    )


_FIRST = _waiting_in(BatchState.PLANNED, BatchState.INTERRUPTED)
_LAST = _waiting_in(BatchState.PLANNED, BatchState.INTERRUPTED, BatchState.FAILED)


def _insert_all() -> sa.Select[Any]:
    """Write batch, state, attempt and bookmark in one statement."""
    names = ("job_id", "first_id", "last_id", "weight", "item_count", "oversized", "config")
    new = (
        sa.insert(batch)
        .values({name: sa.bindparam(name, type_=batch.c[name].type) for name in names})
        .returning(batch.c.id)
        .cte("new")
    )
    columns = ("batch_id", "job_id", "state", "attempts")
    running = sa.literal(BatchState.RUNNING.value)
    state = sa.select(new.c.id, sa.bindparam("job_id", type_=sa.Integer), running, sa.literal(1))
    started = sa.insert(batch_state).from_select(columns, state).cte("started")
    now = sa.func.clock_timestamp()
    facts = {
        "batch_id": new.c.id,
        "number": sa.literal(1),
        "token": sa.bindparam("token", type_=attempt.c.token.type),
        "liveness_key": sa.bindparam("liveness_key", type_=sa.BigInteger),
        "status": sa.literal(AttemptStatus.RUNNING.value),
        "run_id": sa.bindparam("run_id", type_=sa.Text),
        "lease_until": now + sa.bindparam("lease", type_=sa.Interval),
    }
    tried = (
        sa.insert(attempt)
        .from_select(list(facts), sa.select(*facts.values()))
        .returning(attempt.c.id, attempt.c.batch_id)
        .cte("tried")
    )
    run: dict[str, Any] = {
        "first_id": sa.bindparam("run_first_id", type_=sa.BigInteger),
        "last_id": sa.bindparam("run_last_id", type_=sa.BigInteger),
    }
    reached = REACH.values(run).cte("reached")
    return sa.select(tried.c.id, tried.c.batch_id).add_cte(started, reached)


_INSERT = _insert_all()
