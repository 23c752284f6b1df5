"""Where batches stand, kept in step with their attempts: every move of a state is made here."""

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, BatchState
from batch_pipeline.inventory.tables import attempt, batch_state, job

_STARTED = (
    sa.update(batch_state)
    .where(batch_state.c.batch_id == sa.bindparam("one"))
    .values(state=BatchState.RUNNING.value, attempts=batch_state.c.attempts + 1)
    .returning(batch_state.c.attempts)
)

# A batch that is published stays so whatever later attempts come to.
_NEXT_STATE = sa.case(
    (batch_state.c.generation.is_not(None), BatchState.PUBLISHED.value),
    (attempt.c.status == AttemptStatus.CANCELLED, BatchState.CANCELLED.value),
    (batch_state.c.attempts - batch_state.c.forgiven >= job.c.max_attempts, BatchState.DEAD.value),
    (attempt.c.status == AttemptStatus.FAILED, BatchState.FAILED.value),
    else_=BatchState.INTERRUPTED.value,
)


def lock(connection: sa.Connection, batch_id: int) -> None:
    """Keep others from starting or ending attempts on a batch until the transaction ends."""
    row = sa.select(batch_state.c.batch_id).where(batch_state.c.batch_id == batch_id)
    connection.execute(row.with_for_update())


def started(connection: sa.Connection, batch_id: int) -> int:
    """Note that an attempt begins and give its number."""
    number: int = connection.execute(_STARTED, {"one": batch_id}).scalar_one()
    return number


def ended(connection: sa.Connection, attempt_ids: list[int]) -> None:
    """Note what attempts that did not succeed have come to."""
    move = (
        sa.update(batch_state)
        .where(
            batch_state.c.batch_id == attempt.c.batch_id,
            batch_state.c.job_id == job.c.id,
            batch_state.c.state == BatchState.RUNNING,
            attempt.c.id.in_(attempt_ids),
        )
        .values(state=_NEXT_STATE)
    )
    connection.execute(move)


def published(connection: sa.Connection, batch_id: int) -> int:
    """Note that a batch has a new generation and give its number."""
    move = (
        sa.update(batch_state)
        .where(batch_state.c.batch_id == batch_id)
        .values(
            state=BatchState.PUBLISHED.value,
            generation=sa.func.coalesce(batch_state.c.generation, 0) + 1,
        )
        .returning(batch_state.c.generation)
    )
    generation: int = connection.execute(move).scalar_one()
    return generation


def planned(connection: sa.Connection, job_id: int, after_batch_id: int) -> None:
    """Note that the batches which a transaction added to a job wait for their first attempt."""
    connection.execute(_PLANNED, {"job": job_id, "after": after_batch_id})


_PLANNED = sa.text("""
INSERT INTO batch_pipeline.batch_state (batch_id, job_id, state)
SELECT id, job_id, 'planned' FROM batch_pipeline.batch WHERE job_id = :job AND id > :after
""")
