"""Jobs: found by name and meta table, made on first use."""

import json
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.domain.errors import JobChangedError, StreamMovedError, UnknownJobError
from batch_pipeline.domain.job import Job, JobKind, JobTerms
from batch_pipeline.domain.table_identity import COLUMNS
from batch_pipeline.inventory.tables import batch, job


def of_stream(stream: str) -> sa.ColumnElement[bool]:
    """Pick the incremental job of a stream."""
    return sa.and_(job.c.stream == stream, job.c.kind == JobKind.INCREMENTAL)


own_job = job.alias("own_job")  # of the stream that a job is of
is_of_stream = sa.and_(own_job.c.stream == job.c.stream, own_job.c.kind == JobKind.INCREMENTAL)


def held() -> sa.ColumnElement[bool]:
    """Pick jobs that are paused, by themselves or together with the stream that they are of."""
    stream_is_paused = sa.exists().where(is_of_stream, own_job.c.paused_at.is_not(None))
    return sa.or_(job.c.paused_at.is_not(None), stream_is_paused)


def with_late(job_id: int) -> sa.ColumnElement[bool]:
    """Pick a job and the one of its late arrivals."""
    return sa.or_(
        job.c.id == job_id, sa.and_(job.c.parent_id == job_id, job.c.kind == JobKind.LATE)
    )


def open_job(connection: sa.Connection, terms: JobTerms, *, parent_id: int | None = None) -> Job:
    """Find the job that the terms name, or make it; changed numbers of attempts are taken over.

    A job that does not say which table it reads, since an earlier release made it, stores it now.

    Raises:
        JobChangedError: it exists with another filter, with other columns, on another database or
            for another purpose; nothing is changed.
        StreamMovedError: the stream's job is for another table.
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
        if found is None:  # only the rule of one incremental job a stream can have refused it
            before = sa.select(job.c.meta_table).where(of_stream(terms.stream or ""))
            moved_from = connection.execute(before).scalar_one()
            raise StreamMovedError(terms.name, moved_from, terms.meta_table)
    found = _with_identity(connection, found, terms)
    _check(found, terms)
    return _taken_over(connection, found, terms)


def job_to_acquire(connection: sa.Connection, terms: JobTerms) -> Job:
    """Find the job that somebody wants batches of, or make it.

    A backfill is found by its name, filter and table: what it takes was settled when it was
    planned.

    Raises:
        JobChangedError: as from `open_job`.
    """
    found = _find(connection, terms)
    if found is None or found.kind != JobKind.BACKFILL:
        return open_job(connection, terms)
    found = _with_identity(connection, found, terms)
    check_rows(found, terms)
    return _taken_over(connection, found, terms)


def known_job(connection: sa.Connection, terms: JobTerms) -> int | None:
    """Give the id of the job that the terms name, None when there is none; nothing is written.

    Raises:
        JobChangedError: it exists with other terms.
    """
    found = _find(connection, terms)
    if found is None:
        return None
    _check(found, terms)
    found_id: int = found.id
    return found_id


def job_id_of(connection: sa.Connection, name: str, meta_table: str) -> int:
    """Give the id of a job.

    Raises:
        UnknownJobError: there is none of this name on the table.
    """
    query = sa.select(job.c.name, job.c.id).where(job.c.meta_table == meta_table)
    ids = {row.name: row.id for row in connection.execute(query.order_by(job.c.name))}
    if name not in ids:
        raise UnknownJobError(name, tuple(ids))
    found: int = ids[name]
    return found


def job_of(row: sa.Row[Any]) -> Job:
    """Build a job from a row of its table."""
    return Job(
        id=row.id,
        name=row.name,
        meta_table=row.meta_table,
        kind=JobKind(row.kind),
        stream=row.stream,
        max_attempts=row.max_attempts,
        bisect=row.bisect,
        paused=None if row.paused_at is None else row.paused_reason or "",
    )


def check_rows(found: sa.Row[Any], terms: JobTerms) -> None:
    """Check that a job reads the rows that the terms name.

    Raises:
        JobChangedError: its filter, a column or its database is another one.
    """
    if found.config.get("where") != terms.config().get("where"):
        raise JobChangedError(terms.name, terms.meta_table, "its filter is another one")
    _check_identity(found, terms)


def _check(found: sa.Row[Any], terms: JobTerms) -> None:
    if (found.kind, found.stream) != (terms.kind, terms.stream):
        raise JobChangedError(terms.name, terms.meta_table, f"its kind is {found.kind!r}")
    for part, problem in (
        ("where", "its filter is another one"),
        ("selection", "it takes other items"),
        ("limits", "it has other limits"),
    ):
        made_with = found.config.get(part)
        if made_with != terms.config().get(part):
            shown = f" ({json.dumps(made_with, sort_keys=True)})" if made_with else ""
            raise JobChangedError(terms.name, terms.meta_table, f"{problem}{shown}")
    _check_identity(found, terms)


def _check_identity(found: sa.Row[Any], terms: JobTerms) -> None:
    if terms.identity is None:
        return
    problems = "; ".join(terms.identity.differences(found.config))
    if problems:
        step = terms.identity.next_step(found.config)
        raise JobChangedError(terms.name, terms.meta_table, problems, step)


def _with_identity(connection: sa.Connection, found: sa.Row[Any], terms: JobTerms) -> sa.Row[Any]:
    """Store what a job reads where it does not say so, and return its row.

    The columns are those of its newest batch where that tells them: the columns of this call may be
    others, and the bookmark means the ones of before.
    """
    identity = {} if terms.identity is None else terms.identity.to_json()
    missing = {key: fact for key, fact in identity.items() if key not in found.config}
    if not missing:
        return found
    if COLUMNS in missing:
        before = _columns_of_newest_batch(connection, found) or missing[COLUMNS]
        if _folded(before) != _folded(missing[COLUMNS]):
            missing[COLUMNS] = before
    # What another process has stored meanwhile stays.
    config = sa.literal(missing, pg.JSONB).op("||", return_type=pg.JSONB())(job.c.config)
    update = sa.update(job).where(job.c.id == found.id).values(config=config).returning(job)
    return connection.execute(update).one()


def _columns_of_newest_batch(connection: sa.Connection, found: sa.Row[Any]) -> Any:
    """Read the columns that batches of the library have in their configuration, else None."""
    if found.stream is not None:
        return None
    columns = batch.c.config["meta_table"]["cols"]
    query = sa.select(columns).where(batch.c.job_id == found.id, columns.is_not(None))
    return connection.execute(query.order_by(batch.c.id.desc()).limit(1)).scalar_one_or_none()


def _folded(columns: dict[str, str | None]) -> dict[str, str | None]:
    # Imported batches have the names as their users wrote them, not as the catalogue has them.
    return {role: None if name is None else name.casefold() for role, name in columns.items()}


def _taken_over(connection: sa.Connection, found: sa.Row[Any], terms: JobTerms) -> Job:
    """Give a job as it is, after taking over how often its batches are to be tried."""
    if (found.max_attempts, found.bisect) != (terms.max_attempts, terms.bisect):
        values = {"max_attempts": terms.max_attempts, "bisect": terms.bisect}
        connection.execute(sa.update(job).where(job.c.id == found.id).values(values))
    return replace(job_of(found), max_attempts=terms.max_attempts, bisect=terms.bisect)


def _find(connection: sa.Connection, terms: JobTerms) -> sa.Row[Any] | None:
    query = sa.select(job).where(job.c.name == terms.name, job.c.meta_table == terms.meta_table)
    return connection.execute(query).one_or_none()
