"""Gives the batch and the attempt of a manifest their rows, as they were when it was published.

A batch that is there already gets the attempt; one that overlaps others is refused.
"""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, Batch, BatchState
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.origin import Origin
from batch_pipeline.domain.seen import Seen
from batch_pipeline.inventory.restored.found import Found
from batch_pipeline.inventory.tables import attempt, batch, batch_state
from batch_pipeline.inventory.work.encoded_rows import insert_files

_LOST = "the inventory was restored from a backup that is older than this attempt"


def adopt_batch(found: Found, job_id: int, manifest: Manifest, origin: Origin) -> tuple[bool, int]:
    """Write what a manifest says; tells whether its batch is new, and how many attempts are lost.

    Contradictions are noted, and nothing of the manifest is written then.
    """
    connection = found.connection
    rows = _overlapping(connection, job_id, manifest.batch)
    same = [row for row in rows if _is_same(row, manifest.batch)]
    if len(rows) > len(same):
        other = next(row for row in rows if row not in same)
        ids = f"{other.first_id}..{other.last_id}"
        found.refuse(manifest, f"its ids overlap the batch {ids}, which was cut otherwise here")
        return False, 0
    batch_id = same[0].id if same else _insert_batch(connection, job_id, manifest.batch, origin)
    tries = connection.execute(
        sa.select(attempt).where(attempt.c.batch_id == batch_id).with_for_update()
    ).all()
    number = origin.publish_number
    problem = _in_the_way(manifest, tries) or _elsewhere(
        connection, job_id, manifest, batch_id, number
    )
    if problem is not None:
        found.refuse(manifest, problem)
        return not same, 0
    lost = _fill(connection, batch_id, manifest, origin, tries)
    attempt_id = _write_attempt(connection, batch_id, manifest, origin, tries)
    insert_files(connection, attempt_id, manifest, origin.items)
    state = (
        sa.update(batch_state)
        .where(batch_state.c.batch_id == batch_id)
        .values(
            state=BatchState.PUBLISHED.value,
            attempts=sa.func.greatest(batch_state.c.attempts, manifest.attempt),
            generation=sa.func.greatest(batch_state.c.generation, manifest.generation),
        )
    )
    connection.execute(state)
    return not same, lost


def _overlapping(connection: sa.Connection, job_id: int, one: Batch) -> Sequence[sa.Row[Any]]:
    """Find the live batches that hold ids of one, or items of its list."""
    query = sa.select(batch).where(
        batch.c.job_id == job_id,
        batch.c.superseded_at.is_(None),
        batch.c.first_id <= one.id_range.last_id,
        batch.c.last_id >= one.id_range.first_id,
    )
    if one.item_ids is None:
        query = query.where(batch.c.item_ids.is_(None))
    else:
        ids = sa.cast(list(one.item_ids), sa.ARRAY(sa.BigInteger))
        query = query.where(batch.c.item_ids.overlap(ids))
    return connection.execute(query.order_by(batch.c.id)).all()


def _is_same(row: sa.Row[Any], one: Batch) -> bool:
    ids = (row.first_id, row.last_id) == (one.id_range.first_id, one.id_range.last_id)
    listed = None if row.item_ids is None else tuple(row.item_ids)
    return ids and listed == one.item_ids


def _insert_batch(connection: sa.Connection, job_id: int, one: Batch, origin: Origin) -> int:
    values = {
        "job_id": job_id,
        "first_id": one.id_range.first_id,
        "last_id": one.id_range.last_id,
        "weight": one.weight,
        "item_count": one.count,
        "oversized": one.oversized,
        "config": dict(origin.planned_with),
        "planned_at": sa.func.least(origin.started_at, sa.func.clock_timestamp()),
        "item_ids": None if one.item_ids is None else list(one.item_ids),
    }
    insert = sa.insert(batch).values(values).returning(batch.c.id)
    batch_id: int = connection.execute(insert).scalar_one()
    state = {"batch_id": batch_id, "job_id": job_id, "state": BatchState.PLANNED.value}
    connection.execute(sa.insert(batch_state).values(state))
    return batch_id


