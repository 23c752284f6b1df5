"""Planned batches: cutting new ones and finding old ones."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, Batch, BatchState, BatchStatus
from batch_pipeline.domain.errors import InvalidValueError, UnknownBatchError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.partition_key import parse_partition_key
from batch_pipeline.domain.planning import Cut, Limits, cut
from batch_pipeline.inventory.engine import transaction
from batch_pipeline.inventory.locks import LockClass, lock_in_transaction
from batch_pipeline.inventory.tables import attempt, batch, item, job

_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """The batches of all jobs. A stream's incremental job bears the stream's name."""

    engine: sa.Engine

    def plan(self, job_name: str, limits: Limits, *, drain: bool) -> Sequence[Batch]:
        """Cut all items above the job's bookmark in one pass and one transaction.

        Holds the job's planning lock; a rival waits for it and then finds the rest.
        """
        with transaction(self.engine) as connection:
            lock_in_transaction(connection, LockClass.PLAN, job_name)
            job_id, last_id = _job(connection, job_name)
            failpoint("plan.locked")
            ceiling: int = connection.execute(_ceiling(job_name)).scalar_one()
            cuts = cut(
                _weights(connection, job_name, last_id, ceiling),
                after_id=last_id,
                ceiling=ceiling,
                limits=limits,
            )
            held_back = not drain and _is_young(connection, job_name, limits)
            planned = list(_without_short_tail(cuts, limits) if held_back else cuts)
            if not planned:
                return []
            batches = _insert(connection, job_id, job_name, planned, limits)
            bookmark = planned[-1].id_range.last_id
            connection.execute(sa.update(job).where(job.c.id == job_id).values(last_id=bookmark))
            failpoint("plan.before_commit")
        failpoint("plan.after_commit")
        return batches

    def batch(self, job_name: str, key: str) -> Batch:
        """Find a planned batch by its partition key."""
        try:
            id_range = parse_partition_key(key)
        except InvalidValueError as error:
            raise UnknownBatchError(job_name, key) from error
        query = (
            sa.select(batch, job.c.name)
            .join(job)
            .where(
                job.c.name == job_name,
                batch.c.first_id == id_range.first_id,
                batch.c.last_id == id_range.last_id,
            )
        )
        with transaction(self.engine) as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise UnknownBatchError(job_name, key)
        return _batch(row)

    def batch_of_item(self, job_name: str, item_id: int) -> Batch | None:
        """Find the batch whose range holds an item id."""
        query = (
            sa.select(batch, job.c.name)
            .join(job)
            .where(job.c.name == job_name, batch.c.first_id <= item_id, batch.c.last_id >= item_id)
        )
        with transaction(self.engine) as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else _batch(row)

    def statuses(self, job_name: str) -> list[BatchStatus]:
        """Read all batches of a job in id order, each with the facts of its latest attempt."""
        with transaction(self.engine) as connection:
            return [_status(row) for row in connection.execute(_status_query(job_name))]

    def backlog(self, job_name: str) -> tuple[int, int]:
        """Count the items above the job's bookmark and their weight in bytes."""
        bookmark = sa.select(job.c.last_id).where(job.c.name == job_name).scalar_subquery()
        query = sa.select(
            sa.func.count(), sa.func.coalesce(sa.func.sum(item.c.size_bytes), 0)
        ).where(item.c.stream == job_name, item.c.id > sa.func.coalesce(bookmark, 0))
        with transaction(self.engine) as connection:
            count, weight = connection.execute(query).one()
        return int(count), int(weight)


def _job(connection: sa.Connection, name: str) -> tuple[int, int]:
    query = sa.select(job.c.id, job.c.last_id).where(job.c.name == name)
    row = connection.execute(query).one_or_none()
    if row is None:
        values = {"name": name, "meta_table": "batch_pipeline.item"}
        insert = sa.insert(job).values(values).returning(job.c.id, job.c.last_id)
        row = connection.execute(insert).one()
    return row.id, row.last_id


