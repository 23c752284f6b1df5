"""Items of a range that are in a list of late arrivals: a range read again leaves them to it."""

import sqlalchemy as sa

from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.job import JobKind
from batch_pipeline.inventory.tables import batch, job


def late_items(one: Batch) -> sa.Select[int]:
    """Give the query of the ids that late batches have of a batch's range.

    An attempt on a published batch must not read what a late batch has meanwhile.
    """
    owner = sa.select(batch.c.job_id).where(batch.c.id == one.id).scalar_subquery()
    return (
        sa.select(sa.func.unnest(batch.c.item_ids, type_=sa.BigInteger))
        .join(job, job.c.id == batch.c.job_id)
        .where(
            job.c.parent_id == owner,
            job.c.kind == JobKind.LATE,
            batch.c.first_id <= one.id_range.last_id,
            batch.c.last_id >= one.id_range.first_id,
        )
    )