def _in_the_way(manifest: Manifest, tries: Sequence[sa.Row[Any]]) -> str | None:
    """Say which attempt on the batch contradicts a manifest; None if none does."""
    number, generation = manifest.attempt, manifest.generation
    for row in tries:
        is_mine, is_before = row.token == manifest.token, row.number < number
        if is_mine and (row.number, row.generation) == (number, None):
            continue
        if is_mine or row.status == AttemptStatus.RUNNING:
            return f"attempt {row.number} on it is {row.status} here"
        if row.number == number:
            return f"attempt {number} on it is another one here"
        if row.generation and is_before != (row.generation < generation):
            return f"attempt {row.number} on it is generation {row.generation} here"
    return None


def _elsewhere(
    connection: sa.Connection, job_id: int, manifest: Manifest, batch_id: int, number: int
) -> str | None:
    """Say which other batch has the token, or the publish number, of a manifest; None if none."""
    is_token = sa.and_(attempt.c.token == manifest.token, attempt.c.batch_id != batch_id)
    is_number = sa.and_(batch.c.job_id == job_id, attempt.c.publish_number == number)
    query = sa.select(batch.c.first_id, batch.c.last_id).select_from(attempt.join(batch))
    rival = connection.execute(query.where(sa.or_(is_token, is_number)).limit(1)).one_or_none()
    if rival is None:
        return None
    ids = f"{rival.first_id}..{rival.last_id}"
    return f"publish number {number}, or its token, is that of the batch {ids} here"


def _fill(
    connection: sa.Connection,
    batch_id: int,
    manifest: Manifest,
    origin: Origin,
    tries: Sequence[sa.Row[Any]],
) -> int:
    """Note the attempts before this one that nobody knows any more, as abandoned."""
    known = {row.number for row in tries}
    lost = [number for number in range(1, manifest.attempt) if number not in known]
    began = sa.func.least(origin.started_at, sa.func.clock_timestamp())
    for number in lost:
        values = {
            "batch_id": batch_id,
            "number": number,
            "token": uuid4(),
            "status": AttemptStatus.ABANDONED.value,
            "run_id": "unknown",
            "error": _LOST,
            **_times(began, began),
        }
        connection.execute(sa.insert(attempt).values(values))
    return len(lost)


def _write_attempt(
    connection: sa.Connection,
    batch_id: int,
    manifest: Manifest,
    origin: Origin,
    tries: Sequence[sa.Row[Any]],
) -> int:
    """Write the published attempt, or publish the one with its token that a backup has open."""
    now = sa.func.clock_timestamp()
    values: dict[str, Any] = {
        "status": AttemptStatus.SUCCEEDED.value,
        "error": None,
        "finished_at": sa.func.least(origin.published_at, now),
        "generation": manifest.generation,
        "publish_number": origin.publish_number,
        "schema_version": manifest.schema_version,
        "encoding": {
            "format": manifest.encoding.format.value,
            "compression": manifest.encoding.compression.value,
        },
        "key_properties": list(manifest.key_properties),
        "facts": dict(origin.facts),
        "seen": Seen.of([one.id for one in origin.items], weight=origin.weight_read).to_json(),
    }
    mine = [row.id for row in tries if row.token == manifest.token]
    if mine:
        update = sa.update(attempt).where(attempt.c.id == mine[0]).values(values)
        connection.execute(update)
        return int(mine[0])
    began = sa.func.least(origin.started_at, now)
    values |= {
        **_times(began, values["finished_at"]),
        "batch_id": batch_id,
        "number": manifest.attempt,
        "token": manifest.token,
        "run_id": origin.run_id,
    }
    insert = sa.insert(attempt).values(values).returning(attempt.c.id)
    return int(connection.execute(insert).scalar_one())


def _times(began: object, ended: object) -> dict[str, object]:
    """Give the times of an attempt whose process is long gone."""
    return {
        "liveness_key": 0,
        "started_at": began,
        "renewed_at": began,
        "lease_until": began,
        "finished_at": ended,
    }
