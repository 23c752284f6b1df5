"""Split failing batches into halves until the item that fails is alone.

A half that fails is split again after one attempt. Finding a bad item among n items costs the job's
`max_attempts` for the whole batch, about 2 log2(n) attempts on halves, and `max_attempts` for the
item alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory import batch_states
from batch_pipeline.inventory.batch_states import BATCH_ROW, batch_from_row, planned_ids
from batch_pipeline.inventory.connection import lock_planning, transaction
from batch_pipeline.inventory.jobs import job_with_late_arrivals
from batch_pipeline.inventory.meta_tables.reflected_table import MetaItem, ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.registered_table import OwnMetaTable
from batch_pipeline.inventory.tables import UNFINISHED, batch, batch_state, job
from batch_pipeline.model.batch import Batch, BatchState, SplitRange, halve
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.id_range import IdRange, IdRuns

ItemTable = OwnMetaTable | ReflectedMetaTable


@dataclass(frozen=True, slots=True, kw_only=True)
class BadItem:
    """An item that fails in a batch of its own, with its location and last error."""

    batch: Batch
    id: int
    location: str
    error: str | None


def read_items(engine: sa.Engine, table: ItemTable, planned_batch: Batch) -> list[MetaItem]:
    """Read the items that a batch was planned with and that still exist, in id order.

    Rows that arrived later are found by the next audit.
    """
    with transaction(engine) as connection:
        planned = planned_ids(connection, planned_batch)
    return _planned_items(table, planned_batch, planned)


def _planned_items(
    table: ItemTable, planned_batch: Batch, planned: IdRuns | None
) -> list[MetaItem]:
    if isinstance(table, OwnMetaTable):
        return [
            MetaItem(id=item.id, item=item.file.location, weight=item.weight)
            for item in table.items(planned_batch)
        ]
    if planned_batch.item_ids is not None:
        return table.items_of(planned_batch.item_ids)
    return [
        item
        for item in table.items(planned_batch.id_range)
        if planned is None or item.id in planned
    ]


def split_batch(engine: sa.Engine, parent: Batch, table: ItemTable) -> tuple[Batch, Batch]:
    """Replace a batch that is neither published nor running by two halves.

    Reads the items before it locks anything. One transaction then inserts both halves as planned,
    or changes nothing.

    Raises:
        ConfigurationError: the batch has fewer than two items, or is published, split or running.
    """
    with transaction(engine) as connection:
        planned = planned_ids(connection, parent)
    items = _planned_items(table, parent, planned)
    halves = _halve(parent, items, planned)
    if halves is None:
        raise _too_few_items_error(parent, items)
    with transaction(engine) as connection:
        job_id = sa.select(batch.c.job_id).where(batch.c.id == parent.id)
        lock_planning(connection, connection.execute(job_id).scalar_one())
        batch_states.lock(connection, parent.id)
        _ensure_splittable(connection, parent)
        split_into = _insert_halves(connection, parent, halves)
        failpoint("bisect.before_commit")
    failpoint("bisect.after_commit")
    return split_into


def split_first_dead(
    connection: sa.Connection, job_id: int, window: IdRange, table: ItemTable
) -> tuple[Batch, Batch] | None:
    """Split the first divisible dead batch of a job or its late-arrivals job; None without any.

    The caller must hold the job's planning lock. Skips batches that another transaction has locked.
    """
    dead = (
        sa.select(*BATCH_ROW)
        .select_from(batch_state)
        .join(batch, batch.c.id == batch_state.c.batch_id)
        .join(job, job.c.id == batch.c.job_id)
        .where(
            job_with_late_arrivals(job_id),
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
        dead_batch = batch_from_row(row)
        planned = planned_ids(connection, dead_batch)
        halves = _halve(dead_batch, _planned_items(table, dead_batch, planned), planned)
        if halves is not None:
            lock_planning(connection, row.job_id)
            return _insert_halves(connection, dead_batch, halves)
    return None


def _halve(
    parent: Batch, items: Sequence[MetaItem], planned: IdRuns | None
) -> tuple[SplitRange, SplitRange] | None:
    return halve(parent, [(item.id, item.weight) for item in items], planned)


def _insert_halves(
    connection: sa.Connection, parent: Batch, halves: tuple[SplitRange, SplitRange]
) -> tuple[Batch, Batch]:
    """Replace a batch, whose state the transaction has locked, by its halves.

    The halves have exactly the ids of the batch, so the job's bookmark does not move.
    """
    failpoint("bisect.locked")
    update = sa.update(batch).where(batch.c.id == parent.id)
    connection.execute(update.values(superseded_at=sa.func.clock_timestamp()))
    is_parent = batch_state.c.batch_id == parent.id
    batch_states.set_state(connection, is_parent, BatchState.SUPERSEDED)
    failpoint("bisect.superseded")
    first, second = (_insert_half(connection, parent, half) for half in halves)
    failpoint("bisect.inserted")
    batch_states.insert_states(connection, batch.c.id.in_([first.id, second.id]))
    return first, second


def bad_items(engine: sa.Engine, job_id: int, table: ItemTable) -> list[BadItem]:
    """Find the dead batches of one item of a job and its late-arrivals job."""
    is_dead = batch_state.c.state == BatchState.DEAD
    bad = []
    for dead in batch_states.read_statuses(engine, job_with_late_arrivals(job_id), is_dead):
        items = read_items(engine, table, dead.batch)
        if len(items) == 1:
            only, location = items[0], str(items[0].item)
            bad.append(BadItem(batch=dead.batch, id=only.id, location=location, error=dead.error))
    return bad


def _insert_half(connection: sa.Connection, parent: Batch, half: SplitRange) -> Batch:
    values: dict[str, Any] = {
        "first_id": half.id_range.first_id,
        "last_id": half.id_range.last_id,
        "weight": half.weight,
        "item_count": half.count,
        "item_ids": None if half.item_ids is None else list(half.item_ids),
        "parent_id": parent.id,
        "id_runs": None if half.runs is None else [half.runs.firsts, half.runs.lasts],
    }
    parent_values = sa.select(
        batch.c.job_id,
        batch.c.config,
        *(sa.cast(sa.literal(value), batch.c[name].type) for name, value in values.items()),
    ).where(batch.c.id == parent.id)
    insert = sa.insert(batch).from_select(("job_id", "config", *values), parent_values)
    batch_id: int = connection.execute(insert.returning(batch.c.id)).scalar_one()
    return Batch(
        id=batch_id,
        job=parent.job,
        id_range=half.id_range,
        weight=half.weight,
        count=half.count,
        item_ids=half.item_ids,
    )


def _ensure_splittable(connection: sa.Connection, parent: Batch) -> None:
    query = sa.select(batch_state.c.state).where(batch_state.c.batch_id == parent.id)
    state = BatchState(connection.execute(query).scalar_one())
    if state is BatchState.RUNNING:
        step = "Wait for it to end, or cancel it."
        raise _indivisible_error(parent, "an attempt on it is running", step)
    if state in {BatchState.PUBLISHED, BatchState.SUPERSEDED}:
        raise _indivisible_error(parent, f"it is {state.value} already", "No action is needed.")


def _too_few_items_error(parent: Batch, items: Sequence[MetaItem]) -> ConfigurationError:
    if not items:
        step = "If its items were deleted on purpose, cancel the batch."
        return _indivisible_error(parent, "none of its items is left", step)
    problem = f"it holds one item, {items[0].id} ({items[0].item})"
    retry = f"batch-pipeline jobs retry {parent.job} --batch {parent.id}"
    step = f"Repair the item and `{retry}`, or cancel it."
    return _indivisible_error(parent, problem, step)


def _indivisible_error(parent: Batch, problem: str, next_step: str) -> ConfigurationError:
    failed = f"{parent.job}: batch {parent.label} cannot be split: {problem}."
    return ConfigurationError(f"{failed} Nothing was changed. {next_step}")
