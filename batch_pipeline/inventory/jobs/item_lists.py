"""Batches that are lists of ids: writing them, and what ids of a job are listed already.

Lists are outside the exclusion constraint and move no bookmark: who writes them holds the planning
lock and leaves out what is listed already.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing

import sqlalchemy as sa

from batch_pipeline.domain.backfill import cut_lists
from batch_pipeline.domain.planning import Planned
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import batch
from batch_pipeline.inventory.work.batches import Writing, insert_batches

_STREAM_ROWS = 10_000


def insert_lists(
    connection: sa.Connection, writing: Writing, weighed_ids: Iterable[tuple[int, int]]
) -> Planned:
    """Cut `(id, weight)` pairs in rising order into lists and write them as batches.

    Memory is one batch. The caller holds the planning lock.
    """
    return insert_batches(connection, writing, cut_lists(weighed_ids, writing.limits))


def not_listed(
    engine: sa.Engine, job_id: int | None, weighed_ids: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Leave out the ids that a committed list of a job has; both sides are streamed in id order."""
    with closing(_listed(engine, job_id)) as listed:
        known = next(listed, None)
        for item_id, weight in weighed_ids:
            while known is not None and known < item_id:
                known = next(listed, None)
            if known != item_id:
                yield item_id, weight


def _listed(engine: sa.Engine, job_id: int | None) -> Generator[int, None, None]:
    if job_id is None:
        return
    item_id = sa.func.unnest(batch.c.item_ids).label("item_id")
    query = (
        sa.select(item_id)
        .where(
            batch.c.job_id == job_id,
            batch.c.superseded_at.is_(None),
            batch.c.item_ids.is_not(None),
        )
        .order_by(item_id)
        .execution_options(yield_per=_STREAM_ROWS)
    )
    with transaction(engine) as connection, connection.execute(query) as found:
        yield from found.scalars()
