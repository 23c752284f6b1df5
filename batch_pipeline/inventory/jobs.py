"""Jobs and their bookmarks: find or create a job, and read and advance its bookmark."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.inventory.batch_states import BATCH_ROW, batch_from_row
from batch_pipeline.inventory.tables import batch, bookmark, job
from batch_pipeline.model.backfill import backfill_name
from batch_pipeline.model.batch import (
    MAX_ID,
    MIN_ID,
    Batch,
    IdRange,
    parse_late_key,
    parse_partition_key,
)
from batch_pipeline.model.errors import (
    AmbiguousJobError,
    InvalidValueError,
    JobChangedError,
    MetaTableError,
    UnknownBatchError,
    UnknownJobError,
)
from batch_pipeline.model.job import COLUMNS, Job, JobKind, JobTerms, check_storable

ALL_IDS = IdRange(first_id=MIN_ID, last_id=MAX_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A range of unplanned ids within a window, with the adjacent runs of planned ids."""

    ids: IdRange
    run_before: int | None  # first id of the run that ends right before
    run_after: IdRange | None

    @property
    def after_id(self) -> int | None:
        """The id to cut after; None to start at the first row."""
        return None if self.ids.first_id == MIN_ID else self.ids.first_id - 1

    def planned_up_to(self, last_id: int) -> IdRange:
        """Return the run that results from planning the gap up to `last_id`."""
        first_id = self.ids.first_id if self.run_before is None else self.run_before
        if self.run_after is not None and last_id == self.ids.last_id:
            return IdRange(first_id=first_id, last_id=self.run_after.last_id)
        return IdRange(first_id=first_id, last_id=last_id)


_RUNS = (
    sa.select(bookmark.c.first_id, bookmark.c.last_id)
    .where(
        bookmark.c.job_id == sa.bindparam("job_id"),
        bookmark.c.last_id >= sa.bindparam("from_id"),
        bookmark.c.first_id <= sa.bindparam("to_id"),
    )
    .order_by(bookmark.c.first_id)
)


def gaps(connection: sa.Connection, job_id: int, window: IdRange) -> Iterator[Gap]:
    """Yield the gaps of a window in ascending order."""
    bounds = {
        "job_id": job_id,
        "from_id": max(window.first_id, MIN_ID + 1) - 1,
        "to_id": min(window.last_id, MAX_ID - 1) + 1,
    }
    next_id, run_before = window.first_id, None
    for first_id, last_id in connection.execute(_RUNS, bounds).all():
        if first_id > next_id:
            run_after = IdRange(first_id=first_id, last_id=last_id)
            ids = IdRange(first_id=next_id, last_id=min(first_id - 1, window.last_id))
            yield Gap(ids=ids, run_before=run_before, run_after=run_after)
        next_id, run_before = max(next_id, last_id + 1), first_id
        if next_id > window.last_id:
            return
    ids = IdRange(first_id=next_id, last_id=window.last_id)
    yield Gap(ids=ids, run_before=run_before, run_after=None)


def advance(connection: sa.Connection, job_id: int, gap: Gap, last_id: int) -> None:
    """Advance the bookmark: record that a gap is planned up to `last_id`."""
    run = gap.planned_up_to(last_id)
    insert = pg.insert(bookmark).values(job_id=job_id, first_id=run.first_id, last_id=run.last_id)
    upsert = insert.on_conflict_do_update(
        index_elements=[bookmark.c.job_id, bookmark.c.first_id],
        set_={"last_id": insert.excluded.last_id},
    )
    connection.execute(upsert)
    merge_with_next_run(connection, job_id, gap, last_id)


def merge_with_next_run(connection: sa.Connection, job_id: int, gap: Gap, last_id: int) -> None:
    """Delete the run after a gap if the run before it now reaches it."""
    if gap.run_after is not None and last_id == gap.ids.last_id:
        absorbed = sa.delete(bookmark).where(
            bookmark.c.job_id == job_id, bookmark.c.first_id == gap.run_after.first_id
        )
        connection.execute(absorbed)


