"""Rows of batches: read them with their statuses, and move them to another state.

Elsewhere, only the statements that acquire and publish write `batch_state`.
"""

import re
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.tables import (
    attempt,
    batch,
    batch_state,
    batches_with_states,
    is_any_of,
    job,
)
from batch_pipeline.model.backfill import (
    backfill_job,
    backfill_key,
    backfill_name,
    parse_backfill_key,
)
from batch_pipeline.model.batch import (
    MAX_ID,
    MIN_ID,
    AttemptStatus,
    Batch,
    BatchState,
    BatchStatus,
    IdRange,
    IdRuns,
    late_key,
    parse_late_key,
    parse_partition_key,
)
from batch_pipeline.model.errors import BatchSupersededError, InvalidValueError, UnknownBatchError
from batch_pipeline.model.job import JobKind

_MARK_RUNNING = (
    sa.update(batch_state)
    .where(
        batch_state.c.batch_id == sa.bindparam("one"),
        batch_state.c.state != BatchState.SUPERSEDED,
    )
    .values(state=BatchState.RUNNING.value, attempts=batch_state.c.attempts + 1)
    .returning(batch_state.c.attempts, batch_state.c.generation)
)

# A half of a dead batch is split again after one failure. A batch of one item is tried as often as
# the job allows, because its result is final.
_IS_FAILED_HALF = sa.and_(
    attempt.c.status == AttemptStatus.FAILED,
    batch.c.parent_id.is_not(None),
    batch.c.item_count > 1,
)


def _next_state(forgiven: sa.ColumnElement[int]) -> sa.ColumnElement[str]:
    tried_enough = batch_state.c.attempts - forgiven >= job.c.max_attempts
    return sa.case(
        # A published batch stays published whatever the result of later attempts.
        (batch_state.c.generation.is_not(None), BatchState.PUBLISHED.value),
        (attempt.c.status == AttemptStatus.CANCELLED, BatchState.CANCELLED.value),
        (sa.or_(tried_enough, _IS_FAILED_HALF), BatchState.DEAD.value),
        (attempt.c.status == AttemptStatus.FAILED, BatchState.FAILED.value),
        else_=BatchState.INTERRUPTED.value,
    )


# New values after an unsuccessful attempt, by whether it counts towards `max_attempts`.
_COUNTED_END = {batch_state.c.state: _next_state(batch_state.c.forgiven)}
_FORGIVEN_END = {
    batch_state.c.state: _next_state(batch_state.c.forgiven + 1),
    batch_state.c.forgiven: batch_state.c.forgiven + 1,
}


def lock(connection: sa.Connection, batch_id: int) -> None:
    """Lock the state of a batch until the transaction ends, so that no attempt starts or ends."""
    row = sa.select(batch_state.c.batch_id).where(batch_state.c.batch_id == batch_id)
    connection.execute(row.with_for_update())


def mark_running(connection: sa.Connection, started_batch: Batch) -> tuple[int, int]:
    """Set a batch to running; return the attempt's number and the generation it would publish.

    Raises:
        BatchSupersededError: the batch was split.
    """
    row = connection.execute(_MARK_RUNNING, {"one": started_batch.id}).one_or_none()
    if row is None:
        raise BatchSupersededError(started_batch.job, started_batch.label)
    return row.attempts, (row.generation or 0) + 1


def mark_ended(connection: sa.Connection, attempt_ids: list[int], *, counts: bool = True) -> None:
    """Set the states of batches after unsuccessful attempts.

    With `counts` the attempts count towards the job's `max_attempts`; a batch that reaches it is
    dead.
    """
    update = (
        sa.update(batch_state)
        .where(
            batch_state.c.batch_id == attempt.c.batch_id,
            batch_state.c.batch_id == batch.c.id,
            batch_state.c.job_id == job.c.id,
            batch_state.c.state == BatchState.RUNNING,
            attempt.c.id.in_(attempt_ids),
        )
        .values(_COUNTED_END if counts else _FORGIVEN_END)
    )
    connection.execute(update)


def set_state(
    connection: sa.Connection, condition: sa.ColumnElement[bool], state: BatchState
) -> int:
    """Move the selected batches to a state; return their number."""
    update = sa.update(batch_state).where(condition).values(state=state.value)
    return connection.execute(update).rowcount


