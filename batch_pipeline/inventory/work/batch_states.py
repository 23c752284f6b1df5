"""Where batches stand, kept in step with their attempts: every move of a state is made here."""

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, Batch, BatchState
from batch_pipeline.domain.errors import BatchSupersededError
from batch_pipeline.inventory.tables import UNFINISHED, attempt, batch, batch_state, job

_STARTED = (
    sa.update(batch_state)
    .where(
        batch_state.c.batch_id == sa.bindparam("one"),
        batch_state.c.state != BatchState.SUPERSEDED,
    )
    .values(state=BatchState.RUNNING.value, attempts=batch_state.c.attempts + 1)
    .returning(batch_state.c.attempts, batch_state.c.generation)
)

# A half of a batch that was tried often enough is split again when it fails once. An item alone is
# tried as often as the job allows: what it comes to is the verdict.
_FAILED_HALF = sa.and_(
    attempt.c.status == AttemptStatus.FAILED,
    batch.c.parent_id.is_not(None),
    batch.c.item_count > 1,
)


def _next_state(forgiven: sa.ColumnElement[int]) -> sa.ColumnElement[str]:
    tried_enough = batch_state.c.attempts - forgiven >= job.c.max_attempts
    return sa.case(
        # A batch that is published stays so whatever later attempts come to.
        (batch_state.c.generation.is_not(None), BatchState.PUBLISHED.value),
        (attempt.c.status == AttemptStatus.CANCELLED, BatchState.CANCELLED.value),
        (sa.or_(tried_enough, _FAILED_HALF), BatchState.DEAD.value),
        (attempt.c.status == AttemptStatus.FAILED, BatchState.FAILED.value),
        else_=BatchState.INTERRUPTED.value,
    )


# What an attempt that ended comes to, by whether it counts as one of those that the job allows.
_COUNTED = {batch_state.c.state: _next_state(batch_state.c.forgiven)}
_FORGIVEN = {
    batch_state.c.state: _next_state(batch_state.c.forgiven + 1),
    batch_state.c.forgiven: batch_state.c.forgiven + 1,
}

_latest = (
    sa.select(attempt.c.id, attempt.c.number, attempt.c.status)
    .where(attempt.c.batch_id == batch_state.c.batch_id)
    .order_by(attempt.c.number.desc())
    .limit(1)
    .lateral("latest")
)
_published = (
    sa.select(sa.func.max(attempt.c.generation).label("generation"))
    .where(attempt.c.batch_id == batch_state.c.batch_id)
    .lateral("published")
)
_states = batch_state.outerjoin(_latest, sa.true())
# Only what cannot be right: an attempt that was not counted, and nobody at work where somebody
# should be.
_is_stale = sa.or_(
    _latest.c.number > batch_state.c.attempts,
    sa.and_(
        batch_state.c.state == BatchState.RUNNING,
        _latest.c.status.is_distinct_from(AttemptStatus.RUNNING.value),
    ),
)


def lock(connection: sa.Connection, batch_id: int) -> None:
    """Keep others from starting or ending attempts on a batch until the transaction ends."""
    row = sa.select(batch_state.c.batch_id).where(batch_state.c.batch_id == batch_id)
    connection.execute(row.with_for_update())


def started(connection: sa.Connection, one: Batch) -> tuple[int, int]:
    """Note that an attempt begins; give its number, and the generation that it may become.

    Raises:
        BatchSupersededError: the batch has been split.
    """
    row = connection.execute(_STARTED, {"one": one.id}).one_or_none()
    if row is None:
        raise BatchSupersededError(one.job, one.label)
    return row.attempts, (row.generation or 0) + 1


def ended(connection: sa.Connection, attempt_ids: list[int], *, counts: bool = True) -> None:
    """Note what attempts that did not succeed have come to.

    With `counts` they are among the tries that the job allows: enough of them make a batch dead.
    """
    move = (
        sa.update(batch_state)
        .where(
            batch_state.c.batch_id == attempt.c.batch_id,
            batch_state.c.batch_id == batch.c.id,
            batch_state.c.job_id == job.c.id,
            batch_state.c.state == BatchState.RUNNING,
            attempt.c.id.in_(attempt_ids),
        )
        .values(_COUNTED if counts else _FORGIVEN)
    )
    connection.execute(move)


