"""Jobs and batches by the names that people give them.

A batch goes by its number, its partition key, or `first..last`, which is what lists and negative
ids have instead of a key. Nothing is locked or changed here.
"""

import re

import sqlalchemy as sa

from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.errors import (
    AmbiguousJobError,
    InvalidValueError,
    UnknownJobBatchError,
    UnknownJobError,
)
from batch_pipeline.domain.id_range import MAX_ID, IdRange
from batch_pipeline.domain.job import Job, check_storable
from batch_pipeline.domain.partition_key import parse_partition_key
from batch_pipeline.inventory.jobs.jobs import job_of, with_late
from batch_pipeline.inventory.tables import batch, job
from batch_pipeline.inventory.work.batch_rows import BATCH_ROW, batch_of

_RANGE = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)")


def find_job(connection: sa.Connection, name: str, meta_table: str | None) -> Job:
    """Find a job by its name; None stands for any meta table.

    Raises:
        InvalidValueError: no job can have the name.
        UnknownJobError: there is none.
        AmbiguousJobError: several meta tables have one, and none was named.
    """
    named = job.c.name == check_storable("job", name)
    rows = connection.execute(sa.select(job).where(named)).all()
    found = [row for row in rows if meta_table in {None, row.meta_table}]
    if not found:
        known = sa.select(job.c.name).distinct().order_by(job.c.name)
        raise UnknownJobError(name, tuple(connection.execute(known).scalars()))
    if len(found) > 1:
        raise AmbiguousJobError(name, tuple(sorted(row.meta_table for row in found)))
    return job_of(found[0])


def find_batch(connection: sa.Connection, one: Job, which: int | str) -> Batch:
    """Find a batch of a job, or of its late job, that was not split.

    Raises:
        UnknownJobBatchError: there is none.
        InvalidValueError: several have this name.
    """
    text = str(which)
    query = sa.select(*BATCH_ROW).join(job).where(with_late(one.id))
    query = query.where(batch.c.superseded_at.is_(None))
    if text.isascii() and text.isdigit():
        query = query.where(batch.c.id == min(int(text), MAX_ID))
    else:
        ids = _id_range(one, text)
        query = query.where(batch.c.first_id == ids.first_id, batch.c.last_id == ids.last_id)
    rows = connection.execute(query.order_by(batch.c.id)).all()
    if not rows:
        raise UnknownJobBatchError(one.name, text)
    if len(rows) > 1:  # lists of ids may begin and end alike
        numbers = ", ".join(str(row.id) for row in rows)
        raise InvalidValueError("batch", text, f"the number of one of these batches: {numbers}")
    return batch_of(rows[0])


def _id_range(one: Job, text: str) -> IdRange:
    try:
        match = _RANGE.fullmatch(text)
        if match is None:
            return parse_partition_key(text)
        return IdRange(first_id=int(match[1]), last_id=int(match[2]))
    except InvalidValueError as error:
        raise UnknownJobBatchError(one.name, text) from error