def reset_attempts(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> int:
    """Reset the attempt count of batches so that they are tried again; return their number.

    Batches without attempts become planned, the others interrupted.
    """
    state = sa.case(
        (batch_state.c.attempts == 0, BatchState.PLANNED.value),
        else_=BatchState.INTERRUPTED.value,
    )
    update = sa.update(batch_state).where(condition)
    return connection.execute(update.values(state=state, forgiven=batch_state.c.attempts)).rowcount


def insert_states(connection: sa.Connection, *new_batches: sa.ColumnElement[bool]) -> None:
    """Insert the states of the selected new batches, as planned."""
    states = sa.select(batch.c.id, batch.c.job_id, sa.literal(BatchState.PLANNED.value))
    names = ("batch_id", "job_id", "state")
    connection.execute(sa.insert(batch_state).from_select(names, states.where(*new_batches)))


# Without `config`, which takes longer to read than all other columns, and `id_runs`, which may have
# as many entries as the batch has items; `planned_ids` reads them for one batch.
BATCH_ROW: tuple[sa.Column[Any], ...] = (
    *(column for column in batch.c if column.name not in {"config", "id_runs", "planned_at"}),
    job.c.name,
    job.c.key_digits,
    job.c.kind,
    job.c.stream,
)
_FIRST_ID = re.compile(r"(-?[0-9]{1,19})(?:-|\.\.)")


def batch_from_row(row: sa.Row[Any]) -> Batch:
    """Build a batch from a row of `BATCH_ROW`."""
    return Batch(
        id=row.id,
        job=row.name,
        id_range=IdRange(first_id=row.first_id, last_id=row.last_id),
        weight=row.weight,
        count=row.item_count,
        oversized=row.oversized,
        item_ids=None if row.item_ids is None else tuple(row.item_ids),
        key_digits=row.key_digits,
    )


def status_query() -> sa.Select[Any]:
    """Build the query of batches, each with its latest attempt."""
    return (
        sa.select(
            *BATCH_ROW,
            batch_state.c.state,
            batch_state.c.attempts,
            batch_state.c.generation,
            attempt.c.error,
            attempt.c.finished_at,
        )
        .select_from(batches_with_states)
        .outerjoin(
            attempt,
            sa.and_(attempt.c.batch_id == batch.c.id, attempt.c.number == batch_state.c.attempts),
        )
    )


def status_from_row(row: sa.Row[Any]) -> BatchStatus:
    """Build a status from a row of `status_query`."""
    row_batch = batch_from_row(row)
    return BatchStatus(
        batch=row_batch,
        key=_label(row_batch, row),
        state=BatchState(row.state),
        attempts=row.attempts,
        generation=row.generation,
        error=row.error,
        finished_at=row.finished_at,
    )


def select_statuses(
    connection: sa.Connection,
    *conditions: sa.ColumnElement[bool],
    order_by: sa.ColumnElement[Any] = batch.c.first_id,
) -> list[BatchStatus]:
    """Read the selected batches, in id order by default, each with its latest attempt."""
    query = status_query().where(*conditions).order_by(order_by, batch.c.id)
    return [status_from_row(row) for row in connection.execute(query)]


def read_statuses(
    engine: sa.Engine,
    *conditions: sa.ColumnElement[bool],
    order_by: sa.ColumnElement[Any] = batch.c.first_id,
) -> list[BatchStatus]:
    """Read batches as `select_statuses` does, in a transaction of its own."""
    with transaction(engine) as connection:
        return select_statuses(connection, *conditions, order_by=order_by)


def find_partition(
    connection: sa.Connection, stream: str, key: str, kinds: Collection[JobKind]
) -> Batch:
    """Find a planned batch of a stream's jobs of some kinds by its partition key.

    Raises:
        UnknownBatchError: there is no such batch.
        BatchSupersededError: the batch was split; the message names its parts.
    """
    query: sa.Select[Any] = (
        sa.select(*BATCH_ROW)
        .join(job)
        .where(job.c.stream == stream, job.c.kind.in_(kinds), *_has_key(stream, key))
        .order_by(batch.c.id)
    )
    rows = connection.execute(query).all()
    live = [batch_from_row(row) for row in rows if row.superseded_at is None]
    if live:  # lists of ids may have the same first and last id
        return live[-1]
    parts = [part for row in rows for part in _live_parts(connection, row)]
    if not parts:
        raise UnknownBatchError.of_partition(stream, key)
    raise BatchSupersededError(stream, key, tuple(map(label_from_row, parts)))


def _has_key(stream: str, key: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Build the conditions on the batches and jobs of a stream that a partition key names."""
    batch_id = parse_late_key(key)
    if batch_id is not None:
        return job.c.kind == JobKind.LATE, batch.c.id == batch_id
    try:
        if ":" in key:
            name, ids = parse_backfill_key(key)
            of_job = (job.c.kind == JobKind.BACKFILL, job.c.name == backfill_job(stream, name))
        else:
            ids = parse_partition_key(key)
            of_job = (job.c.kind == JobKind.INCREMENTAL, batch.c.item_ids.is_(None))
    except InvalidValueError as error:
        raise UnknownBatchError.of_partition(stream, key) from error
    return *of_job, batch.c.first_id == ids.first_id, batch.c.last_id == ids.last_id


def _live_parts(connection: sa.Connection, split: sa.Row[Any]) -> list[sa.Row[Any]]:
    """Return the live batches that replaced a split batch, in id order.

    Halves lie within their parent's range and have higher ids.
    """
    query: sa.Select[Any] = (
        sa.select(*BATCH_ROW)
        .join(job)
        .where(
            batch.c.job_id == split.job_id,
            batch.c.id > split.id,
            batch.c.first_id >= split.first_id,
            batch.c.last_id <= split.last_id,
        )
        .order_by(batch.c.id)
    )
    ancestor_ids = {split.id}
    parts: list[sa.Row[Any]] = []
    for row in connection.execute(query):
        if row.parent_id in ancestor_ids:
            ancestor_ids.add(row.id)
            if row.superseded_at is None:
                parts.append(row)
    return sorted(parts, key=lambda row: (row.first_id, row.last_id))


def late_items(planned_batch: Batch) -> sa.Select[int]:
    """Build the query of the ids within a batch's range that belong to late batches.

    A new attempt on a published batch must not read them.
    """
    owner = sa.select(batch.c.job_id).where(batch.c.id == planned_batch.id).scalar_subquery()
    return (
        sa.select(sa.func.unnest(batch.c.item_ids, type_=sa.BigInteger))
        .join(job, job.c.id == batch.c.job_id)
        .where(
            job.c.parent_id == owner,
            job.c.kind == JobKind.LATE,
            batch.c.first_id <= planned_batch.id_range.last_id,
            batch.c.last_id >= planned_batch.id_range.first_id,
        )
    )


def planned_ids(connection: sa.Connection, planned_batch: Batch) -> IdRuns | None:
    """Return the ids that a batch's range was planned with; None for all ids of its range."""
    ids = planned_batch.id_range
    if planned_batch.item_ids is not None or planned_batch.count == ids.last_id - ids.first_id + 1:
        return None
    query = sa.select(batch.c.id_runs).where(batch.c.id == planned_batch.id)
    stored = connection.execute(query).scalar_one_or_none()
    return None if stored is None else IdRuns(*stored)


def label_from_row(row: sa.Row[Any]) -> str:
    """Return the partition key of a batch from a row of `BATCH_ROW`.

    Ranges of negative ids, and batches of jobs without a stream, have none: return their range.
    """
    return _label(batch_from_row(row), row)


def _label(row_batch: Batch, row: sa.Row[Any]) -> str:
    kind = JobKind(row.kind)
    if kind is JobKind.INCREMENTAL or row.stream is None:
        return row_batch.label
    if kind is JobKind.BACKFILL:
        return backfill_key(backfill_name(row.stream, row.name), row_batch.key)
    return late_key(row_batch.id)


def matches_labels(labels: Collection[str]) -> sa.ColumnElement[bool]:
    """Build a condition on the first ids, or the ids, of batches with these labels.

    Batches of several jobs may have the same first id, so compare `label_from_row` of the result.
    """
    late_ids = [number for label in labels if (number := parse_late_key(label)) is not None]
    matches = (_FIRST_ID.match(label.rpartition(":")[2]) for label in labels)
    firsts = {int(match[1]) for match in matches if match is not None}
    first_ids = sorted(first for first in firsts if MIN_ID <= first <= MAX_ID)
    return sa.or_(is_any_of(batch.c.first_id, first_ids), is_any_of(batch.c.id, late_ids))
