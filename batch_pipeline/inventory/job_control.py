"""Pause, resume, cancel, retry and split jobs and batches; close attempts of ended runs.

Also detects an inventory that was restored from a backup, and pauses its streams.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory import batch_states
from batch_pipeline.inventory.attempts import close
from batch_pipeline.inventory.batch_states import select_statuses
from batch_pipeline.inventory.connection import (
    LOADER_IS_THERE,
    OWNER_IS_THERE,
    fetch_column,
    fetch_rows,
    fetch_value,
    transaction,
)
from batch_pipeline.inventory.jobs import (
    find_batch,
    find_job,
    is_own_stream_job,
    job_from_row,
    job_with_late_arrivals,
    of_stream,
    open_job,
    stream_job,
)
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.planning import split_batch
from batch_pipeline.inventory.status import FINISHED, select_totals
from batch_pipeline.inventory.tables import UNFINISHED, attempt, batch_state, is_any_of, job, load
from batch_pipeline.model.batch import WAITING, AttemptStatus, Batch, BatchState, BatchStatus
from batch_pipeline.model.errors import OLDER, InvalidValueError, JobPausedError
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.job import Job, JobKind, JobReport, check_storable
from batch_pipeline.model.manifest import ManifestCounts

RETRIED_STATES = (BatchState.FAILED, BatchState.DEAD, BatchState.CANCELLED)
_RETRYABLE_STATES = {*RETRIED_STATES, BatchState.INTERRUPTED}
_CANCEL_REASON = "cancelled by a user"
_RUN_CANCELLED_REASON = "its run was cancelled by a user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The numbers of cancelled batches and attempts.

    `JobControl.cancel` does not count batches that stay published.
    """

    batches: int
    attempts: int