def highest_planned(connection: sa.Connection, job_id: int, window: IdRange) -> int | None:
    """Return the highest planned id within a window; None if there is none."""
    query = sa.select(sa.func.max(sa.func.least(bookmark.c.last_id, window.last_id))).where(
        bookmark.c.job_id == job_id,
        bookmark.c.first_id <= window.last_id,
        bookmark.c.last_id >= window.first_id,
    )
    highest: int | None = connection.execute(query).scalar_one()
    return highest


def of_stream(stream: str) -> sa.ColumnElement[bool]:
    """Build the condition for the incremental job of a stream."""
    return sa.and_(job.c.stream == stream, job.c.kind == JobKind.INCREMENTAL)


def is_job_of(stream: str, *kinds: JobKind) -> sa.ColumnElement[bool]:
    """Build the condition for the jobs of some kinds of a stream."""
    return sa.and_(job.c.stream == stream, job.c.kind.in_(kinds))


def stream_job_id(connection: sa.Connection, stream: str) -> int | None:
    """Return the id of the incremental job of a stream, None if there is none."""
    return connection.execute(sa.select(job.c.id).where(of_stream(stream))).scalar_one_or_none()


def stream_bookmark(connection: sa.Connection, stream: str) -> int | None:
    """Return the highest planned id of a stream, None if nothing is planned."""
    job_id = stream_job_id(connection, stream)
    return None if job_id is None else highest_planned(connection, job_id, ALL_IDS)


stream_job = job.alias("own_job")  # the incremental job of the same stream
is_own_stream_job = sa.and_(
    stream_job.c.stream == job.c.stream, stream_job.c.kind == JobKind.INCREMENTAL
)


def is_paused() -> sa.ColumnElement[bool]:
    """Build the condition for jobs that are paused, directly or through their stream's job."""
    stream_is_paused = sa.exists().where(is_own_stream_job, stream_job.c.paused_at.is_not(None))
    return sa.or_(job.c.paused_at.is_not(None), stream_is_paused)


def job_with_late_arrivals(job_id: int) -> sa.ColumnElement[bool]:
    """Build the condition for a job and its late-arrivals job."""
    return sa.or_(
        job.c.id == job_id, sa.and_(job.c.parent_id == job_id, job.c.kind == JobKind.LATE)
    )


def open_job(connection: sa.Connection, terms: JobTerms, *, parent_id: int | None = None) -> Job:
    """Find the job of the terms or create it; update its `max_attempts` and `bisect`.

    For a job of an earlier release, the missing identity of its table is stored.

    Raises:
        JobChangedError: the job exists with another filter, other columns, another database or
            another kind. Nothing is changed.
        MetaTableError: the stream's job reads another table.
    """
    row = _find_row(connection, terms)
    if row is None:
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
        row = _find_row(connection, terms)
        if row is None:  # rejected by the index on one incremental job per stream
            before = sa.select(job.c.meta_table).where(of_stream(terms.stream or ""))
            moved_from = connection.execute(before).scalar_one()
            raise MetaTableError(
                f"{terms.name}: its items have come from {moved_from}, but the stream file "
                f"now names {terms.meta_table}, which has other ids. Nothing was planned. "
                f"Correct `source`, or rename the stream."
            )
    row = _with_identity(connection, row, terms)
    _check_terms(row, terms)
    return _with_current_terms(connection, row, terms)


def job_to_acquire(connection: sa.Connection, terms: JobTerms) -> Job:
    """Find the job to acquire from, or create it.

    For a backfill only name, stream, filter and table are compared: its selection is fixed once
    planned.

    Raises:
        JobChangedError: as for `open_job`.
    """
    row = _find_row(connection, terms)
    if row is None or row.kind != JobKind.BACKFILL:
        return open_job(connection, terms)
    _check_stream(row, terms)
    row = _with_identity(connection, row, terms)
    check_same_rows(row, terms)
    return _with_current_terms(connection, row, terms)


