"""Whether the live ranges of a job tile what its bookmarks call planned. Reads only."""

from collections import defaultdict
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.id_range import MIN_ID
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.standing import Tiling
from batch_pipeline.inventory.tables import batch, bookmark, job


def tiling(connection: sa.Connection, job_id: int) -> Tiling:
    """Find ids in two live batches of a job, or in none although they are planned.

    Late items are looked at too: each is in one live batch of the job's late job.
    """
    ranges = _ranges(job_id)
    overlaps = list(connection.execute(_overlaps(ranges)))
    holes = [*connection.execute(_gaps(ranges, job_id)), *_ends(connection, ranges, job_id)]
    doubled = list(connection.execute(_doubled(job_id)).scalars())
    count = sa.select(sa.func.count()).select_from(ranges)
    return Tiling(
        batches=connection.execute(count).scalar_one(),
        overlaps=len(overlaps),
        holes=len(holes),
        doubled_items=len(doubled),
        worst=_worst(overlaps, holes, doubled),
    )


def _ranges(job_id: int) -> sa.Subquery:
    """Give the live ranges of a job, each with the highest id of those before it."""
    before = sa.func.max(batch.c.last_id).over(
        order_by=(batch.c.first_id, batch.c.id), rows=(None, -1)
    )
    return (
        sa.select(batch.c.first_id, batch.c.last_id, before.label("before"))
        .where(
            batch.c.job_id == job_id,
            batch.c.superseded_at.is_(None),
            batch.c.item_ids.is_(None),
        )
        .subquery("ranges")
    )


def _overlaps(ranges: sa.Subquery) -> sa.Select[Any]:
    return sa.select(ranges.c.first_id, ranges.c.before.label("last_id")).where(
        ranges.c.first_id <= ranges.c.before
    )


def _gaps(ranges: sa.Subquery, job_id: int) -> sa.Select[Any]:
    """Select the ids between two batches which a bookmark calls planned."""
    claimed = sa.exists().where(
        bookmark.c.job_id == job_id,
        bookmark.c.first_id < ranges.c.first_id,
        bookmark.c.last_id > ranges.c.before,
    )
    return sa.select(
        (ranges.c.before + 1).label("first_id"), (ranges.c.first_id - 1).label("last_id")
    ).where(ranges.c.first_id > ranges.c.before + 1, claimed)


def _ends(connection: sa.Connection, ranges: sa.Subquery, job_id: int) -> list[tuple[int, int]]:
    """Give the ids at both ends of bookmarks that no batch has; only the first has no start."""
    inside = sa.and_(
        ranges.c.first_id >= bookmark.c.first_id, ranges.c.last_id <= bookmark.c.last_id
    )
    query = (
        sa.select(
            bookmark.c.first_id,
            bookmark.c.last_id,
            sa.func.min(ranges.c.first_id).label("lowest"),
            sa.func.max(ranges.c.last_id).label("highest"),
        )
        .select_from(bookmark.outerjoin(ranges, inside))
        .where(bookmark.c.job_id == job_id)
        .group_by(bookmark.c.first_id, bookmark.c.last_id)
    )
    ends = []
    for run in connection.execute(query):
        if run.lowest is None:
            ends.append((run.first_id, run.last_id))
            continue
        if run.first_id not in {MIN_ID, run.lowest}:
            ends.append((run.first_id, run.lowest - 1))
        if run.highest != run.last_id:
            ends.append((run.highest + 1, run.last_id))
    return ends


def _doubled(job_id: int) -> sa.Select[Any]:
    """Select the late items that are in two live batches."""
    listed = (
        sa.select(sa.func.unnest(batch.c.item_ids).label("item_id"))
        .join(job, job.c.id == batch.c.job_id)
        .where(
            job.c.parent_id == job_id,
            job.c.kind == JobKind.LATE,
            batch.c.superseded_at.is_(None),
        )
        .subquery("listed")
    )
    return sa.select(listed.c.item_id).group_by(listed.c.item_id).having(sa.func.count() > 1)


def _worst(overlaps: list[Any], holes: list[Any], doubled: list[int]) -> str | None:
    found: dict[str, list[Any]] = defaultdict(list)
    found["ids {0[0]}..{0[1]} are in two live batches"] += overlaps
    found["ids {0[0]}..{0[1]} are planned and in no live batch"] += holes
    for text, ranges in found.items():
        if ranges:
            return text.format(max(ranges, key=lambda one: one[1] - one[0]))
    return f"item {doubled[0]} is in two late batches" if doubled else None