@dataclass(frozen=True, slots=True)
class JobControl:
    """Operations on jobs, identified by name, and by meta table if several jobs share the name.

    Batches are identified by id, partition key or `first..last`. Operations on a job include its
    late-arrivals job, which is also paused with it.
    """

    engine: sa.Engine

    def jobs(self) -> list[JobReport]:
        """Read all jobs ordered by name, with their batches by state."""
        with transaction(self.engine) as connection:
            rows = connection.execute(_JOBS).all()
            counts: dict[int, list[sa.Row[Any]]] = defaultdict(list)
            for count in select_totals(
                connection, batch_state.c.state.is_not(None), by=(batch_state.c.job_id,)
            ):
                counts[count.job_id].append(count)
        return [_report(row, counts[row.id]) for row in rows]

    def streams(self) -> list[str]:
        """Read the names of the streams that have jobs, in order."""
        streams = sa.select(job.c.stream).where(job.c.stream.is_not(None)).distinct()
        return sorted(fetch_column(self.engine, streams))

    def find(self, name: str, meta_table: str | None = None) -> Job:
        """Find a job.

        Raises:
            UnknownJobError: there is no such job.
            AmbiguousJobError: several meta tables have a job of this name, and none was given.
        """
        with transaction(self.engine) as connection:
            return find_job(connection, name, meta_table)

    def unfinished(self, name: str, meta_table: str | None = None) -> list[BatchStatus]:
        """Read the unpublished and unsplit batches of a job, in id order."""
        with transaction(self.engine) as connection:
            is_its = job_with_late_arrivals(find_job(connection, name, meta_table).id)
            return select_statuses(connection, is_its, batch_state.c.state.not_in(FINISHED))

    def paused(self, stream: str) -> str | None:
        """Return why a stream's job is paused (may be empty); None if it is not paused."""
        query = sa.select(sa.func.coalesce(job.c.paused_reason, ""))
        is_paused = (of_stream(stream), job.c.paused_at.is_not(None))
        return fetch_value(self.engine, query.where(*is_paused))

    def cancellation_reason(self, selected_batch: Batch) -> str | None:
        """Return why a batch must not be started now; None if it may be started."""
        query = (
            sa.select(
                job.c.paused_at,
                job.c.paused_reason,
                stream_job.c.name.label("stream_job"),
                stream_job.c.paused_at.label("stream_paused_at"),
                stream_job.c.paused_reason.label("stream_paused_reason"),
                batch_state.c.state,
            )
            .join(job, job.c.id == batch_state.c.job_id)
            .outerjoin(stream_job, is_own_stream_job)
            .where(batch_state.c.batch_id == selected_batch.id)
        )
        [row] = fetch_rows(self.engine, query)
        if row.paused_at is not None:
            return str(JobPausedError(selected_batch.job, row.paused_reason or ""))
        if row.stream_paused_at is not None:
            return str(JobPausedError(row.stream_job, row.stream_paused_reason or ""))
        return "it was cancelled" if row.state == BatchState.CANCELLED else None

    def check_not_paused(self, stream: str) -> None:
        """Check that batches of a stream may be planned and launched.

        Raises:
            JobPausedError: the job is paused.
        """
        reason = self.paused(stream)
        if reason is not None:
            raise JobPausedError(stream, reason)

    def pause(self, name: str, reason: str = "", meta_table: str | None = None) -> Job:
        """Pause a job: plan no new items, start no batches. Running attempts continue."""
        why = check_storable("reason", reason.strip())
        return self._pause(name, meta_table, sa.func.clock_timestamp(), why or None)

    def resume(self, name: str, meta_table: str | None = None) -> Job:
        """Resume a paused job."""
        return self._pause(name, meta_table, sa.null(), None)

    def cancel(self, name: str, *batches: int | str, meta_table: str | None = None) -> Cancelled:
        """Cancel batches, or all unpublished batches of a job, including running ones.

        If a batch was published before, only its running attempt is cancelled.

        Raises:
            UnknownBatchError: the job has no such batch.
        """
        with transaction(self.engine) as connection:
            job_record = find_job(connection, name, meta_table)
            chosen = job_with_late_arrivals(job_record.id)
            if batches:
                ids = [find_batch(connection, job_record, identifier).id for identifier in batches]
                chosen = is_any_of(batch_state.c.batch_id, ids)
            is_open = sa.text(f"(batch_state.{UNFINISHED} OR batch_state.state = 'running')")
            batch_ids = _lock_states(connection, sa.and_(chosen, is_open))
            failpoint("cancel.locked")
            running = is_any_of(attempt.c.batch_id, batch_ids)
            attempts = close(connection, running, AttemptStatus.CANCELLED, _CANCEL_REASON)
            failpoint("cancel.closed")
            is_its = is_any_of(batch_state.c.batch_id, batch_ids)
            is_unpublished = sa.and_(is_its, batch_state.c.state != BatchState.PUBLISHED)
            cancelled = batch_states.set_state(connection, is_unpublished, BatchState.CANCELLED)
            failpoint("cancel.before_commit")
        failpoint("cancel.after_commit")
        return Cancelled(batches=cancelled, attempts=attempts)

    def retry(
        self,
        name: str,
        *,
        states: Iterable[BatchState] = RETRIED_STATES,
        batches: Sequence[int | str] | None = None,
        meta_table: str | None = None,
    ) -> int:
        """Retry the batches in some states, only those in `batches` if given; return their number.

        Their attempt count is reset, and they are acquired before new batches.

        Raises:
            InvalidValueError: batches in one of the states cannot be retried.
            UnknownBatchError: the job has no such batch.
        """
        chosen_states = list(states)
        for state in chosen_states:
            if state not in _RETRYABLE_STATES:
                expected = ", ".join(sorted(retryable.value for retryable in _RETRYABLE_STATES))
                raise InvalidValueError("state", state.value, f"one of {expected}")
        with transaction(self.engine) as connection:
            job_record = find_job(connection, name, meta_table)
            chosen = sa.and_(
                job_with_late_arrivals(job_record.id), batch_state.c.state.in_(chosen_states)
            )
            if batches is not None:
                ids = [find_batch(connection, job_record, identifier).id for identifier in batches]
                chosen = sa.and_(chosen, is_any_of(batch_state.c.batch_id, ids))
            batch_ids = _lock_states(connection, chosen)
            chosen = is_any_of(batch_state.c.batch_id, batch_ids)
            count = batch_states.reset_attempts(connection, chosen)
            failpoint("retry.before_commit")
        failpoint("retry.after_commit")
        return count

    def batch(self, name: str, identifier: int | str, meta_table: str | None = None) -> Batch:
        """Find a batch of a job.

        Raises:
            UnknownBatchError: the job has no such batch.
        """
        with transaction(self.engine) as connection:
            return find_batch(connection, find_job(connection, name, meta_table), identifier)

    def split(
        self,
        name: str,
        identifier: int | str,
        table: ReflectedMetaTable,
        meta_table: str | None = None,
    ) -> tuple[Batch, Batch]:
        """Replace a batch by two halves.

        Raises:
            ConfigurationError: the batch has fewer than two items, is published or running.
            UnknownBatchError: the job has no such batch.
        """
        return split_batch(self.engine, self.batch(name, identifier, meta_table), table)

    def _pause(
        self,
        name: str,
        meta_table: str | None,
        moment: sa.ColumnElement[Any],
        reason: str | None,
    ) -> Job:
        with transaction(self.engine) as connection:
            job_record = find_job(connection, name, meta_table)
            values = {"paused_at": moment, "paused_reason": reason}
            connection.execute(sa.update(job).where(job.c.id == job_record.id).values(values))
            failpoint("pause.before_commit")
            return find_job(connection, job_record.name, job_record.meta_table)


