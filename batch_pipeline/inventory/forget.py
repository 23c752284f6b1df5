"""Deleting all rows of one stream."""

import sqlalchemy as sa

from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import (
    attempt,
    attempt_item,
    batch,
    batch_state,
    bookmark,
    item,
    job,
    load,
    part_file,
    schema_version,
)


def forget(engine: sa.Engine, stream: str) -> None:
    """Delete a stream's items, jobs, batches, attempts and manifests in one transaction."""
    jobs = sa.select(job.c.id).where(job.c.stream == stream)
    batches = sa.select(batch.c.id).where(batch.c.job_id.in_(jobs))
    attempts = sa.select(attempt.c.id).where(attempt.c.batch_id.in_(batches))
    with transaction(engine) as connection:
        for delete in (
            sa.delete(load).where(load.c.attempt_id.in_(attempts)),
            sa.delete(part_file).where(part_file.c.attempt_id.in_(attempts)),
            sa.delete(attempt_item).where(attempt_item.c.attempt_id.in_(attempts)),
            sa.delete(attempt).where(attempt.c.batch_id.in_(batches)),
            sa.delete(schema_version).where(schema_version.c.job_id.in_(jobs)),
            sa.delete(batch_state).where(batch_state.c.job_id.in_(jobs)),
            sa.delete(batch).where(batch.c.job_id.in_(jobs)),
            sa.delete(bookmark).where(bookmark.c.job_id.in_(jobs)),
            sa.delete(job).where(job.c.stream == stream),
            sa.delete(item).where(item.c.stream == stream),
        ):
            connection.execute(delete)
