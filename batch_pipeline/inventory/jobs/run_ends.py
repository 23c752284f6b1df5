"""What the end of a run means for the batches that it had: attempts closed, work called off.

Attempts are closed by the id of their run, whoever is asked and however often.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, BatchState
from batch_pipeline.domain.job import JobKind
from batch_pipeline.inventory.jobs.job_control import Cancelled, among, locked_states
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import attempt, batch, batch_state, job
from batch_pipeline.inventory.work import batch_states
from batch_pipeline.inventory.work.attempts import close

_CANCELLED = "its run was cancelled by a person"
_WAITING = (BatchState.PLANNED.value, BatchState.INTERRUPTED.value)


@dataclass(frozen=True, slots=True)
class RunEnds:
    """The ends of runs, as somebody heard of them. Each call is one transaction."""

    engine: sa.Engine

    def failed(self, run_id: str, reason: str) -> int:
        """Close the attempts that a failed run left open; gives their number.

        Their batches are tried again by themselves as long as their job allows.
        """
        with transaction(self.engine) as connection:
            locked_states(connection, _is_tried_by(run_id))
            return _close(connection, run_id, AttemptStatus.ABANDONED, reason)

    def cancelled(self, run_id: str, batch_ids: Sequence[int]) -> Cancelled:
        """Close the open attempts of a run that a person cancelled, and call its batches off.

        Of the batches, those are called off that wait, and those whose last attempt this run left
        unfinished. What is published, and what others work on, is not touched.
        """
        mine = among(batch_state.c.batch_id, batch_ids)
        with transaction(self.engine) as connection:
            # All at once: who locks states in another order than others waits for them for ever.
            locked_states(connection, sa.or_(mine, _is_tried_by(run_id)))
            attempts = _close(connection, run_id, AttemptStatus.CANCELLED, _CANCELLED)
            idle = batch_states.cancelled(connection, sa.and_(mine, _is_left(run_id)))
        return Cancelled(batches=idle + attempts, attempts=attempts)

    def late_batches(self, stream: str, planned_before: datetime) -> list[int]:
        """Give the numbers of a stream's batches of late arrivals that were there at a time."""
        query = (
            sa.select(batch.c.id)
            .join(job)
            .where(
                job.c.stream == stream,
                job.c.kind == JobKind.LATE,
                batch.c.planned_at <= planned_before,
                batch.c.superseded_at.is_(None),
            )
        )
        with transaction(self.engine) as connection:
            return list(connection.execute(query).scalars())


def _is_tried_by(run_id: str) -> sa.ColumnElement[bool]:
    running = sa.and_(attempt.c.run_id == run_id, attempt.c.status == AttemptStatus.RUNNING)
    return batch_state.c.batch_id.in_(sa.select(attempt.c.batch_id).where(running))


def _close(connection: sa.Connection, run_id: str, status: AttemptStatus, reason: str) -> int:
    return close(connection, attempt.c.run_id == run_id, status, reason)


def _is_left(run_id: str) -> sa.ColumnElement[bool]:
    """Pick batches that wait, or that were tried often enough and last by a run that was ended."""
    last_by_this_run = sa.exists().where(
        attempt.c.batch_id == batch_state.c.batch_id,
        attempt.c.number == batch_state.c.attempts,
        attempt.c.run_id == run_id,
        attempt.c.status == AttemptStatus.ABANDONED,
    )
    given_up = sa.and_(batch_state.c.state == BatchState.DEAD, last_by_this_run)
    return sa.or_(batch_state.c.state.in_(_WAITING), given_up)
