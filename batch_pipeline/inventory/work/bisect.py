"""Splitting batches that fail: two halves take their place, until the item that fails is alone.

A half that fails is split again at once, so a bad item among n costs as many attempts as the job
allows, then two for each time that n can be halved, then as many as allowed on the item alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sqlalchemy as sa

from batch_pipeline.domain.batch import Batch, BatchState
from batch_pipeline.domain.errors import BatchIndivisibleError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.halves import Half, halve
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.id_runs import IdRuns
from batch_pipeline.inventory.jobs.jobs import with_late
from batch_pipeline.inventory.locks import lock_planning
from batch_pipeline.inventory.meta.meta_table import OwnMetaTable
from batch_pipeline.inventory.meta.reflected_table import MetaItem, ReflectedMetaTable
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import UNFINISHED, attempt, batch, batch_state, job
from batch_pipeline.inventory.work import batch_states
from batch_pipeline.inventory.work.batch_rows import BATCH_ROW, batch_of, planned_ids

ItemTable = OwnMetaTable | ReflectedMetaTable


class Divisible(Protocol):
    """A meta table as splitting needs it."""

    def halves(self, one: Batch, planned: IdRuns | None) -> tuple[Half, Half] | None:
        """Split a batch in the middle of its items; None when less than two are left.

        `planned` are the ids that its range was planned with, None for all of it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BadItem:
    """An item that fails alone, where it is, and what its last attempt said."""

    batch: Batch
    id: int
    location: str
    error: str | None


def listed(engine: sa.Engine, table: ItemTable, one: Batch) -> list[MetaItem]:
    """Read the items of a batch that are still there, in id order.

    These are the ones that it was planned with: rows that came later are found by the next audit.
    """
    with transaction(engine) as connection:
        planned = planned_ids(connection, one)
    return _planned_items(table, one, planned)


def _planned_items(table: ItemTable, one: Batch, planned: IdRuns | None) -> list[MetaItem]:
    if isinstance(table, OwnMetaTable):
        return [
            MetaItem(id=item.id, item=item.file.location, weight=item.weight)
            for item in table.items(one)
        ]
    if one.item_ids is not None:
        return table.items_of(one.item_ids)
    return [item for item in table.items(one.id_range) if planned is None or item.id in planned]


def halves_of(table: ItemTable, one: Batch, planned: IdRuns | None) -> tuple[Half, Half] | None:
    """Split a batch in the middle of its items; None when less than two are left."""
    items = _planned_items(table, one, planned)
    return halve(one, [(item.id, item.weight) for item in items], planned)


def bisect(engine: sa.Engine, one: Batch, table: ItemTable) -> tuple[Batch, Batch]:
    """Let two halves take the place of a batch that is neither published nor being tried.

    Reads the items before anything is locked; then one transaction leaves the batch as it was, or
    both halves waiting to be tried.

    Raises:
        BatchIndivisibleError: it has less than two items, is published, split or being tried.
    """
    with transaction(engine) as connection:
        planned = planned_ids(connection, one)
    halves = halves_of(table, one, planned)
    if halves is None:
        raise _indivisible(one, _planned_items(table, one, planned))
    with transaction(engine) as connection:
        lock_planning(connection, _job_id(connection, one))
        batch_states.lock(connection, one.id)
        _refuse(connection, one)
        split_into = split(connection, one, halves)
        failpoint("bisect.before_commit")
    failpoint("bisect.after_commit")
    return split_into


def halve_dead(
    connection: sa.Connection, job_id: int, window: IdRange, source: Divisible
) -> tuple[Batch, Batch] | None:
    """Split the first dead batch of a job or its late job that can be; None when none can.

    The caller holds the job's planning lock. Batches that somebody else is at are left to them.
    """
    dead = (
        sa.select(*BATCH_ROW)
        .select_from(batch_state)
        .join(batch, batch.c.id == batch_state.c.batch_id)
        .join(job, job.c.id == batch.c.job_id)
        .where(
            with_late(job_id),
            sa.text(f"batch_state.{UNFINISHED}"),  # as the partial index has it
            batch_state.c.state == BatchState.DEAD,
            batch.c.item_count > 1,
            batch.c.first_id >= window.first_id,
            batch.c.last_id <= window.last_id,
        )
        .order_by(batch_state.c.batch_id)
        .with_for_update(of=batch_state, skip_locked=True)
    )
    for row in connection.execute(dead).all():
        one = batch_of(row)
        halves = source.halves(one, planned_ids(connection, one))
        if halves is not None:
            lock_planning(connection, row.job_id)
            return split(connection, one, halves)
    return None


