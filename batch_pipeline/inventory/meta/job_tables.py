"""The meta table of a job that is known by name only: how it was read is kept with its batches."""

import sqlalchemy as sa

from batch_pipeline.domain.filter import parse_filter
from batch_pipeline.domain.job import Job
from batch_pipeline.domain.table_identity import COLUMNS
from batch_pipeline.inventory.meta.column_roles import MetaColumns
from batch_pipeline.inventory.meta.meta_sources import SourceTerms
from batch_pipeline.inventory.meta.published import PUBLISHED_COLUMNS, is_published
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import batch, job


def terms_of_job(inventory: sa.Engine, one: Job) -> SourceTerms:
    """Say how to read a job's meta table: by the columns that it stores, else as its last batch.

    Batches that do not tell are passed by; columns that no batch of the table tells go by their
    usual names.
    """
    told = batch.c.config["meta_table"]["cols"]
    query = (
        sa.select(batch.c.config)
        .join(job, job.c.id == batch.c.job_id)
        .where(job.c.meta_table == one.meta_table, told.is_not(None))
        .order_by((job.c.id == one.id).desc(), batch.c.id.desc())
        .limit(1)
    )
    with transaction(inventory) as connection:
        config = connection.execute(query).scalar_one_or_none()
        of_job = connection.execute(sa.select(job.c.config).where(job.c.id == one.id)).scalar_one()
    where = of_job.get("where")
    known = of_job.get(COLUMNS) or (config and config["meta_table"]["cols"])
    usual = PUBLISHED_COLUMNS if is_published(one.meta_table) else MetaColumns()
    return SourceTerms(
        name=one.meta_table,
        columns=MetaColumns(**known) if known else usual,
        where=None if where is None else parse_filter(where),
        on_bad_weight=None if config is None else config.get("on_bad_weight"),
        reader=one.name,
    )
