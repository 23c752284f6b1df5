"""Batches from rows of their table, and what took the place of one that was split. Reads only."""

import re
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.backfill import backfill_name
from batch_pipeline.domain.backfill_key import backfill_key
from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline.domain.id_runs import IdRuns
from batch_pipeline.domain.job import JobKind
from batch_pipeline.inventory.tables import batch, job

# Without the planned ids, which may be as many as the batch has items: `planned_ids` reads those of
# one batch when its items are read.
BATCH_ROW: tuple[sa.Column[Any], ...] = (
    *(column for column in batch.c if column is not batch.c.id_runs),
    job.c.name,
)
_FIRST_ID = re.compile(r"(-?[0-9]{1,19})(?:-|\.\.)")


def batch_of(row: sa.Row[Any]) -> Batch:
    """Build a batch from a row of `BATCH_ROW`."""
    return Batch(
        id=row.id,
        job=row.name,
        id_range=IdRange(first_id=row.first_id, last_id=row.last_id),
        weight=row.weight,
        count=row.item_count,
        oversized=row.oversized,
        item_ids=None if row.item_ids is None else tuple(row.item_ids),
    )


def planned_ids(connection: sa.Connection, one: Batch) -> IdRuns | None:
    """Return the ids that a batch's range was planned with; None if it has all of its range."""
    ids = one.id_range
    if one.item_ids is not None or one.count == ids.last_id - ids.first_id + 1:
        return None
    query = sa.select(batch.c.id_runs).where(batch.c.id == one.id)
    stored = connection.execute(query).scalar_one_or_none()
    return None if stored is None else IdRuns(*stored)


def label_of(row: sa.Row[Any]) -> str:
    """Name a batch as its partition is named, or by its job where it has none.

    The row is as for `batch_of`, with kind and stream of the job.
    """
    one = batch_of(row)
    kind = JobKind(row.kind)
    if kind is JobKind.INCREMENTAL:
        return one.label
    if kind is JobKind.BACKFILL:
        return backfill_key(backfill_name(row.stream, row.name), one.id_range)
    return f"{one.label} of {row.name}"


def may_be_called(labels: Collection[str]) -> sa.ColumnElement[bool]:
    """Narrow batches down to those that begin as the names say that `label_of` gives.

    Batches of several jobs may begin with the same id, so the names of what is found decide.
    """
    found = (_FIRST_ID.match(label.rpartition(":")[2]) for label in labels)
    firsts = {int(one[1]) for one in found if one is not None}
    known = sorted(first for first in firsts if MIN_ID <= first <= MAX_ID)
    return batch.c.first_id == sa.any_(sa.cast(known, sa.ARRAY(sa.BigInteger)))


def parts_of(
    connection: sa.Connection, which: sa.ColumnElement[bool], ids: IdRange
) -> tuple[Batch, ...]:
    """Find the live batches that a split one of this range became, in id order; none if none was.

    `which` picks the job. Halves lie within what they are halves of, and have higher numbers.
    """
    query = (
        sa.select(*BATCH_ROW)
        .join(job)
        .where(which, batch.c.first_id >= ids.first_id, batch.c.last_id <= ids.last_id)
        .order_by(batch.c.id)
    )
    family: set[int] = set()
    live: list[Batch] = []
    for row in connection.execute(query):
        is_split = row.superseded_at is not None
        is_asked_for = (row.first_id, row.last_id) == (ids.first_id, ids.last_id)
        if row.parent_id in family or (is_split and is_asked_for):
            family.add(row.id)
            if not is_split:
                live.append(batch_of(row))
    return tuple(sorted(live, key=lambda one: one.id_range))
