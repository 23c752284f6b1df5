"""How far jobs are. Reads only."""

from collections import defaultdict
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.backfill import Progress
from batch_pipeline.domain.batch import BatchState
from batch_pipeline.inventory.jobs.paces import pace
from batch_pipeline.inventory.tables import batch, batch_state, job

_LEFT = {BatchState.PLANNED, BatchState.RUNNING, BatchState.INTERRUPTED, BatchState.FAILED}


def of_jobs(connection: sa.Connection, which: sa.ColumnElement[bool]) -> list[Progress]:
    """Tell how far some jobs are, oldest first."""
    query = (
        sa.select(
            job.c.id,
            job.c.name,
            job.c.stream,
            job.c.parent_id,
            batch_state.c.state,
            sa.func.count(batch.c.id).label("batches"),
            sa.cast(sa.func.coalesce(sa.func.sum(batch.c.item_count), 0), sa.BigInteger).label(
                "items"
            ),
            sa.func.coalesce(sa.func.sum(batch.c.weight), 0).label("weight"),
        )
        .select_from(job)
        .outerjoin(batch_state, batch_state.c.job_id == job.c.id)
        .outerjoin(batch, batch.c.id == batch_state.c.batch_id)
        .where(which)
        .group_by(job.c.id, batch_state.c.state)
        .order_by(job.c.id, batch_state.c.state)
    )
    groups: dict[int, list[sa.Row[Any]]] = defaultdict(list)
    for row in connection.execute(query):
        groups[row.id].append(row)
    return [_progress(connection, rows) for rows in groups.values()]


def _progress(connection: sa.Connection, rows: list[sa.Row[Any]]) -> Progress:
    by_state = {BatchState(row.state): row for row in rows if row.state is not None}
    by_state.pop(BatchState.SUPERSEDED, None)  # its parts are there instead
    done = by_state.get(BatchState.PUBLISHED)
    return Progress(
        job=rows[0].name,
        states={state: row.batches for state, row in by_state.items()},
        items=sum(row.items for row in by_state.values()),
        items_done=0 if done is None else done.items,
        weight=int(sum(row.weight for row in by_state.values())),
        weight_done=0 if done is None else int(done.weight),
        remaining=_remaining(connection, rows[0], by_state),
    )


def _remaining(
    connection: sa.Connection, one: sa.Row[Any], by_state: dict[BatchState, sa.Row[Any]]
) -> timedelta | None:
    """Tell how long as many workers as there are now take for what is left."""
    left = [row for state, row in by_state.items() if state in _LEFT]
    if not left:
        return timedelta(0)
    same_stream = sa.and_(job.c.stream.is_not(None), job.c.stream == one.stream)
    known = pace(connection, job.c.id == one.id, job.c.id == one.parent_id, same_stream)
    if known is None:
        return None
    running = by_state.get(BatchState.RUNNING)
    workers = 1 if running is None else running.batches
    batches, weight = sum(row.batches for row in left), int(sum(row.weight for row in left))
    return timedelta(seconds=known.seconds(batches, weight) / workers)
