"""Which items a backfill takes that its job does not have yet: as gaps of ids, or one by one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain

import sqlalchemy as sa

from batch_pipeline.domain.backfill import Backfill, Selection
from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.errors import UnknownItemsError
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.id_runs import IdRuns
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.planning import Cut
from batch_pipeline.inventory.jobs.backfill_sources import Past, WeighedIds
from batch_pipeline.inventory.jobs.bookmarks import Gap, gaps
from batch_pipeline.inventory.jobs.item_lists import not_listed
from batch_pipeline.inventory.tables import batch, batch_state, job


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What is to be planned, in rising order: `ranges` of a window, else `items` with weights.

    Both read the meta table while they are iterated, and need no connection of the inventory.
    """

    ranges: Sequence[tuple[Gap, Iterator[Cut]]] = ()
    items: WeighedIds


def choose(
    connection: sa.Connection,
    request: Backfill,
    past: Past,
    *,
    job_id: int | None,
    parent_id: int | None,
) -> Chosen:
    """Choose what a backfill takes and its job does not have; without a job, all of it.

    Raises:
        UnknownItemsError: an item that was named is not there.
    """
    selection, ceiling = request.selection, past.ceiling()
    nothing: WeighedIds = iter(())
    if selection.item_ids is not None:
        wanted = ((item_id, 0) for item_id in sorted(set(selection.item_ids)))
        missing = [item_id for item_id, _ in not_listed(connection.engine, job_id, wanted)]
        return Chosen(items=_named(past, missing, ceiling))
    if ceiling is None or ceiling < selection.ids.first_id:
        return Chosen(items=nothing)
    ids = IdRange(first_id=selection.ids.first_id, last_id=min(ceiling, selection.ids.last_id))
    if selection.is_window:
        return Chosen(ranges=_ranges(connection, request, past, job_id, ids), items=nothing)
    if selection.failed_only:
        items = _failed(connection, past, parent_id, ids)
    else:
        items = past.chosen(ids, selection)
    return Chosen(items=not_listed(connection.engine, job_id, items))


def _ranges(
    connection: sa.Connection, request: Backfill, past: Past, job_id: int | None, ids: IdRange
) -> list[tuple[Gap, Iterator[Cut]]]:
    # A job that is not there has planned nothing, as the job 0, which no job ever is.
    return [
        (gap, past.cuts(gap.after_id, min(gap.ids.last_id, ids.last_id), request.limits))
        for gap in gaps(connection, job_id or 0, request.selection.ids)
        if gap.ids.first_id <= ids.last_id
    ]


def _named(past: Past, item_ids: Sequence[int], ceiling: int | None) -> WeighedIds:
    certain = [item_id for item_id in item_ids if ceiling is not None and item_id <= ceiling]
    weights = dict(past.listed(certain))
    unknown = tuple(item_id for item_id in item_ids if item_id not in weights)
    if unknown:
        raise UnknownItemsError(past.name, unknown, ceiling)
    return iter(weights.items())


def _failed(
    connection: sa.Connection, past: Past, parent_id: int | None, within: IdRange
) -> WeighedIds:
    """Give the items of failed and dead batches of a job and of its late arrivals."""
    late = sa.and_(job.c.parent_id == parent_id, job.c.kind == JobKind.LATE)
    query = (
        sa.select(batch.c.first_id, batch.c.last_id, batch.c.item_ids, batch.c.id_runs)
        .join(batch_state, batch_state.c.batch_id == batch.c.id)
        .join(job, job.c.id == batch.c.job_id)
        .where(
            sa.or_(job.c.id == parent_id, late),
            batch_state.c.state.in_([BatchState.FAILED.value, BatchState.DEAD.value]),
            batch.c.first_id <= within.last_id,
            batch.c.last_id >= within.first_id,
        )
        .order_by(batch.c.first_id)
    )
    rows = connection.execute(query).all()
    ranges = [(row.first_id, row.last_id) for row in rows if row.item_ids is None]
    listed = {item_id for row in rows for item_id in row.item_ids or () if item_id in within}
    planned = IdRuns.joined(
        IdRuns([row.first_id], [row.last_id]) if row.id_runs is None else IdRuns(*row.id_runs)
        for row in rows
        if row.item_ids is None
    )
    # One after the other: each holds a connection while it is read.
    of_ranges = chain.from_iterable(
        past.chosen(ids, Selection()) for ids in _joined(ranges, within)
    )
    items = (item for item in of_ranges if item[0] in planned)
    return _each_once(merge(items, past.listed(sorted(listed))))


def _joined(ranges: Iterable[tuple[int, int]], within: IdRange) -> Iterator[IdRange]:
    """Make one range of those that follow one another, and leave out what is not within."""
    joined: list[tuple[int, int]] = []
    for first_id, last_id in ranges:
        if joined and joined[-1][1] == first_id - 1:
            joined[-1] = (joined[-1][0], last_id)
        else:
            joined.append((first_id, last_id))
    for first_id, last_id in joined:
        yield IdRange(first_id=max(first_id, within.first_id), last_id=min(last_id, within.last_id))


def _each_once(weighed_ids: Iterable[tuple[int, int]]) -> WeighedIds:
    last_id = None
    for item_id, weight in weighed_ids:
        if item_id != last_id:
            yield item_id, weight
        last_id = item_id
