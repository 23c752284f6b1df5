"""Bookmarks: which ids of a job are planned, as few runs as possible, and the gaps between them.

A job that always went on from where it was has one run; windows may leave it several. Whoever reads
or writes here holds the job's planning lock.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.domain.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline.inventory.tables import bookmark

EVERYWHERE = IdRange(first_id=MIN_ID, last_id=MAX_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Ids of a window that are not planned, with the runs that border on them."""

    ids: IdRange
    run_before: int | None  # first id of the run that ends right before
    run_after: IdRange | None

    @property
    def after_id(self) -> int | None:
        """The id that cutting starts after; None from the first row on."""
        return None if self.ids.first_id == MIN_ID else self.ids.first_id - 1

    def planned_up_to(self, last_id: int) -> IdRange:
        """Give the run that there is once the gap's ids up to one are planned."""
        first_id = self.ids.first_id if self.run_before is None else self.run_before
        if self.run_after is not None and last_id == self.ids.last_id:
            return IdRange(first_id=first_id, last_id=self.run_after.last_id)
        return IdRange(first_id=first_id, last_id=last_id)


_RUNS = (
    sa.select(bookmark.c.first_id, bookmark.c.last_id)
    .where(
        bookmark.c.job_id == sa.bindparam("job_id"),
        bookmark.c.last_id >= sa.bindparam("from_id"),
        bookmark.c.first_id <= sa.bindparam("to_id"),
    )
    .order_by(bookmark.c.first_id)
)


def gaps(connection: sa.Connection, job_id: int, window: IdRange = EVERYWHERE) -> Iterator[Gap]:
    """Give the gaps of a window in rising order."""
    bounds = {
        "job_id": job_id,
        "from_id": max(window.first_id, MIN_ID + 1) - 1,
        "to_id": min(window.last_id, MAX_ID - 1) + 1,
    }
    next_id, run_before = window.first_id, None
    for first_id, last_id in connection.execute(_RUNS, bounds).all():
        if first_id > next_id:
            ids = IdRange(first_id=next_id, last_id=min(first_id - 1, window.last_id))
            run_after = IdRange(first_id=first_id, last_id=last_id)
            yield Gap(ids=ids, run_before=run_before, run_after=run_after)
        next_id, run_before = max(next_id, last_id + 1), first_id
        if next_id > window.last_id:
            return
    ids = IdRange(first_id=next_id, last_id=window.last_id)
    yield Gap(ids=ids, run_before=run_before, run_after=None)


_REACH = pg.insert(bookmark).values(
    job_id=sa.bindparam("job_id"), first_id=sa.bindparam("first_id"), last_id=sa.bindparam("reach")
)
REACH = _REACH.on_conflict_do_update(
    index_elements=[bookmark.c.job_id, bookmark.c.first_id],
    set_={"last_id": _REACH.excluded.last_id},
)


def advance(connection: sa.Connection, job_id: int, gap: Gap, last_id: int) -> None:
    """Record that the ids of a gap up to one are planned."""
    run = gap.planned_up_to(last_id)
    values = {"job_id": job_id, "first_id": run.first_id, "reach": run.last_id}
    connection.execute(REACH, values)
    swallow(connection, job_id, gap, last_id)


def swallow(connection: sa.Connection, job_id: int, gap: Gap, last_id: int) -> None:
    """Remove the run after a gap when the one before it has reached it."""
    if gap.run_after is not None and last_id == gap.ids.last_id:
        absorbed = sa.delete(bookmark).where(
            bookmark.c.job_id == job_id, bookmark.c.first_id == gap.run_after.first_id
        )
        connection.execute(absorbed)


def highest_planned(connection: sa.Connection, job_id: int, window: IdRange) -> int | None:
    """Give the highest planned id within a window."""
    query = sa.select(sa.func.max(sa.func.least(bookmark.c.last_id, window.last_id))).where(
        bookmark.c.job_id == job_id,
        bookmark.c.first_id <= window.last_id,
        bookmark.c.last_id >= window.first_id,
    )
    highest: int | None = connection.execute(query).scalar_one()
    return highest
