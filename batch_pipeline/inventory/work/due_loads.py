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
from batch_pipeline.inventory.work.batch_rows import label_of
from batch_pipeline.inventory.work.manifests import Manifests
from batch_pipeline.inventory.work.removals import ARE_REMOVED, HAS_LOAD

_PAGE = 200
_turn = sa.case((job.c.kind == JobKind.INCREMENTAL, 0), (job.c.kind == JobKind.LATE, 1), else_=2)
_position = sa.tuple_(_turn, job.c.id, attempt.c.publish_number)


def due_loads(engine: sa.Engine, stream: Stream, target: str) -> Iterator[Loading]:
    """Read the newest generations that a target has not acknowledged, in the order to load."""
    after: tuple[int, int, int] | None = None
    while True:
        query = _due(stream.name, target).order_by(_turn, job.c.id, attempt.c.publish_number)
        if after is not None:
            query = query.where(_position > sa.tuple_(*after))
        with transaction(engine) as connection:
            rows = connection.execute(query.limit(_PAGE)).all()
        for row in rows:
            yield _loading(engine, stream, row)
        if len(rows) < _PAGE:
            return
        last = rows[-1]
        after = last.turn, last.job_id, last.publish_number


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
    rows = connection.execute(_newest(stream, columns).where(sa.or_(_has(target), ARE_REMOVED)))
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


def loads_mark(engine: sa.Engine, stream: str) -> int:
    """Give the id up to which all loads of a stream have ended."""
    mine = load.c.stream == stream
    running = sa.func.min(load.c.id).filter(load.c.status == LoadStatus.RUNNING) - 1
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
    newer = attempt.alias("newer")
    replaced = sa.exists().where(
        newer.c.batch_id == attempt.c.batch_id, newer.c.generation > attempt.c.generation
    )
    return (
        sa.select(*columns)
        .select_from(attempt)
        .join(batch, attempt.c.batch_id == batch.c.id)
        .join(job, batch.c.job_id == job.c.id)
        .where(
            job.c.stream == stream,
            attempt.c.status == AttemptStatus.SUCCEEDED,
            attempt.c.encoding.is_not(None),  # a worker of the library has no files
            ~replaced,
        )
    )


def _has(target: str) -> sa.ColumnElement[bool]:
    return sa.exists().where(load.c.attempt_id == attempt.c.id, load.c.target == target, HAS_LOAD)


def _due(stream: str, target: str) -> sa.Select[Any]:
    again = sa.exists().where(
        load.c.attempt_id == attempt.c.id,
        load.c.target == target,
        load.c.voided_at.is_not(None),
    )
    # Backfills that the target has may have brought items of any other batch of the stream.
    cut_anew, its_attempt, its_batch = job.alias("cut_anew"), attempt.alias(), batch.alias()
    taken_over = (
        sa.exists()
        .select_from(
            load.join(its_attempt, load.c.attempt_id == its_attempt.c.id)
            .join(its_batch, its_attempt.c.batch_id == its_batch.c.id)
            .join(cut_anew, its_batch.c.job_id == cut_anew.c.id)
        )
        .where(
            load.c.stream == stream,
            load.c.target == target,
            load.c.status == LoadStatus.SUCCEEDED,
            cut_anew.c.kind == JobKind.BACKFILL,
        )
    )
    columns = [
        attempt.c.id.label("attempt_id"),
        attempt.c.publish_number,
        _turn.label("turn"),
        again.label("again"),
        taken_over.label("taken_over"),
        *batch.c,
        job.c.name,
        job.c.kind,
        job.c.stream,
    ]
    return _newest(stream, columns).where(~_has(target), ~ARE_REMOVED)


def _loading(engine: sa.Engine, stream: Stream, row: sa.Row[Any]) -> Loading:
    item_ids: tuple[int, ...] = ()
    if row.kind == JobKind.BACKFILL or row.taken_over:
        query = (
            sa.select(attempt_item.c.item_id)
            .where(attempt_item.c.attempt_id == row.attempt_id)
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
        again=row.again,
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
