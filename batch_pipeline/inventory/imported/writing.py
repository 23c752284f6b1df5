"""Writes imported batches with their states, attempts and bookmarks, in the caller's transaction.

They are kept as those that the library has published: with a result, and without files.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from math import isfinite
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.domain.batch import AttemptStatus, BatchState
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.imported import ForeignAttempt
from batch_pipeline.domain.imported_ranges import ImportedBatch
from batch_pipeline.inventory.imported.standing import MARK
from batch_pipeline.inventory.jobs.bookmarks import advance, gaps
from batch_pipeline.inventory.tables import attempt, batch, batch_state, job
from batch_pipeline.inventory.work.stored_text import storable

_AT_ONCE = 1_000
_MAX_TEXT = 4_000
_Try = tuple[int, int]  # number of the row, first id of the batch
_JSON = pg.JSONB(none_as_null=True)
_FACTS = (
    "batch_id",
    "number",
    "token",
    "liveness_key",
    "status",
    "run_id",
    "started_at",
    "renewed_at",
    "lease_until",
    "finished_at",
    "error",
    "generation",
    "publish_number",
    "result",
    "logging",
    "seen",
)
_ATTEMPT = sa.insert(attempt).values(
    {
        name: sa.bindparam(
            f"its_{name}", type_=_JSON if name in {"result", "seen"} else attempt.c[name].type
        )
        for name in _FACTS
    }
)
_BATCH = sa.insert(batch).returning(batch.c.id, sort_by_parameter_order=True)


def write_batches(
    connection: sa.Connection,
    job_id: int,
    batches: Sequence[ImportedBatch],
    config: Mapping[str, Any],
) -> Counter[BatchState]:
    """Write batches of a job that is locked, and give how many there are in each state.

    Publish numbers follow the times when the attempts ended, after those that the job has given.
    """
    row = connection.execute(sa.select(job).where(job.c.id == job_id).with_for_update()).one()
    states = [_state(one, row.max_attempts) for one in batches]
    numbers = _publish_numbers(batches, row.publish_count)
    for at in range(0, len(batches), _AT_ONCE):
        page = batches[at : at + _AT_ONCE]
        rows = [_batch(job_id, one, config) for one in page]
        ids = connection.execute(_BATCH, rows).scalars().all()
        facts = zip(ids, states[at : at + _AT_ONCE], page, strict=True)
        connection.execute(
            sa.insert(batch_state),
            [
                {"batch_id": batch_id, "job_id": job_id, "state": state.value, **_tries(one)}
                for batch_id, state, one in facts
            ],
        )
        tries = [_attempts(*one, numbers) for one in zip(ids, page, strict=True)]
        connection.execute(_ATTEMPT, list(chain.from_iterable(tries)))
    count = row.publish_count + len(numbers)
    connection.execute(sa.update(job).where(job.c.id == job_id).values(publish_count=count))
    return Counter(states)


def move_bookmarks(connection: sa.Connection, job_id: int, runs: Sequence[IdRange]) -> None:
    """Record that runs of ids are planned."""
    for ids in runs:
        for gap in list(gaps(connection, job_id, ids)):
            advance(connection, job_id, gap, gap.ids.last_id)


def _publish_numbers(batches: Sequence[ImportedBatch], after: int) -> dict[_Try, int]:
    """Number the tries that succeeded, above a number, as they ended."""
    ends = [
        (each.finished_at, each.id, one.ids.first_id)
        for one in batches
        for each in one.attempts
        if each.succeeded
    ]
    in_order = enumerate(sorted(ends), start=after + 1)
    return {(row_id, first_id): number for number, (_, row_id, first_id) in in_order}


def _state(one: ImportedBatch, max_attempts: int) -> BatchState:
    if one.is_published:
        return BatchState.PUBLISHED
    return BatchState.DEAD if len(one.attempts) >= max_attempts else BatchState.FAILED


def _tries(one: ImportedBatch) -> dict[str, int | None]:
    generation = sum(each.succeeded for each in one.attempts)
    return {"attempts": len(one.attempts), "generation": generation or None}


def _batch(job_id: int, one: ImportedBatch, config: Mapping[str, Any]) -> dict[str, Any]:
    newest = one.attempts[-1]
    limit = newest.limits.get("batch_weight")
    rows = [[each.id, each.recorded, each.ids.first_id, each.ids.last_id] for each in one.attempts]
    asked = {"job_identifier": newest.job_identifier, **newest.limits}
    return {
        "job_id": job_id,
        "first_id": one.ids.first_id,
        "last_id": one.ids.last_id,
        "weight": one.weight,
        "item_count": one.count,
        "oversized": one.count == 1 and limit is not None and one.weight > limit,
        "config": _stored({**config, **asked, MARK: {"rows": rows}}),
        "planned_at": one.attempts[0].started_at,
    }


def _attempts(
    batch_id: int, one: ImportedBatch, numbers: Mapping[_Try, int]
) -> list[dict[str, Any]]:
    facts, generation = [], 0
    for number, each in enumerate(one.attempts, start=1):
        generation += each.succeeded
        values = {
            "batch_id": batch_id,
            "number": number,
            "token": uuid4(),
            "liveness_key": 0,
            "run_id": storable(each.job_identifier or ""),
            "started_at": each.started_at,
            "renewed_at": each.started_at,
            "lease_until": each.started_at,
            "finished_at": each.finished_at,
            "generation": generation if each.succeeded else None,
            "publish_number": numbers.get((each.id, one.ids.first_id)),
            "result": _stored(each.result),
            "seen": one.seen.to_json() if each.succeeded else None,
            **_outcome(each),
        }
        facts.append({f"its_{name}": value for name, value in values.items()})
    return facts


def _outcome(one: ForeignAttempt) -> dict[str, str | None]:
    text = None if one.logging is None else storable(one.logging)
    if one.succeeded:
        return {"status": AttemptStatus.SUCCEEDED.value, "error": None, "logging": text}
    reason = "never released" if one.recorded == "running" else "failed without a reason"
    return {
        "status": AttemptStatus.FAILED.value,
        "error": (text or reason)[:_MAX_TEXT],
        "logging": None,
    }


def _stored(value: Any) -> Any:
    """Give a JSON value as Postgres can store it: without NUL, half a surrogate pair, or NaN."""
    match value:
        case str():
            return storable(value)
        case float() if not isfinite(value):
            return str(value)
        case list():
            return [_stored(one) for one in value]
        case dict():
            return {storable(str(name)): _stored(one) for name, one in value.items()}
    return value
