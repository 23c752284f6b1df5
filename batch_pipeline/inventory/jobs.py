"""Jobs: found by name and meta table, made on first use."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.domain.errors import JobChangedError
from batch_pipeline.domain.job import Job, JobKind, JobTerms
from batch_pipeline.inventory.tables import job


def of_stream(stream: str) -> sa.ColumnElement[bool]:
    """Pick the incremental job of a stream."""
    return sa.and_(job.c.stream == stream, job.c.kind == JobKind.INCREMENTAL)


def open_job(connection: sa.Connection, terms: JobTerms, *, parent_id: int | None = None) -> Job:
    """Find the job that the terms name, or make it; changed numbers of attempts are taken over.

    Raises:
        JobChangedError: it exists with another filter or for another purpose; nothing is changed.
    """
    found = _find(connection, terms)
    if found is None:
        insert = pg.insert(job).values(
            name=terms.name,
            meta_table=terms.meta_table,
            kind=terms.kind.value,
            stream=terms.stream,
            parent_id=parent_id,
            config=terms.config(),
            max_attempts=terms.max_attempts,
            bisect=terms.bisect,
        )
        connection.execute(insert.on_conflict_do_nothing())
        found = _find(connection, terms)
        if found is None:
            raise JobChangedError(terms.name, terms.meta_table, "another stream has this name")
    if found.config != terms.config():
        raise JobChangedError(terms.name, terms.meta_table, "its filter is another one")
    if (found.kind, found.stream) != (terms.kind, terms.stream):
        raise JobChangedError(terms.name, terms.meta_table, f"it is there as a {found.kind} job")
    if (found.max_attempts, found.bisect) != (terms.max_attempts, terms.bisect):
        values = {"max_attempts": terms.max_attempts, "bisect": terms.bisect}
        connection.execute(sa.update(job).where(job.c.id == found.id).values(values))
    return Job(
        id=found.id,
        name=terms.name,
        meta_table=terms.meta_table,
        kind=terms.kind,
        stream=terms.stream,
        max_attempts=terms.max_attempts,
        bisect=terms.bisect,
        paused=None if found.paused_at is None else found.paused_reason or "",
    )


def _find(connection: sa.Connection, terms: JobTerms) -> sa.Row[tuple[object, ...]] | None:
    query = sa.select(job).where(job.c.name == terms.name, job.c.meta_table == terms.meta_table)
    return connection.execute(query).one_or_none()
