"""What a person does with jobs: look at them, pause, resume, cancel, try again, split.

Every call is one transaction. Running attempts are ended by fencing alone: their workers find out
at the next renewal of the lease or when they publish. What is published is never touched here.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, Batch, BatchState, BatchStatus
from batch_pipeline.domain.errors import InvalidValueError, JobPausedError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.job import Job, JobReport, check_storable
from batch_pipeline.inventory.jobs.jobs import is_of_stream, job_of, of_stream, own_job, with_late
from batch_pipeline.inventory.jobs.names import find_batch, find_job
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import UNFINISHED, attempt, batch, batch_state, job
from batch_pipeline.inventory.work import batch_states
from batch_pipeline.inventory.work.attempts import close
from batch_pipeline.inventory.work.batches import status_of, status_query
from batch_pipeline.inventory.work.bisect import BadItem, ItemTable, bad_items, bisect

RETRIED = (BatchState.FAILED, BatchState.DEAD, BatchState.CANCELLED)
_RETRIABLE = {*RETRIED, BatchState.INTERRUPTED}
_REASON = "cancelled by a person"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """How many batches were called off, and how many of them were being tried."""

    batches: int
    attempts: int


@dataclass(frozen=True, slots=True)
class JobControl:
    """All jobs. A job is named by its name, and by its meta table where others share the name.

    Batches are named by number, partition key or `first..last`. What is done to a job is done to
    the job of its late arrivals too, except for pausing, which works on both by itself.
    """

    engine: sa.Engine

    def jobs(self) -> list[JobReport]:
        """Read all jobs in the order of their names, with their batches by state."""
        facts = (
            batch_state.c.job_id,
            batch_state.c.state,
            sa.func.count().label("batches"),
            sa.func.sum(batch.c.item_count).label("items"),
            sa.func.sum(batch.c.weight).label("weight"),
        )
        states = (
            sa.select(*facts)
            .join(batch, batch.c.id == batch_state.c.batch_id)
            .group_by(batch_state.c.job_id, batch_state.c.state)
        )
        with transaction(self.engine) as connection:
            rows = connection.execute(_JOBS).all()
            counts: dict[int, list[sa.Row[Any]]] = defaultdict(list)
            for count in connection.execute(states):
                counts[count.job_id].append(count)
        return [_report(row, counts[row.id]) for row in rows]

    def find(self, name: str, meta_table: str | None = None) -> Job:
        """Find a job.

        Raises:
            UnknownJobError: there is none.
            AmbiguousJobError: several meta tables have one, and none was named.
        """
        with transaction(self.engine) as connection:
            return find_job(connection, name, meta_table)

    def unfinished(self, name: str, meta_table: str | None = None) -> list[BatchStatus]:
        """Read the batches of a job that are neither published nor split, in id order."""
        finished = (BatchState.PUBLISHED.value, BatchState.SUPERSEDED.value)
        query = status_query().where(batch_state.c.state.not_in(finished))
        with transaction(self.engine) as connection:
            one = find_job(connection, name, meta_table)
            return [status_of(row) for row in connection.execute(query.where(with_late(one.id)))]

    def bad_items(
        self, name: str, table: ItemTable, meta_table: str | None = None
    ) -> list[BadItem]:
        """Find the items of a job that fail alone: its dead batches of one item."""
        return bad_items(self.engine, self.find(name, meta_table).id, table)

    def paused(self, stream: str) -> str | None:
        """Give the reason, maybe empty, for which the job of a stream is paused; None if not."""
        query = sa.select(sa.func.coalesce(job.c.paused_reason, ""))
        with transaction(self.engine) as connection:
            is_paused = sa.and_(of_stream(stream), job.c.paused_at.is_not(None))
            reason: str | None = connection.execute(query.where(is_paused)).scalar_one_or_none()
        return reason

    def called_off(self, one: Batch) -> str | None:
        """Tell why a batch is not to be started now; None if it may be."""
        query = (
            sa.select(
                job.c.paused_at,
                job.c.paused_reason,
                own_job.c.name.label("stream_job"),
                own_job.c.paused_at.label("stream_paused_at"),
                own_job.c.paused_reason.label("stream_paused_reason"),
                batch_state.c.state,
            )
            .join(job, job.c.id == batch_state.c.job_id)
            .outerjoin(own_job, is_of_stream)
            .where(batch_state.c.batch_id == one.id)
        )
        with transaction(self.engine) as connection:
            row = connection.execute(query).one()
        if row.paused_at is not None:
            return str(JobPausedError(one.job, row.paused_reason or ""))
        if row.stream_paused_at is not None:
            return str(JobPausedError(row.stream_job, row.stream_paused_reason or ""))
        return "it was cancelled" if row.state == BatchState.CANCELLED else None

    def check_not_paused(self, stream: str) -> None:
        """Check that batches of a stream may be planned and launched.

        Raises:
            JobPausedError: somebody paused its job.
        """
        reason = self.paused(stream)
        if reason is not None:
            raise JobPausedError(stream, reason)

    def pause(self, name: str, reason: str = "", meta_table: str | None = None) -> Job:
        """Let nothing of a job be planned or handed out any more; what is running goes on."""
        why = check_storable("reason", reason.strip())
        return self._pause(name, meta_table, sa.func.clock_timestamp(), why or None)

    def resume(self, name: str, meta_table: str | None = None) -> Job:
        """Let a paused job go on."""
        return self._pause(name, meta_table, sa.null(), None)

    def cancel(self, name: str, meta_table: str | None = None) -> Cancelled:
        """Call off every batch of a job that is not published, also those that are being tried."""
        with transaction(self.engine) as connection:
            one = find_job(connection, name, meta_table)
            cancelled = _cancel(connection, with_late(one.id))
            failpoint("cancel.before_commit")
        failpoint("cancel.after_commit")
        return cancelled

    def cancel_batch(self, name: str, which: int | str, meta_table: str | None = None) -> Cancelled:
        """Call off one batch; when it was published before, only the attempt that is running.

        Raises:
            UnknownJobBatchError: the job has none of this name or number.
        """
        with transaction(self.engine) as connection:
            one = find_batch(connection, find_job(connection, name, meta_table), which)
            cancelled = _cancel(connection, batch_state.c.batch_id == one.id)
            failpoint("cancel.before_commit")
        failpoint("cancel.after_commit")
        return cancelled

    def retry(
        self,
        name: str,
        *,
        states: Iterable[BatchState] = RETRIED,
        batches: Sequence[int | str] | None = None,
        meta_table: str | None = None,
    ) -> int:
        """Let batches in some states, or some of these batches, be tried again; gives their number.

        Their attempts count anew, and they are handed out before new ones.

        Raises:
            InvalidValueError: a state is not one that a batch can be tried again from.
            UnknownJobBatchError: the job has no batch of such a name or number.
        """
        wanted = _checked(states)
        with transaction(self.engine) as connection:
            one = find_job(connection, name, meta_table)
            chosen = sa.and_(with_late(one.id), batch_state.c.state.in_(wanted))
            if batches is not None:
                ids = [find_batch(connection, one, which).id for which in batches]
                chosen = sa.and_(chosen, among(batch_state.c.batch_id, ids))
            locked = locked_states(connection, chosen)
            count = batch_states.forgiven(connection, among(batch_state.c.batch_id, locked))
            failpoint("retry.before_commit")
        failpoint("retry.after_commit")
        return count

    def batch(self, name: str, which: int | str, meta_table: str | None = None) -> Batch:
        """Find a batch of a job.

        Raises:
            UnknownJobBatchError: the job has none of this name or number.
        """
        with transaction(self.engine) as connection:
            return find_batch(connection, find_job(connection, name, meta_table), which)

    def bisect(
        self, name: str, which: int | str, table: ItemTable, meta_table: str | None = None
    ) -> tuple[Batch, Batch]:
        """Let two halves take the place of a batch.

        Raises:
            BatchIndivisibleError: it has less than two items, is published or being tried.
            UnknownJobBatchError: the job has none of this name or number.
        """
        return bisect(self.engine, self.batch(name, which, meta_table), table)

    def _pause(
        self,
        name: str,
        meta_table: str | None,
        moment: sa.ColumnElement[Any],
        reason: str | None,
    ) -> Job:
        with transaction(self.engine) as connection:
            one = find_job(connection, name, meta_table)
            values = {"paused_at": moment, "paused_reason": reason}
            connection.execute(sa.update(job).where(job.c.id == one.id).values(values))
            failpoint("pause.before_commit")
            return find_job(connection, one.name, one.meta_table)


_parent = job.alias("parent")
_JOBS = (
    sa.select(job, _parent.c.name.label("parent"))
    .outerjoin(_parent, _parent.c.id == job.c.parent_id)
    .order_by(job.c.name, job.c.meta_table)
)


def _report(row: sa.Row[Any], counts: Sequence[sa.Row[Any]]) -> JobReport:
    waiting = [one for one in counts if one.state in {BatchState.PLANNED, BatchState.INTERRUPTED}]
    return JobReport(
        job=job_of(row),
        parent=row.parent,
        publish_count=row.publish_count,
        batches={BatchState(one.state): one.batches for one in counts},
        waiting_items=sum(int(one.items) for one in waiting),
        waiting_weight=sum(int(one.weight) for one in waiting),
    )


def _checked(states: Iterable[BatchState]) -> list[str]:
    wanted = list(states)
    for state in wanted:
        if state not in _RETRIABLE:
            expected = ", ".join(sorted(one.value for one in _RETRIABLE))
            raise InvalidValueError("state", state.value, f"one of {expected}")
    return [state.value for state in wanted]


def locked_states(connection: sa.Connection, which: sa.ColumnElement[bool]) -> list[int]:
    """Lock the states of batches, always in the same order, and give the batches' numbers."""
    rows = (
        sa.select(batch_state.c.batch_id)
        .join(job, job.c.id == batch_state.c.job_id)
        .where(which)
        .order_by(batch_state.c.batch_id)
        .with_for_update(of=batch_state)
    )
    return list(connection.execute(rows).scalars())


def _cancel(connection: sa.Connection, which: sa.ColumnElement[bool]) -> Cancelled:
    open_ones = sa.text(f"(batch_state.{UNFINISHED} OR batch_state.state = 'running')")
    locked = locked_states(connection, sa.and_(which, open_ones))
    failpoint("cancel.locked")
    running = among(attempt.c.batch_id, locked)
    attempts = close(connection, running, AttemptStatus.CANCELLED, _REASON)
    failpoint("cancel.closed")
    idle = batch_states.cancelled(connection, among(batch_state.c.batch_id, locked))
    return Cancelled(batches=idle + attempts, attempts=attempts)


def among(column: sa.Column[Any], ids: Sequence[int]) -> sa.ColumnElement[bool]:
    """Compare with one array: a statement has no room for more than 65,535 values."""
    return column == sa.any_(sa.cast(list(ids), sa.ARRAY(sa.BigInteger)))
