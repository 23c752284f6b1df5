"""Where a job on a user's meta table stands: batches, and what is not planned. Reads only."""

import sqlalchemy as sa

from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.job import JobKind, JobStatus, JobTerms
from batch_pipeline.inventory.jobs.bookmarks import EVERYWHERE, gaps
from batch_pipeline.inventory.jobs.jobs import check_rows, with_late
from batch_pipeline.inventory.meta.ceilings.ceiling import describe
from batch_pipeline.inventory.meta.meta_engine import reading_once
from batch_pipeline.inventory.meta.meta_queries import Facts
from batch_pipeline.inventory.meta.meta_source import MetaSource
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import batch_state, job
from batch_pipeline.inventory.work.batches import status_of, status_query

_FINISHED = (BatchState.PUBLISHED.value, BatchState.SUPERSEDED.value)


def standing(inventory: sa.Engine, terms: JobTerms, source: MetaSource) -> JobStatus:
    """Tell where a job stands; of one that nobody has acquired from, what there is to acquire.

    Counts what is not planned, which costs as much as reading the ids and weights of it.

    Raises:
        JobChangedError: the job has another filter, other columns or another database.
        PipelineError: as from reading the meta table.
    """
    named = sa.and_(job.c.name == terms.name, job.c.meta_table == terms.meta_table)
    with transaction(inventory) as connection:
        found = connection.execute(sa.select(job).where(named)).one_or_none()
        if found is not None:
            check_rows(found, terms)
        job_id = 0 if found is None else found.id
        counts = (
            sa.select(batch_state.c.state, sa.func.count().label("batches"))
            .join(job, job.c.id == batch_state.c.job_id)
            .where(with_late(job_id))
            .group_by(batch_state.c.state)
        )
        batches = {BatchState(row.state): row.batches for row in connection.execute(counts)}
        unfinished = status_query().where(with_late(job_id), batch_state.c.state.not_in(_FINISHED))
        statuses = tuple(status_of(row) for row in connection.execute(unfinished))
        grows = found is None or found.kind != JobKind.BACKFILL
        left = [gap.ids for gap in gaps(connection, job_id, EVERYWHERE)] if grows else []
    items, weight = _totals(source.table, left)
    is_paused = found is not None and found.paused_at is not None
    return JobStatus(
        name=terms.name,
        meta_table=terms.meta_table,
        paused=found.paused_reason or "" if found is not None and is_paused else None,
        batches=batches,
        unfinished=statuses,
        items_not_planned=items,
        weight_not_planned=weight,
        ceiling=describe(source.reading()),
    )


def _totals(table: ReflectedMetaTable, ranges: list[IdRange]) -> tuple[int, int]:
    """Count the items of ranges and their weight; one that is refused counts nothing."""
    items = weight = 0
    for ids in ranges:
        bounds = {"first_id": ids.first_id, "last_id": ids.last_id}
        with reading_once(table.engine) as connection:
            facts = Facts.of(connection.execute(table.queries.facts, bounds).one())
        items, weight = items + facts.count, weight + facts.weight
    return items, weight