def _ceiling(stream: str) -> sa.Select[int]:
    return sa.select(sa.func.coalesce(sa.func.max(item.c.id), 0)).where(item.c.stream == stream)


def _weights(
    connection: sa.Connection, stream: str, last_id: int, ceiling: int
) -> Iterator[tuple[int, int]]:
    # An item registered since the ceiling was read lies above it and is left to the next plan.
    query = (
        sa.select(item.c.id, item.c.size_bytes)
        .where(item.c.stream == stream, item.c.id > last_id, item.c.id <= ceiling)
        .order_by(item.c.id)
        .execution_options(yield_per=_PAGE)
    )
    for row in connection.execute(query):
        yield row.id, row.size_bytes


def _is_young(connection: sa.Connection, stream: str, limits: Limits) -> bool:
    """Tell whether even the oldest unplanned item has not waited for `max_wait` yet."""
    if limits.min_weight == 0:
        return False
    bookmark = sa.select(job.c.last_id).where(job.c.name == stream).scalar_subquery()
    oldest = sa.select(sa.func.min(item.c.registered_at)).where(
        item.c.stream == stream, item.c.id > bookmark
    )
    waited = sa.select(sa.func.clock_timestamp() - oldest.scalar_subquery())
    age = connection.execute(waited).scalar_one()
    return age is not None and age < limits.max_wait


def _without_short_tail(cuts: Iterable[Cut], limits: Limits) -> Iterator[Cut]:
    for one in cuts:
        if one.closed or one.weight >= limits.min_weight:
            yield one


def _insert(
    connection: sa.Connection, job_id: int, job_name: str, cuts: Sequence[Cut], limits: Limits
) -> list[Batch]:
    config = {name: str(value) for name, value in asdict(limits).items()}
    rows = [
        {
            "job_id": job_id,
            "first_id": one.id_range.first_id,
            "last_id": one.id_range.last_id,
            "weight": one.weight,
            "item_count": one.count,
            "oversized": one.weight > limits.max_weight,
            "config": config,
        }
        for one in cuts
    ]
    insert = sa.insert(batch).returning(batch, sort_by_parameter_order=True)
    inserted = connection.execute(insert, rows)
    return [_batch(row, job_name) for row in inserted]


def _batch(row: sa.Row[Any], job_name: str | None = None) -> Batch:
    return Batch(
        id=row.id,
        job=job_name or row.name,
        id_range=IdRange(first_id=row.first_id, last_id=row.last_id),
        weight=row.weight,
        count=row.item_count,
        oversized=row.oversized,
    )


def _status_query(job_name: str) -> sa.Select[Any]:
    latest = (
        sa.select(attempt.c.number, attempt.c.status, attempt.c.error, attempt.c.finished_at)
        .where(attempt.c.batch_id == batch.c.id)
        .order_by(attempt.c.number.desc())
        .limit(1)
        .lateral("latest")
    )
    published = (
        sa.select(sa.func.max(attempt.c.generation).label("generation"))
        .where(attempt.c.batch_id == batch.c.id)
        .lateral("published")
    )
    return (
        sa.select(
            batch,
            job.c.name,
            latest.c.number,
            latest.c.status,
            latest.c.error,
            latest.c.finished_at,
            published.c.generation,
        )
        .join(job)
        .outerjoin(latest, sa.true())
        .outerjoin(published, sa.true())
        .where(job.c.name == job_name)
        .order_by(batch.c.first_id)
    )


def _status(row: sa.Row[Any]) -> BatchStatus:
    return BatchStatus(
        batch=_batch(row),
        state=_state(row.status, row.generation),
        attempts=row.number or 0,
        generation=row.generation,
        error=row.error,
        finished_at=row.finished_at,
    )


def _state(latest: str | None, generation: int | None) -> BatchState:
    if latest == AttemptStatus.RUNNING:
        return BatchState.RUNNING
    if generation is not None:
        return BatchState.PUBLISHED
    if latest is None:
        return BatchState.PLANNED
    return BatchState.FAILED if latest == AttemptStatus.FAILED else BatchState.INTERRUPTED