def split(connection: sa.Connection, one: Batch, halves: tuple[Half, Half]) -> tuple[Batch, Batch]:
    """Put halves in the place of a batch whose state the transaction has locked.

    Exactly the ids of the batch are those of the halves: its job's bookmark does not move.
    """
    failpoint("bisect.locked")
    replaced = sa.update(batch).where(batch.c.id == one.id)
    connection.execute(replaced.values(superseded_at=sa.func.clock_timestamp()))
    batch_states.superseded(connection, one.id)
    failpoint("bisect.superseded")
    first, second = _insert(connection, one, halves[0]), _insert(connection, one, halves[1])
    failpoint("bisect.inserted")
    batch_states.halved(connection, [first.id, second.id])
    return first, second


def bad_items(engine: sa.Engine, job_id: int, table: ItemTable) -> list[BadItem]:
    """Find the dead batches of a job and its late job that are down to one item."""
    query = (
        sa.select(*BATCH_ROW)
        .add_columns(attempt.c.error)
        .select_from(batch_state)
        .join(batch, batch.c.id == batch_state.c.batch_id)
        .join(job, job.c.id == batch.c.job_id)
        .outerjoin(
            attempt,
            sa.and_(attempt.c.batch_id == batch.c.id, attempt.c.number == batch_state.c.attempts),
        )
        .where(with_late(job_id), batch_state.c.state == BatchState.DEAD)
        .order_by(batch.c.first_id, batch.c.id)
    )
    with transaction(engine) as connection:
        rows = connection.execute(query).all()
    found = []
    for row in rows:
        one = batch_of(row)
        items = listed(engine, table, one)
        if len(items) == 1:
            place = str(items[0].item)
            found.append(BadItem(batch=one, id=items[0].id, location=place, error=row.error))
    return found


def _insert(connection: sa.Connection, parent: Batch, half: Half) -> Batch:
    values: dict[str, Any] = {
        "first_id": half.id_range.first_id,
        "last_id": half.id_range.last_id,
        "weight": half.weight,
        "item_count": half.count,
        "item_ids": None if half.item_ids is None else list(half.item_ids),
        "parent_id": parent.id,
        "id_runs": None if half.runs is None else [half.runs.firsts, half.runs.lasts],
    }
    kept = sa.select(
        batch.c.job_id,
        batch.c.config,
        *(sa.cast(sa.literal(value), batch.c[name].type) for name, value in values.items()),
    ).where(batch.c.id == parent.id)
    insert = sa.insert(batch).from_select(("job_id", "config", *values), kept)
    batch_id: int = connection.execute(insert.returning(batch.c.id)).scalar_one()
    return Batch(
        id=batch_id,
        job=parent.job,
        id_range=half.id_range,
        weight=half.weight,
        count=half.count,
        item_ids=half.item_ids,
    )


def _job_id(connection: sa.Connection, one: Batch) -> int:
    job_id: int = connection.execute(
        sa.select(batch.c.job_id).where(batch.c.id == one.id)
    ).scalar_one()
    return job_id


def _refuse(connection: sa.Connection, one: Batch) -> None:
    query = sa.select(batch_state.c.state).where(batch_state.c.batch_id == one.id)
    state = BatchState(connection.execute(query).scalar_one())
    if state is BatchState.RUNNING:
        step = "Wait for it to end, or cancel it."
        raise BatchIndivisibleError(one.job, one.label, "an attempt on it is running", step)
    if state in {BatchState.PUBLISHED, BatchState.SUPERSEDED}:
        step = "No action is needed."
        raise BatchIndivisibleError(one.job, one.label, f"it is {state.value} already", step)


def _indivisible(one: Batch, items: Sequence[MetaItem]) -> BatchIndivisibleError:
    if not items:
        step = "Cancel the batch if its items were deleted on purpose."
        return BatchIndivisibleError(one.job, one.label, "none of its items is left", step)
    problem = f"it holds one item, {items[0].id} ({items[0].item})"
    retry = f"batch-pipeline jobs retry {one.job} --batch {one.id}"
    step = f"Repair the item and `{retry}`, or cancel it."
    return BatchIndivisibleError(one.job, one.label, problem, step)