def find_job_id(connection: sa.Connection, terms: JobTerms) -> int | None:
    """Return the id of the job of the terms, None if there is none. Nothing is written.

    Raises:
        JobChangedError: the job exists with other terms.
    """
    row = _find_row(connection, terms)
    if row is None:
        return None
    _check_terms(row, terms)
    return int(row.id)


def job_id_of(connection: sa.Connection, name: str, meta_table: str) -> int:
    """Return the id of a job.

    Raises:
        UnknownJobError: the table has no job of this name.
    """
    query = sa.select(job.c.name, job.c.id).where(job.c.meta_table == meta_table)
    ids = {row.name: int(row.id) for row in connection.execute(query.order_by(job.c.name))}
    if name not in ids:
        raise UnknownJobError(name, tuple(ids))
    return ids[name]


def job_from_row(row: sa.Row[Any], job_id: int, name: str) -> Job:
    """Build a job from a row with the columns of its table."""
    return Job(
        id=job_id,
        name=name,
        meta_table=row.meta_table,
        kind=JobKind(row.kind),
        stream=row.stream,
        max_attempts=row.max_attempts,
        bisect=row.bisect,
        paused=None if row.paused_at is None else row.paused_reason or "",
        key_digits=row.key_digits,
    )


def check_same_rows(row: sa.Row[Any], terms: JobTerms) -> None:
    """Check that a job reads the rows of the terms.

    Raises:
        JobChangedError: its filter, a column or its database differs.
    """
    _check_config(row, terms, {"where": "its filter differs"})
    _check_identity(row, terms)


def _check_terms(row: sa.Row[Any], terms: JobTerms) -> None:
    if row.kind != terms.kind:
        raise JobChangedError(terms.name, terms.meta_table, f"its kind is {row.kind!r}")
    _check_stream(row, terms)
    others = {"selection": "its selection differs", "limits": "its limits differ"}
    _check_config(row, terms, {"where": "its filter differs"} | others)
    _check_identity(row, terms)


def _check_stream(row: sa.Row[Any], terms: JobTerms) -> None:
    if row.stream != terms.stream:
        owner = "no stream" if row.stream is None else f"the stream {row.stream!r}"
        raise JobChangedError(terms.name, terms.meta_table, f"it belongs to {owner}")


def _check_config(row: sa.Row[Any], terms: JobTerms, problems: dict[str, str]) -> None:
    for part, problem in problems.items():
        stored = row.config.get(part)
        if stored != terms.config().get(part):
            shown = f" ({json.dumps(stored, sort_keys=True)})" if stored else ""
            raise JobChangedError(terms.name, terms.meta_table, f"{problem}{shown}")


def _check_identity(row: sa.Row[Any], terms: JobTerms) -> None:
    if terms.identity is None:
        return
    problems = "; ".join(terms.identity.differences(row.config))
    if problems:
        step = terms.identity.next_step(row.config)
        raise JobChangedError(terms.name, terms.meta_table, problems, step)


def _with_identity(connection: sa.Connection, row: sa.Row[Any], terms: JobTerms) -> sa.Row[Any]:
    """Store the missing parts of a job's table identity, and return its row.

    The columns of its newest batch take precedence: the bookmark refers to them, and the columns of
    this call may differ.
    """
    identity = {} if terms.identity is None else terms.identity.to_json()
    missing = {key: fact for key, fact in identity.items() if key not in row.config}
    if not missing:
        return row
    if COLUMNS in missing:
        before = _columns_of_newest_batch(connection, row) or missing[COLUMNS]
        if _folded(before) != _folded(missing[COLUMNS]):
            missing[COLUMNS] = before
    # Values that another process has stored in the meantime take precedence.
    config = sa.literal(missing, pg.JSONB).op("||", return_type=pg.JSONB())(job.c.config)
    update = sa.update(job).where(job.c.id == row.id).values(config=config).returning(job)
    return connection.execute(update).one()


