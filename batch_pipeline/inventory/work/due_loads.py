"""Which published generations targets have, and which wait. Reads only."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.load import (
    InTargets,
    Loading,
    LoadRecord,
    LoadStanding,
    LoadStatus,
)
from batch_pipeline.domain.stream import Stream
from batch_pipeline.inventory.locks import LOADER_IS_THERE
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import attempt, attempt_item, batch, job, load
from batch_pipeline.inventory.work.batch_rows import label_of, may_be_called
from batch_pipeline.inventory.work.generations import IS_REPLACED
from batch_pipeline.inventory.work.manifests import Manifests
from batch_pipeline.inventory.work.removals import ARE_REMOVED, HAS_LOAD

_PAGE = 200
_position = sa.tuple_(attempt.c.finished_at, attempt.c.id)


def due_loads(
    engine: sa.Engine,
    stream: Stream,
    target: str,
    *,
    only: Collection[str] | None = None,
    held_up: Collection[str] = (),
) -> Iterator[Loading]:
    """Read the newest generations that a target has not acknowledged, in the order of publishing.

    `only` are names of batches, None for all. No page is read with batches of the jobs that
    `held_up` names by then.
    """
    # Within a job the time follows the publish number: it is taken under the lock of the job's row.
    query = _due(stream.name, target).order_by(attempt.c.finished_at, attempt.c.id).limit(_PAGE)
    if only is not None:
        query = query.where(may_be_called(only))
    page = query
    while True:
        with transaction(engine) as connection:
            rows = connection.execute(page.where(job.c.name.not_in(list(held_up)))).all()
        for row in rows:
            if only is None or label_of(row) in only:
                yield _loading(engine, stream, row)
        if len(rows) < _PAGE:
            return
        last = rows[-1]
        values = (last.finished_at, attempt.c.finished_at.type), (last.attempt_id, sa.BigInteger())
        page = query.where(_position > sa.tuple_(*(sa.literal(*value) for value in values)))


def loaded_attempts(connection: sa.Connection, stream: str, target: str, label: str) -> list[int]:
    """Find the newest generation of the batch of a name, if the target has acknowledged it.

    Also if its files are gone, whatever the target has.
    """
    columns = [
        attempt.c.id.label("attempt_id"),
        *batch.c,
        job.c.name,
        job.c.kind,
        job.c.stream,
    ]
    query = _newest(stream, columns).where(may_be_called([label]))
    rows = connection.execute(query.where(sa.or_(_has(target), ARE_REMOVED)))
    return [row.attempt_id for row in rows if label_of(row) == label]


def standing(engine: sa.Engine, stream: str, targets: Sequence[str]) -> list[LoadStanding]:
    """Count for each target what it has and what waits."""
    return [_standing(engine, stream, target) for target in targets]


def loads_of_batch(engine: sa.Engine, batch_id: int) -> list[LoadRecord]:
    """Read all loads of the generations of a batch, oldest first."""
    query = (
        sa.select(load, attempt.c.generation)
        .join(attempt, load.c.attempt_id == attempt.c.id)
        .where(attempt.c.batch_id == batch_id)
        .order_by(load.c.id)
    )
    with transaction(engine) as connection:
        rows = connection.execute(query).all()
    return [_record(row) for row in rows]


def loads_mark(engine: sa.Engine, stream: str, targets: Sequence[str]) -> int:
    """Give the id up to which all loads of a stream into its targets have ended.

    Into a target that the stream has no more, one whose process is gone would run for ever.
    """
    mine = load.c.stream == stream
    is_running = sa.and_(load.c.status == LoadStatus.RUNNING, load.c.target.in_(targets))
    running = sa.func.min(load.c.id).filter(is_running) - 1
    query = sa.select(sa.func.coalesce(running, sa.func.max(load.c.id), 0)).where(mine)
    with transaction(engine) as connection:
        found: int = connection.execute(query).scalar_one()
    return found


def in_targets(
    engine: sa.Engine, stream: str, targets: Sequence[str], after: int
) -> Iterator[InTargets]:
    """Read the stream's own batches that all targets have, one of them by a load above an id.

    Oldest first, in pages as they are asked for.
    """
    is_there = sa.and_(
        load.c.stream == stream,
        load.c.target.in_(targets),
        load.c.status == LoadStatus.SUCCEEDED,
        load.c.voided_at.is_(None),
    )
    last = sa.func.max(load.c.id)
    complete = (
        sa.select(load.c.attempt_id, last.label("last"))
        .where(is_there)
        .group_by(load.c.attempt_id)
        .having(sa.func.count() == len(set(targets)))
    )
    while True:
        columns = [attempt.c.id.label("attempt_id"), *batch.c, job.c.name, job.c.kind, job.c.stream]
        own = _newest(stream, columns).where(job.c.kind == JobKind.INCREMENTAL)
        page = complete.having(last > after).order_by(last).limit(_PAGE).subquery()
        query = own.join(page, page.c.attempt_id == attempt.c.id).add_columns(page.c.last)
        with transaction(engine) as connection:
            marks = connection.execute(sa.select(page.c.last)).scalars().all()
            rows = connection.execute(query.order_by(page.c.last)).all()
            records = sa.select(load, attempt.c.generation).join(attempt).where(is_there)
            ids = [row.attempt_id for row in rows]
            found = connection.execute(records.where(attempt.c.id.in_(ids)).order_by(load.c.id))
            loads: dict[int, list[LoadRecord]] = {one: [] for one in ids}
            for record in found:
                loads[record.attempt_id].append(_record(record))
        for row in rows:
            mine = tuple(loads[row.attempt_id])
            yield InTargets(label=label_of(row), generation=mine[0].generation, loads=mine)
        if len(marks) < _PAGE:
            return
        after = marks[-1]


def _record(row: sa.Row[Any]) -> LoadRecord:
    return LoadRecord(
        id=row.id,
        target=row.target,
        number=row.number,
        status=LoadStatus(row.status),
        run_id=row.run_id,
        started_at=row.started_at,
        finished_at=row.finished_at,
        records=row.records,
        error=row.error,
        generation=row.generation,
        mode=row.mode,
        is_void=row.voided_at is not None,
    )


def _newest(stream: str, columns: Collection[sa.ColumnElement[Any]]) -> sa.Select[Any]:
    return (
        sa.select(*columns)
        .select_from(attempt)
        .join(batch, attempt.c.batch_id == batch.c.id)
        .join(job, batch.c.job_id == job.c.id)
        .where(
            job.c.stream == stream,
            attempt.c.status == AttemptStatus.SUCCEEDED,
            attempt.c.encoding.is_not(None),  # a worker of the library has no files
            ~IS_REPLACED,
        )
    )


def _has(target: str) -> sa.ColumnElement[bool]:
    return sa.exists().where(load.c.attempt_id == attempt.c.id, load.c.target == target, HAS_LOAD)


def _due(stream: str, target: str) -> sa.Select[Any]:
    of_target = sa.exists().where(load.c.attempt_id == attempt.c.id, load.c.target == target)
    columns = [
        attempt.c.id.label("attempt_id"),
        attempt.c.publish_number,
        attempt.c.finished_at,
        of_target.where(load.c.voided_at.is_not(None)).label("again"),
        of_target.where(load.c.status == LoadStatus.FAILED).label("failed_before"),
        *batch.c,
        job.c.name,
        job.c.kind,
        job.c.stream,
    ]
    return _newest(stream, columns).where(~_has(target), ~ARE_REMOVED)


def _loading(engine: sa.Engine, stream: Stream, row: sa.Row[Any]) -> Loading:
    # A target may have a backfill that no load tells of yet: its process was killed in between.
    has_backfills = sa.exists().where(
        job.c.stream == stream.name, job.c.kind == JobKind.BACKFILL, job.c.publish_count > 0
    )
    query = (
        sa.select(attempt_item.c.item_id)
        .where(attempt_item.c.attempt_id == row.attempt_id, has_backfills)
        .order_by(attempt_item.c.item_id)
    )
    with transaction(engine) as connection:
        item_ids = tuple(connection.execute(query).scalars())
    return Loading(
        stream=stream.name,
        publish_number=row.publish_number,
        label=label_of(row),
        manifest=Manifests(engine).of_attempt(row.attempt_id),
        message_name=stream.message_name,
        item_ids=item_ids,
        is_backfill=row.kind == JobKind.BACKFILL,
        again=row.again,
        failed_before=row.failed_before,
    )


def _standing(engine: sa.Engine, stream: str, target: str) -> LoadStanding:
    last = (
        sa.select(load.c.status, load.c.error)
        .where(load.c.attempt_id == attempt.c.id, load.c.target == target)
        .order_by(load.c.number.desc())
        .limit(1)
        .lateral("last")
    )
    has = _has(target)
    is_due = sa.and_(~has, ~ARE_REMOVED)
    is_failed = sa.and_(is_due, last.c.status.in_([LoadStatus.FAILED, LoadStatus.INTERRUPTED]))
    count = sa.func.count()
    columns = [
        count.filter(has).label("loaded"),
        count.filter(is_due).label("due"),
        count.filter(sa.and_(~has, ARE_REMOVED)).label("gone"),
        count.filter(is_failed).label("failed"),
        sa.func.max(last.c.error).filter(is_failed).label("error"),
    ]
    query = _newest(stream, columns).outerjoin(last, sa.true())
    mine = sa.and_(load.c.stream == stream, load.c.target == target)
    newest = sa.select(sa.func.max(load.c.finished_at)).where(
        mine, load.c.status == LoadStatus.SUCCEEDED
    )
    running = sa.select(load.c.run_id).where(
        mine, load.c.status == LoadStatus.RUNNING, LOADER_IS_THERE
    )
    with transaction(engine) as connection:
        row = connection.execute(query).one()
        return LoadStanding(
            target=target,
            loaded=row.loaded,
            due=row.due,
            gone=row.gone,
            failed=row.failed,
            error=row.error,
            loaded_at=connection.execute(newest).scalar_one(),
            running=connection.execute(running).scalar_one_or_none(),
        )
