"""What the inventory has of a job that is to be imported: which rows, and whether it went on alone.

Each imported batch keeps in its config which rows it was made of. Reads only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.imported import KnownRow
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.table_identity import without_identity
from batch_pipeline.inventory.tables import batch, bookmark, job

MARK = "pybatchintory"  # key of a batch's config


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The job as it is here; `problem` says why nothing can be added to it.

    `known` are the rows that were imported, by their ids, as they were; `own` counts batches that
    were not imported. `bookmark` is the highest id that is planned.
    """

    known: Mapping[int, KnownRow] = field(default_factory=dict)
    own: int = 0
    bookmark: int | None = None
    max_attempts: int = 3
    bisect: bool = False
    problem: str | None = None


def standing_of(connection: sa.Connection, name: str, meta_table: str) -> Standing:
    """Tell how a job stands; one that is not there has nothing."""
    query = sa.select(job).where(job.c.name == name, job.c.meta_table == meta_table)
    found = connection.execute(query).one_or_none()
    if found is None:
        return Standing()
    marks = sa.select(batch.c.config[MARK]["rows"]).where(
        batch.c.job_id == found.id, batch.c.superseded_at.is_(None)
    )
    known: dict[int, KnownRow] = {}
    own = 0
    for rows in connection.execute(marks).scalars():
        own += rows is None
        for row_id, status, first_id, last_id in rows or ():
            known[row_id] = KnownRow(status, IdRange(first_id=first_id, last_id=last_id))
    highest = sa.select(sa.func.max(bookmark.c.last_id)).where(bookmark.c.job_id == found.id)
    return Standing(
        known=known,
        own=own,
        bookmark=connection.execute(highest).scalar_one(),
        max_attempts=found.max_attempts,
        bisect=found.bisect,
        problem=_problem(found),
    )


def _problem(found: sa.Row[Any]) -> str | None:
    if found.stream is not None:
        return f"the stream {found.stream} has a job of this name on {found.meta_table}"
    if found.kind != JobKind.INCREMENTAL:
        return f"a job of this name on {found.meta_table} is here for another purpose"
    if without_identity(found.config):
        return f"the job of this name on {found.meta_table} has a filter here"
    return None
