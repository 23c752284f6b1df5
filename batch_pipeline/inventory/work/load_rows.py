"""Statements on the rows of loads, each within a transaction of the caller."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import sqlalchemy as sa

from batch_pipeline.domain.errors import FilesRemovedError, LoadLostError, LoadRunningError
from batch_pipeline.domain.load import Load, Loading, LoadStatus
from batch_pipeline.inventory.locks import LOADER_IS_GONE
from batch_pipeline.inventory.tables import attempt, load
from batch_pipeline.inventory.work.removals import keep_from_removal, removal_of


@dataclass(frozen=True, slots=True)
class Claiming:
    """A claim: whose it is, and on what."""

    stream: str
    target: str
    run_id: str
    lease: timedelta
    token: UUID
    liveness_key: int


CLAIM = (
    load.c.run_id,
    load.c.liveness_key,
    (load.c.lease_until - load.c.renewed_at).label("lease"),
)


def start(connection: sa.Connection, where: Claiming, loading: Loading) -> Load:
    """Write the next load of a generation, under the lock of its stream and target."""
    found = sa.select(attempt.c.id).where(attempt.c.token == loading.manifest.token)
    attempt_id: int = connection.execute(found).scalar_one()
    before = sa.select(sa.func.coalesce(sa.func.max(load.c.number), 0)).where(
        load.c.attempt_id == attempt_id, load.c.target == where.target
    )
    number: int = connection.execute(before).scalar_one() + 1
    insert = (
        sa.insert(load)
        .values(
            attempt_id=attempt_id,
            stream=where.stream,
            target=where.target,
            number=number,
            token=where.token,
            liveness_key=where.liveness_key,
            status=LoadStatus.RUNNING.value,
            run_id=where.run_id,
            lease_until=sa.func.clock_timestamp() + where.lease,
        )
        .returning(load.c.id)
    )
    load_id: int = connection.execute(insert).scalar_one()
    return _load_of(where.stream, where.target, loading, load_id, number, where.token)


def _load_of(
    stream: str, target: str, loading: Loading, load_id: int, number: int, token: UUID
) -> Load:
    return Load(
        id=load_id,
        stream=stream,
        target=target,
        label=loading.label,
        number=number,
        token=token,
    )


def ending(one: Load) -> sa.Update:
    """End a load that still runs and is still its holder's."""
    return sa.update(load).where(
        load.c.id == one.id,
        load.c.token == one.token,
        load.c.status == LoadStatus.RUNNING,
    )


def not_loaded(
    connection: sa.Connection, target: str, loadings: Sequence[Loading]
) -> tuple[Loading, ...]:
    """Leave out what was loaded since somebody looked, or a newer generation in its place.

    One that is asked for again keeps older ones out all the same: it is due itself.
    """
    newer = attempt.alias("newer")
    is_other = newer.c.id != attempt.c.id
    query = (
        sa.select(attempt.c.token)
        .join(
            newer,
            sa.and_(
                newer.c.batch_id == attempt.c.batch_id, newer.c.generation >= attempt.c.generation
            ),
        )
        .join(load, load.c.attempt_id == newer.c.id)
        .where(
            attempt.c.token.in_([one.manifest.token for one in loadings]),
            load.c.target == target,
            load.c.status == LoadStatus.SUCCEEDED,
            sa.or_(load.c.voided_at.is_(None), is_other),
        )
    )
    loaded = set(connection.execute(query).scalars())
    return tuple(one for one in loadings if one.manifest.token not in loaded)


def asked_again(connection: sa.Connection, done: Load, then: Loading | None) -> Load | None:
    """Give what an earlier call gave whose reply was lost.

    Raises:
        LoadLostError: there was none.
    """
    rows = connection.execute(
        sa.select(load.c.id, load.c.number, load.c.status).where(load.c.token == done.token)
    ).all()
    statuses = {row.id: row.status for row in rows}
    if statuses.get(done.id) != LoadStatus.SUCCEEDED:
        raise LoadLostError(done.target, done.stream, done.label)
    if then is None:
        return None
    running = [row for row in rows if row.status == LoadStatus.RUNNING]
    if not running:
        raise LoadLostError(done.target, done.stream, then.label)
    return _load_of(done.stream, done.target, then, running[0].id, running[0].number, done.token)


def close_dead(connection: sa.Connection, stream: str, target: str) -> None:
    """Close loads of a stream and target whose process is gone."""
    closing = (
        sa.update(load)
        .where(
            load.c.stream == stream,
            load.c.target == target,
            load.c.status == LoadStatus.RUNNING,
            LOADER_IS_GONE,
        )
        .values(
            status=LoadStatus.INTERRUPTED.value,
            finished_at=sa.func.clock_timestamp(),
            error="its process ended without a word",
        )
    )
    connection.execute(closing)


def refuse_if_running(connection: sa.Connection, stream: str, target: str, label: str) -> None:
    """Check that nobody loads the stream into the target.

    Raises:
        LoadRunningError: somebody does.
    """
    query = sa.select(load.c.run_id).where(
        load.c.stream == stream, load.c.target == target, load.c.status == LoadStatus.RUNNING
    )
    run_id = connection.execute(query).scalar_one_or_none()
    if run_id is not None:
        raise LoadRunningError(target, stream, label, run_id)


def refuse_if_removed(
    connection: sa.Connection, stream: str, label: str, attempt_ids: Sequence[int]
) -> None:
    """Check that files of generations are there, and keep them until the transaction ends.

    Raises:
        FilesRemovedError: they were deleted.
    """
    keep_from_removal(connection, attempt_ids)
    columns = (attempt.c.generation, attempt.c.facts)
    query = sa.select(*columns).where(attempt.c.id.in_(attempt_ids))
    for row in connection.execute(query):
        removal = removal_of(row.facts)
        if removal is not None:
            raise FilesRemovedError(stream, label, row.generation, removal.at)
