"""What published batches of a job saw, read page by page: what an audit compares with.

Reads only. Left out for a reason: batches that are not published (they are compared afterwards),
batches that were split (their halves are there), lists of ids (nothing can arrive in a list), and
ids that no window of the job has reached. Dead and cancelled batches, which may never be published,
are compared with what they were planned with.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.domain.batch import Batch, BatchState
from batch_pipeline.domain.id_range import MIN_ID, IdRange
from batch_pipeline.domain.id_runs import IdRuns
from batch_pipeline.domain.seen import Seen
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import attempt, batch, batch_state, bookmark, job
from batch_pipeline.inventory.work.batch_rows import BATCH_ROW, batch_of, planned_ids

_PAGE = 1_000
NOTHING = Seen.of((), weight=0)
Window = tuple[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """A range of ids and what the latest published attempt saw there.

    `batch_id` is None for the ids below a job's first batch, where nobody looked. `seen` is None
    where it was not kept, or while the batch is being tried again; its runs of ids are read by
    `ids_seen` alone. `window` is what the batch was asked for within, None for no bound. `planned`
    are the ids that an unpublished batch was planned with: no attempt will read other ones.
    """

    ids: IdRange
    batch_id: int | None = None
    generation: int | None = None
    attempt_id: int | None = None
    seen: Seen | None = NOTHING
    window: Window = (None, None)
    planned: IdRuns | None = None


def below_first(connection: sa.Connection, job_id: int) -> Audited | None:
    """Give the ids below a job's first batch when the job has passed them, else None.

    A job that looks at all ids starts its first batch at the first row that it finds.
    """
    first = sa.select(sa.func.min(batch.c.first_id)).where(
        batch.c.job_id == job_id, batch.c.superseded_at.is_(None), batch.c.item_ids.is_(None)
    )
    passed = sa.exists().where(bookmark.c.job_id == job_id, bookmark.c.first_id == MIN_ID)
    lowest = connection.execute(first.where(passed)).scalar_one()
    if lowest is None or lowest == MIN_ID:
        return None
    return Audited(ids=IdRange(first_id=MIN_ID, last_id=lowest - 1))


def published_pages(
    engine: sa.Engine, job_id: int, since: timedelta | None
) -> Iterator[list[Audited]]:
    """Read the published batches of a job in id order, those of the last time or all of them."""
    query = _published(job_id, since)
    after_id = None
    while True:
        page = query if after_id is None else query.where(batch.c.first_id > after_id)
        with transaction(engine) as connection:
            rows = connection.execute(page).all()
        if rows:
            yield [_audited(row) for row in rows]
        if len(rows) < _PAGE:
            return
        after_id = rows[-1].first_id


def set_aside(engine: sa.Engine, job_id: int) -> Iterator[Audited]:
    """Read the dead and cancelled batches of a job whose ranges have gaps, in id order.

    Rows that have come into a gap must not wait until somebody retries the batch.
    """
    query = (
        sa.select(*BATCH_ROW)
        .add_columns(
            batch.c.config["batch_id_min"].label("window_first_id"),
            batch.c.config["batch_id_max"].label("window_last_id"),
        )
        .select_from(batch)
        .join(job, job.c.id == batch.c.job_id)
        .join(batch_state, batch_state.c.batch_id == batch.c.id)
        .where(
            batch.c.job_id == job_id,
            batch.c.superseded_at.is_(None),
            batch.c.id_runs.is_not(None),
            batch_state.c.state.in_([BatchState.DEAD.value, BatchState.CANCELLED.value]),
        )
        .order_by(batch.c.first_id)
    )
    with transaction(engine) as connection:
        rows = connection.execute(query).all()
    for row in rows:
        one = batch_of(row)
        with transaction(engine) as connection:
            planned = planned_ids(connection, one)
        window = (row.window_first_id, row.window_last_id)
        yield Audited(ids=one.id_range, batch_id=one.id, window=window, planned=planned)


def ids_seen(engine: sa.Engine, attempt_ids: Sequence[int]) -> Mapping[int, Seen]:
    """Read what attempts saw, with the runs of ids."""
    query = sa.select(attempt.c.id, attempt.c.seen).where(attempt.c.id.in_(attempt_ids))
    with transaction(engine) as connection:
        return {row.id: Seen.from_json(row.seen) for row in connection.execute(query)}


def unchanged(connection: sa.Connection, batches: Mapping[int, int]) -> set[int]:
    """Lock published batches, so that no attempt on them starts, and pick those that stand where
    they stood, by their generation.
    """
    query = (
        sa.select(batch_state.c.batch_id, batch_state.c.generation)
        .where(
            batch_state.c.batch_id.in_(sorted(batches)),
            batch_state.c.state == BatchState.PUBLISHED,
        )
        .order_by(batch_state.c.batch_id)
        .with_for_update()
    )
    rows = connection.execute(query).all()
    return {row.batch_id for row in rows if row.generation == batches[row.batch_id]}


def _published(job_id: int, since: timedelta | None) -> sa.Select[Any]:
    query = (
        sa.select(
            batch.c.id,
            batch.c.first_id,
            batch.c.last_id,
            batch.c.config["batch_id_min"].label("window_first_id"),
            batch.c.config["batch_id_max"].label("window_last_id"),
            batch_state.c.state,
            batch_state.c.generation,
            attempt.c.id.label("attempt_id"),
            attempt.c.seen.op("-", return_type=pg.JSONB())(sa.literal("runs")).label("seen"),
        )
        .select_from(batch)
        .join(batch_state, batch_state.c.batch_id == batch.c.id)
        .join(
            attempt,
            sa.and_(
                attempt.c.batch_id == batch.c.id,
                attempt.c.generation == batch_state.c.generation,
            ),
        )
        .where(
            batch.c.job_id == job_id,
            batch.c.superseded_at.is_(None),
            batch.c.item_ids.is_(None),
        )
        .order_by(batch.c.first_id)
        .limit(_PAGE)
    )
    if since is None:
        return query
    return query.where(attempt.c.finished_at > sa.func.clock_timestamp() - since)


def _audited(row: sa.Row[Any]) -> Audited:
    is_comparable = row.seen is not None and row.state == BatchState.PUBLISHED
    return Audited(
        ids=IdRange(first_id=row.first_id, last_id=row.last_id),
        batch_id=row.id,
        generation=row.generation,
        attempt_id=row.attempt_id,
        seen=Seen.from_json({**row.seen, "runs": []}) if is_comparable else None,
        window=(row.window_first_id, row.window_last_id),
    )


def label(one: Audited) -> str:
    """Name a batch as messages do."""
    return Batch(id=one.batch_id or 0, job="", id_range=one.ids, weight=0, count=0).label
