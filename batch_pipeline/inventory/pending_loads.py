"""Published generations by target: which are loaded and which are pending. Reads only."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.batch_states import label_from_row, matches_labels
from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.locks import LOADER_IS_THERE
from batch_pipeline.inventory.manifests import Manifests
from batch_pipeline.inventory.removals import ARE_REMOVED, HAS_LOAD, IS_REPLACED
from batch_pipeline.inventory.tables import attempt, attempt_item, batch, job, load
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.load import (
    LoadedGeneration,
    Loading,
    LoadRecord,
    LoadStatus,
    TargetStatus,
)
from batch_pipeline.model.stream import Stream

_PAGE = 200
_publish_position = sa.tuple_(attempt.c.finished_at, attempt.c.id)


@dataclass(frozen=True, slots=True)
class LoadQueries:
    """The loads of all streams, read only."""

    engine: sa.Engine

    def due(
        self,
        stream: Stream,
        target: str,
        *,
        only: Collection[str] | None = None,
        held_up: Collection[str] = (),
    ) -> Iterator[Loading]:
        """Read the newest generations that a target has not loaded yet, in publish order.

        `only` are labels of batches, None for all. `held_up` names jobs to skip; it is read again
        for each page. Holds one page in memory.
        """
        # Within a job finished_at follows the publish number, set under the same row lock.
        query = _pending(stream.name, target)
        query = query.order_by(attempt.c.finished_at, attempt.c.id).limit(_PAGE)
        if only is not None:
            query = query.where(matches_labels(only))
        page = query
        while True:
            with transaction(self.engine) as connection:
                rows = connection.execute(page.where(job.c.name.not_in(list(held_up)))).all()
            for row in rows:
                if only is None or label_from_row(row) in only:
                    yield _loading(self.engine, stream, row)
            if len(rows) < _PAGE:
                return
            page = query.where(_is_published_after(rows[-1]))

    def target_statuses(self, stream: str, targets: Sequence[str]) -> list[TargetStatus]:
        """Count for each target the generations that are loaded, due, removed and failed."""
        return [_target_status(self.engine, stream, target) for target in targets]

    def of_batch(self, batch_id: int) -> list[LoadRecord]:
        """Read all loads of the generations of a batch, oldest first."""
        query = (
            sa.select(load, attempt.c.generation)
            .join(attempt, load.c.attempt_id == attempt.c.id)
            .where(attempt.c.batch_id == batch_id)
            .order_by(load.c.id)
        )
        with transaction(self.engine) as connection:
            rows = connection.execute(query).all()
        return [_record(row) for row in rows]

    def cursor(self, stream: str, targets: Sequence[str]) -> int:
        """Return the id up to which all loads of a stream into its targets have ended.

        Loads into former targets are ignored: nothing closes them if their process is gone.
        """
        is_of_stream = load.c.stream == stream
        is_running = sa.and_(load.c.status == LoadStatus.RUNNING, load.c.target.in_(targets))
        running = sa.func.min(load.c.id).filter(is_running) - 1
        query = sa.select(sa.func.coalesce(running, sa.func.max(load.c.id), 0)).where(is_of_stream)
        with transaction(self.engine) as connection:
            cursor: int = connection.execute(query).scalar_one()
        return cursor

    def in_all_targets(
        self, stream: str, targets: Sequence[str], after: int
    ) -> Iterator[LoadedGeneration]:
        """Read the batches of a stream's job that all targets have, oldest load first.

        At least one of their loads has an id above `after`. Reads page by page.
        """
        is_loaded = sa.and_(
            load.c.stream == stream,
            load.c.target.in_(targets),
            load.c.status == LoadStatus.SUCCEEDED,
            load.c.voided_at.is_(None),
        )
        last = sa.func.max(load.c.id)
        complete = (
            sa.select(load.c.attempt_id, last.label("last"))
            .where(is_loaded)
            .group_by(load.c.attempt_id)
            .having(sa.func.count() == len(set(targets)))
        )
        columns = [attempt.c.id.label("attempt_id"), *batch.c, job.c.name, job.c.kind, job.c.stream]
        own = _newest_generations(stream, columns).where(job.c.kind == JobKind.INCREMENTAL)
        while True:
            page = complete.having(last > after).order_by(last).limit(_PAGE).subquery()
            query = own.join(page, page.c.attempt_id == attempt.c.id).add_columns(page.c.last)
            with transaction(self.engine) as connection:
                last_ids = connection.execute(sa.select(page.c.last)).scalars().all()
                rows = connection.execute(query.order_by(page.c.last)).all()
                loads = _loads_of(connection, is_loaded, [row.attempt_id for row in rows])
            for row in rows:
                records = tuple(loads[row.attempt_id])
                yield LoadedGeneration(
                    label=label_from_row(row), generation=records[0].generation, loads=records
                )
            if len(last_ids) < _PAGE:
                return
            after = last_ids[-1]


def loaded_attempts(connection: sa.Connection, stream: str, target: str, label: str) -> list[int]:
    """Return the ids of the newest generations of a batch, by label, that a target has loaded.

    Includes generations whose files are removed, whether loaded or not.
    """
    columns = [
        attempt.c.id.label("attempt_id"),
        *batch.c,
        job.c.name,
        job.c.kind,
        job.c.stream,
    ]
    query = _newest_generations(stream, columns).where(matches_labels([label]))
    rows = connection.execute(query.where(sa.or_(_has_load(target), ARE_REMOVED)))
    return [row.attempt_id for row in rows if label_from_row(row) == label]


def _is_published_after(row: sa.Row[Any]) -> sa.ColumnElement[bool]:
    values = (row.finished_at, attempt.c.finished_at.type), (row.attempt_id, sa.BigInteger())
    return _publish_position > sa.tuple_(*(sa.literal(*value) for value in values))


def _loads_of(
    connection: sa.Connection, condition: sa.ColumnElement[bool], attempt_ids: Sequence[int]
) -> dict[int, list[LoadRecord]]:
    query = sa.select(load, attempt.c.generation).join(attempt).where(condition)
    rows = connection.execute(query.where(attempt.c.id.in_(attempt_ids)).order_by(load.c.id))
    loads: dict[int, list[LoadRecord]] = {attempt_id: [] for attempt_id in attempt_ids}
    for row in rows:
        loads[row.attempt_id].append(_record(row))
    return loads


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


def _newest_generations(stream: str, columns: Collection[sa.ColumnElement[Any]]) -> sa.Select[Any]:
    return (
        sa.select(*columns)
        .select_from(attempt)
        .join(batch, attempt.c.batch_id == batch.c.id)
        .join(job, batch.c.job_id == job.c.id)
        .where(
            job.c.stream == stream,
            attempt.c.status == AttemptStatus.SUCCEEDED,
            attempt.c.encoding.is_not(None),  # workers of the library publish no files
            ~IS_REPLACED,
        )
    )


def _has_load(target: str) -> sa.ColumnElement[bool]:
    return sa.exists().where(load.c.attempt_id == attempt.c.id, load.c.target == target, HAS_LOAD)


def _pending(stream: str, target: str) -> sa.Select[Any]:
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
    return _newest_generations(stream, columns).where(~_has_load(target), ~ARE_REMOVED)


def _loading(engine: sa.Engine, stream: Stream, row: sa.Row[Any]) -> Loading:
    # A target may have loaded a backfill without a record, if the process was killed in between.
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
        label=label_from_row(row),
        manifest=Manifests(engine).of_attempt(row.attempt_id),
        message_name=stream.message_name,
        item_ids=item_ids,
        is_backfill=row.kind == JobKind.BACKFILL,
        again=row.again,
        failed_before=row.failed_before,
    )


def _target_status(engine: sa.Engine, stream: str, target: str) -> TargetStatus:
    last = (
        sa.select(load.c.status, load.c.error)
        .where(load.c.attempt_id == attempt.c.id, load.c.target == target)
        .order_by(load.c.number.desc())
        .limit(1)
        .lateral("last")
    )
    has_load = _has_load(target)
    is_due = sa.and_(~has_load, ~ARE_REMOVED)
    is_failed = sa.and_(is_due, last.c.status.in_([LoadStatus.FAILED, LoadStatus.INTERRUPTED]))
    count = sa.func.count()
    columns = [
        count.filter(has_load).label("loaded"),
        count.filter(is_due).label("due"),
        count.filter(sa.and_(~has_load, ARE_REMOVED)).label("gone"),
        count.filter(is_failed).label("failed"),
        sa.func.max(last.c.error).filter(is_failed).label("error"),
    ]
    query = _newest_generations(stream, columns).outerjoin(last, sa.true())
    is_of_target = sa.and_(load.c.stream == stream, load.c.target == target)
    newest = sa.select(sa.func.max(load.c.finished_at)).where(
        is_of_target, load.c.status == LoadStatus.SUCCEEDED
    )
    running = sa.select(load.c.run_id).where(
        is_of_target, load.c.status == LoadStatus.RUNNING, LOADER_IS_THERE
    )
    with transaction(engine) as connection:
        row = connection.execute(query).one()
        return TargetStatus(
            target=target,
            loaded=row.loaded,
            due=row.due,
            gone=row.gone,
            failed=row.failed,
            error=row.error,
            loaded_at=connection.execute(newest).scalar_one(),
            running=connection.execute(running).scalar_one_or_none(),
        )