def cancelled(connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
    """Call unfinished batches off that no attempt works on; gives their number."""
    off = (
        sa.update(batch_state)
        .where(which, sa.text(UNFINISHED))
        .values(state=BatchState.CANCELLED.value)
    )
    return connection.execute(off).rowcount


def forgiven(connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
    """Let batches be tried again as if they never had been; gives their number.

    Those that were never tried are planned again, the others count as interrupted.
    """
    again = sa.case(
        (batch_state.c.attempts == 0, BatchState.PLANNED.value),
        else_=BatchState.INTERRUPTED.value,
    )
    move = sa.update(batch_state).where(which).values(state=again, forgiven=batch_state.c.attempts)
    return connection.execute(move).rowcount


def superseded(connection: sa.Connection, batch_id: int) -> None:
    """Note that other batches took the place of one."""
    move = (
        sa.update(batch_state)
        .where(batch_state.c.batch_id == batch_id)
        .values(state=BatchState.SUPERSEDED.value)
    )
    connection.execute(move)


def halved(connection: sa.Connection, batch_ids: list[int]) -> None:
    """Note that the halves of a batch wait for their first attempt."""
    of_halves = sa.select(batch.c.id, batch.c.job_id, sa.literal(BatchState.PLANNED.value))
    waiting = of_halves.where(batch.c.id.in_(batch_ids))
    names = ("batch_id", "job_id", "state")
    connection.execute(sa.insert(batch_state).from_select(names, waiting))


def planned(connection: sa.Connection, job_id: int, after_batch_id: int) -> None:
    """Note that the batches which a transaction added to a job wait for their first attempt."""
    connection.execute(_PLANNED, {"job": job_id, "after": after_batch_id})


_PLANNED = sa.text("""
INSERT INTO batch_pipeline.batch_state (batch_id, job_id, state)
SELECT id, job_id, 'planned' FROM batch_pipeline.batch WHERE job_id = :job AND id > :after
""")


def repair(connection: sa.Connection, which: sa.ColumnElement[bool] | None = None) -> int:
    """Let batches of some jobs (None: all) stand where their attempts say; gives how many moved.

    A worker of a release before revision 0002 ends attempts without noting it here. Rows that
    somebody else holds are left to them; published batches are looked at for `None` only.
    """
    query = (
        sa.select(batch_state.c.batch_id)
        .select_from(_states.join(job, job.c.id == batch_state.c.job_id))
        .where(_is_stale, batch_state.c.state != BatchState.SUPERSEDED)
        .order_by(batch_state.c.batch_id)
        .with_for_update(of=batch_state, skip_locked=True)
    )
    if which is not None:
        unfinished = sa.or_(sa.text(UNFINISHED), sa.text("state = 'running'"))
        query = query.where(which, unfinished)
    stale = list(connection.execute(query).scalars())
    return repair_locked(connection, stale) if stale else 0


def repair_locked(connection: sa.Connection, batch_ids: list[int]) -> int:
    """Let batches whose states the transaction has locked stand where their attempts say."""
    facts = (
        sa.select(batch_state.c.batch_id, _latest, _published)
        .select_from(_states.outerjoin(_published, sa.true()))
        .where(
            batch_state.c.batch_id.in_(batch_ids),
            batch_state.c.state != BatchState.SUPERSEDED,
            _is_stale,
        )
        .subquery("facts")
    )
    never_tried = (facts.c.status.is_(None), BatchState.PLANNED.value)
    move = (
        sa.update(batch_state)
        .where(batch_state.c.batch_id == facts.c.batch_id)
        .values(
            state=sa.case(never_tried, else_=BatchState.RUNNING.value),
            attempts=sa.func.greatest(batch_state.c.attempts, facts.c.number),
            generation=facts.c.generation,
        )
        .returning(facts.c.id, facts.c.status)
    )
    moved = connection.execute(move).all()
    ended(connection, [row.id for row in moved if row.status not in {None, AttemptStatus.RUNNING}])
    return len(moved)