_parent = job.alias("parent")
_JOBS = (
    sa.select(job, _parent.c.name.label("parent"))
    .outerjoin(_parent, _parent.c.id == job.c.parent_id)
    .order_by(job.c.name, job.c.meta_table)
)


def _report(row: sa.Row[Any], counts: Sequence[sa.Row[Any]]) -> JobReport:
    waiting = [count for count in counts if count.state in WAITING]
    return JobReport(
        job=job_from_row(row, row.id, row.name),
        parent=row.parent,
        publish_count=row.publish_count,
        batches={BatchState(count.state): count.batches for count in counts},
        waiting_items=sum(count.items for count in waiting),
        waiting_weight=sum(int(count.weight) for count in waiting),
    )


def _lock_states(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[int]:
    """Lock the states of batches, always in the same order, and return their ids."""
    rows = (
        sa.select(batch_state.c.batch_id)
        .join(job, job.c.id == batch_state.c.job_id)
        .where(condition)
        .order_by(batch_state.c.batch_id)
        .with_for_update(of=batch_state)
    )
    return list(connection.execute(rows).scalars())


@dataclass(frozen=True, slots=True)
class RunEnds:
    """Operations at the end of a Dagster run. Each call is one transaction."""

    engine: sa.Engine

    def is_working(self, run_id: str) -> bool:
        """Return whether a process that lives has an open attempt or load of a run."""
        tables = ((attempt, OWNER_IS_THERE), (load, LOADER_IS_THERE))
        working = (
            sa.exists().where(table.c.run_id == run_id, table.c.status == "running", is_there)
            for table, is_there in tables
        )
        return bool(fetch_value(self.engine, sa.select(sa.or_(*working))))

    def close_failed(self, run_id: str, reason: str) -> int:
        """Close the attempts that a failed run left open; return their number.

        Their batches are retried up to the job's `max_attempts`.
        """
        with transaction(self.engine) as connection:
            _lock_states(connection, _is_run_by(run_id))
            return close(connection, attempt.c.run_id == run_id, AttemptStatus.ABANDONED, reason)

    def close_cancelled(self, run_id: str, batch_ids: Sequence[int]) -> Cancelled:
        """Close the open attempts of a run that a user cancelled, and cancel its batches.

        Cancels waiting batches and those whose last attempt this run left unfinished. Published
        batches, and those that other runs process, are not changed.
        """
        is_of_run = is_any_of(batch_state.c.batch_id, batch_ids)
        with transaction(self.engine) as connection:
            # In one statement: locking in different orders could deadlock.
            _lock_states(connection, sa.or_(is_of_run, _is_run_by(run_id)))
            of_run, status = attempt.c.run_id == run_id, AttemptStatus.CANCELLED
            attempts = close(connection, of_run, status, _RUN_CANCELLED_REASON)
            is_idle = sa.and_(is_of_run, _is_cancellable(run_id))
            idle = batch_states.set_state(connection, is_idle, BatchState.CANCELLED)
        return Cancelled(batches=idle + attempts, attempts=attempts)


def _is_run_by(run_id: str) -> sa.ColumnElement[bool]:
    running = sa.and_(attempt.c.run_id == run_id, attempt.c.status == AttemptStatus.RUNNING)
    return batch_state.c.batch_id.in_(sa.select(attempt.c.batch_id).where(running))


def _is_cancellable(run_id: str) -> sa.ColumnElement[bool]:
    """Build the condition for waiting batches, and dead ones last tried by the ended run."""
    last_by_this_run = sa.exists().where(
        attempt.c.batch_id == batch_state.c.batch_id,
        attempt.c.number == batch_state.c.attempts,
        attempt.c.run_id == run_id,
        attempt.c.status == AttemptStatus.ABANDONED,
    )
    given_up = sa.and_(batch_state.c.state == BatchState.DEAD, last_by_this_run)
    return sa.or_(batch_state.c.state.in_(sorted(WAITING)), given_up)


# Restoring a dump creates new tables, a copy is another database, and restoring files requires a
# start of the server.
_FINGERPRINT = sa.text("""
SELECT pg_postmaster_start_time(), d.oid::bigint, t.oid::bigint, t.relfilenode::bigint
  FROM pg_catalog.pg_database d, pg_catalog.pg_class t
 WHERE d.datname = current_database() AND t.oid = 'batch_pipeline.attempt'::regclass
""")


@dataclass(frozen=True, slots=True)
class RestoreCheck:
    """A check of whether the inventory is older than the storages of its streams."""

    engine: sa.Engine

    def fingerprint(self) -> tuple[object, ...]:
        """Return values that change if the database is restored or its server is restarted."""
        [row] = fetch_rows(self.engine, _FINGERPRINT)
        return tuple(row)

    def job_names(self, stream: str) -> tuple[set[str], set[str]]:
        """Read the names of the jobs of a stream, and of all other jobs."""
        rows = fetch_rows(self.engine, sa.select(job.c.stream, job.c.name))
        mine = {row.name for row in rows if row.stream == stream}
        return mine, {row.name for row in rows} - mine

    def pause_stream(self, stream: str, reason: str) -> None:
        """Pause all jobs of a stream that are not paused."""
        update = sa.update(job).where(job.c.stream == stream, job.c.paused_at.is_(None))
        values = {"paused_at": sa.func.clock_timestamp(), "paused_reason": reason}
        with transaction(self.engine) as connection:
            connection.execute(update.values(values))

    def resume_stream(self, stream: str) -> None:
        """Resume the jobs that `pause_stream` paused."""
        is_paused_by_check = sa.and_(job.c.stream == stream, job.c.paused_reason.startswith(OLDER))
        values = {"paused_at": sa.null(), "paused_reason": sa.null()}
        with transaction(self.engine) as connection:
            # A login with only the worker role may not update jobs.
            if connection.execute(sa.select(sa.exists().where(is_paused_by_check))).scalar_one():
                connection.execute(sa.update(job).where(is_paused_by_check).values(values))

    def raise_publish_counts(
        self, numbers: Mapping[str, int], stream: str, unknown_jobs: Mapping[str, ManifestCounts]
    ) -> None:
        """Raise the publish counts of a stream's jobs to at least the given numbers, by name.

        Creates the unknown jobs from their manifests. A late-arrivals job needs its parent.
        """
        with transaction(self.engine) as connection:
            for _, manifest in sorted(unknown_jobs.items()):  # a job sorts after its parent
                named = sa.and_(job.c.stream == stream, job.c.name == manifest.parent)
                parent_id = connection.execute(sa.select(job.c.id).where(named)).scalar()
                terms = manifest.job
                if terms is None or terms.stream != stream:
                    continue
                if parent_id is not None or terms.kind is not JobKind.LATE:
                    open_job(connection, terms, parent_id=parent_id)
            for name, number in numbers.items():
                count = sa.func.greatest(job.c.publish_count, number)
                update = sa.update(job).where(job.c.stream == stream, job.c.name == name)
                connection.execute(update.values(publish_count=count))

    def publish_counts(self, stream: str) -> dict[str, int]:
        """Return the publish counts of a stream's jobs by name."""
        query = sa.select(job.c.name, job.c.publish_count).where(job.c.stream == stream)
        return {row.name: row.publish_count for row in fetch_rows(self.engine, query)}