def _columns_of_newest_batch(connection: sa.Connection, row: sa.Row[Any]) -> Any:
    """Read the columns from the newest batch's configuration; only the library stores them."""
    if row.stream is not None:
        return None
    columns = batch.c.config["meta_table"]["cols"]
    query = sa.select(columns).where(batch.c.job_id == row.id, columns.is_not(None))
    return connection.execute(query.order_by(batch.c.id.desc()).limit(1)).scalar_one_or_none()


def _folded(columns: dict[str, str | None]) -> dict[str, str | None]:
    # Imported batches have the names as users wrote them, not as in the catalogue.
    return {role: None if name is None else name.casefold() for role, name in columns.items()}


def _with_current_terms(connection: sa.Connection, row: sa.Row[Any], terms: JobTerms) -> Job:
    """Return a job after updating its `max_attempts` and `bisect` from the terms."""
    if (row.max_attempts, row.bisect) != (terms.max_attempts, terms.bisect):
        values = {"max_attempts": terms.max_attempts, "bisect": terms.bisect}
        connection.execute(sa.update(job).where(job.c.id == row.id).values(values))
    current = job_from_row(row, row.id, row.name)
    return replace(current, max_attempts=terms.max_attempts, bisect=terms.bisect)


def _find_row(connection: sa.Connection, terms: JobTerms) -> sa.Row[Any] | None:
    query = sa.select(job).where(job.c.name == terms.name, job.c.meta_table == terms.meta_table)
    return connection.execute(query).one_or_none()


_RANGE = re.compile(r"(-?[0-9]{1,19})\.\.(-?[0-9]{1,19})")


def find_job(connection: sa.Connection, name: str, meta_table: str | None) -> Job:
    """Find a job by its name, on any meta table if `meta_table` is None.

    Raises:
        InvalidValueError: the name is invalid.
        UnknownJobError: there is no such job.
        AmbiguousJobError: several meta tables have a job of this name, and none was given.
    """
    named = job.c.name == check_storable("job", name)
    rows = connection.execute(sa.select(job).where(named)).all()
    matching = [row for row in rows if meta_table in {None, row.meta_table}]
    if not matching:
        known = sa.select(job.c.name).distinct().order_by(job.c.name)
        raise UnknownJobError(name, tuple(connection.execute(known).scalars()))
    if len(matching) > 1:
        raise AmbiguousJobError(name, tuple(sorted(row.meta_table for row in matching)))
    return job_from_row(matching[0], matching[0].id, name)


def find_batch(connection: sa.Connection, job_record: Job, identifier: int | str) -> Batch:
    """Find an unsplit batch of a job or its late-arrivals job, by number, partition key or range.

    Raises:
        UnknownBatchError: there is no such batch.
        InvalidValueError: several batches have this range.
    """
    text = str(identifier)
    if job_record.kind is JobKind.BACKFILL and job_record.stream is not None:
        text = text.removeprefix(f"{backfill_name(job_record.stream, job_record.name)}:")
    query = sa.select(*BATCH_ROW).join(job).where(job_with_late_arrivals(job_record.id))
    query = query.where(batch.c.superseded_at.is_(None))
    is_number = text.isascii() and text.isdigit() and len(text) < 20
    number = int(text) if is_number else parse_late_key(text)
    if number is not None:
        query = query.where(batch.c.id == min(number, MAX_ID))
    else:
        ids = _id_range(job_record, text)
        query = query.where(batch.c.first_id == ids.first_id, batch.c.last_id == ids.last_id)
    rows = connection.execute(query.order_by(batch.c.id)).all()
    if not rows:
        raise UnknownBatchError.of_job(job_record.name, text)
    if len(rows) > 1:  # lists of ids may have the same first and last id
        numbers = ", ".join(str(row.id) for row in rows)
        raise InvalidValueError("batch", text, f"the number of one of these batches: {numbers}")
    return batch_from_row(rows[0])


def _id_range(job_record: Job, text: str) -> IdRange:
    try:
        match = _RANGE.fullmatch(text)
        if match is None:
            return parse_partition_key(text)
        return IdRange(first_id=int(match[1]), last_id=int(match[2]))
    except InvalidValueError as error:
        raise UnknownBatchError.of_job(job_record.name, text) from error
