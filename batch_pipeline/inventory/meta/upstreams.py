"""Which job a chained job reads: found by name, and never the job itself, over however many others.

Reads the rows of jobs only.
"""

from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.chain import Upstream, upstream_of
from batch_pipeline.domain.errors import ChainCycleError, UpstreamAmbiguousError
from batch_pipeline.domain.filter import parse_filter
from batch_pipeline.inventory.tables import SCHEMA, job

PUBLISHED = f"{SCHEMA}.published"


def resolved(connection: sa.Connection, reader: str, asked: Upstream) -> Upstream | None:
    """Find the job that a reader asks for, with its meta table; None while there is none.

    A reader that was there before a second job took the name goes on with the first.

    Raises:
        UpstreamAmbiguousError: several jobs have the name, and the reader is new.
        ChainCycleError: the reader would read its own rows.
    """
    found = _named(connection, asked)
    is_own = asked.job == reader and asked.meta_table in {None, PUBLISHED}
    tables = {row.meta_table for row in found} | ({PUBLISHED} if is_own else set())
    if len(tables) > 1 and not _named(connection, Upstream(job=reader, meta_table=PUBLISHED)):
        ordered = sorted(tables, key=lambda name: (name == PUBLISHED, name))
        raise UpstreamAmbiguousError(reader, asked.job, tuple(ordered))
    _refuse_cycle(connection, reader, asked)
    return None if not found else Upstream(job=found[0].name, meta_table=found[0].meta_table)


def known_jobs(connection: sa.Connection) -> list[str]:
    """Read the names of all jobs."""
    return list(connection.execute(sa.select(job.c.name).distinct().order_by(job.c.name)).scalars())


def _refuse_cycle(connection: sa.Connection, reader: str, asked: Upstream) -> None:
    read, step = [reader], asked
    while True:
        found = _named(connection, step)
        if not found and step.job == reader and step.meta_table in {None, PUBLISHED}:
            raise ChainCycleError((*read, reader))  # it would be, were the reader not new
        if not found or found[0].meta_table != PUBLISHED:
            return
        name: str = found[0].name
        if name in read:
            raise ChainCycleError((*read[read.index(name) :], name))
        read.append(name)
        step = upstream_of(name, parse_filter(found[0].config["where"]))


def _named(connection: sa.Connection, asked: Upstream) -> tuple[sa.Row[Any], ...]:
    """Read the jobs of a name, the oldest first."""
    query = sa.select(job.c.name, job.c.meta_table, job.c.config).where(job.c.name == asked.job)
    if asked.meta_table is not None:
        query = query.where(job.c.meta_table == asked.meta_table)
    return tuple(connection.execute(query.order_by(job.c.id)))
