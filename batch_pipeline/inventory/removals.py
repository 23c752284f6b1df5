"""Removed files of attempts: marks in `attempt.facts`, and conditions for removing files."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.inventory.locks import LOADER_IS_THERE
from batch_pipeline.inventory.migrate import ensure_revision_unchanged
from batch_pipeline.inventory.tables import attempt, batch, job, load
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.garbage import FILES_REMOVED_AT, QUARANTINE_REMOVED_AT, Removal
from batch_pipeline.model.load import LoadStatus

_newer = attempt.alias("newer")

# A later generation of the same batch was published.
IS_REPLACED = sa.exists().where(
    _newer.c.batch_id == attempt.c.batch_id, _newer.c.generation > attempt.c.generation
)


ARE_REMOVED = attempt.c.facts.has_key(FILES_REMOVED_AT)
IS_QUARANTINE_REMOVED = attempt.c.facts.has_key(QUARANTINE_REMOVED_AT)
HAS_LOAD = sa.and_(load.c.status == LoadStatus.SUCCEEDED, load.c.voided_at.is_(None))

_parent = job.alias("parent")
_is_being_loaded = sa.exists().where(
    load.c.attempt_id == attempt.c.id, load.c.status == LoadStatus.RUNNING, LOADER_IS_THERE
)
_is_paused = sa.exists(
    sa.select(1)
    .select_from(
        batch.join(job, job.c.id == batch.c.job_id).outerjoin(
            _parent, _parent.c.id == job.c.parent_id
        )
    )
    .where(
        batch.c.id == attempt.c.batch_id,
        sa.or_(job.c.paused_at.is_not(None), _parent.c.paused_at.is_not(None)),
    )
    .correlate(attempt)
)
IS_HELD = sa.or_(_is_being_loaded, _is_paused)


def mark_superseded(connection: sa.Connection, attempt_ids: Collection[int]) -> set[int]:
    """Mark the files of replaced generations as removed; return the ids of marked attempts."""
    return _mark_removed(connection, attempt_ids, IS_REPLACED)


def mark_loaded(
    connection: sa.Connection,
    attempt_ids: Collection[int],
    targets: Collection[str],
) -> set[int]:
    """Mark the files of generations that all targets have loaded; return the marked ids."""
    target_set = set(targets)
    loaded_targets = (
        sa.select(sa.func.count())
        .where(load.c.attempt_id == attempt.c.id, load.c.target.in_(target_set), HAS_LOAD)
        .scalar_subquery()
    )
    is_loaded_in_all = sa.and_(loaded_targets == len(target_set), sa.literal(bool(target_set)))
    return _mark_removed(connection, attempt_ids, sa.and_(is_loaded_in_all, ~IS_HELD))


def mark_quarantine(connection: sa.Connection, attempt_ids: Collection[int]) -> set[int]:
    """Mark only the quarantine files of generations as removed; return the marked ids."""
    return _mark_removed(connection, attempt_ids, sa.true(), QUARANTINE_REMOVED_AT)


def removal_of(facts: Mapping[str, Any]) -> Removal | None:
    """Return the removal of an attempt's files from its facts, None if they are kept."""
    return _read_removal(facts, FILES_REMOVED_AT)


def quarantine_removal_of(facts: Mapping[str, Any]) -> Removal | None:
    """Return the removal of quarantine files, which are removed with the others or before."""
    own = _read_removal(facts, QUARANTINE_REMOVED_AT)
    return own or removal_of(facts)


def facts_of(connection: sa.Connection, token: UUID) -> Mapping[str, Any]:
    """Read the facts of the attempt with a token; empty if there is no such attempt."""
    facts = connection.execute(sa.select(attempt.c.facts).where(attempt.c.token == token))
    return facts.scalar_one_or_none() or {}


def lock_against_removal(connection: sa.Connection, attempt_ids: Collection[int]) -> None:
    """Lock attempts so that no other transaction marks them until this one ends."""
    query = sa.select(attempt.c.id).where(_has_id(attempt_ids)).order_by(attempt.c.id)
    connection.execute(query.with_for_update(read=True, key_share=True))


def _mark_removed(
    connection: sa.Connection,
    attempt_ids: Collection[int],
    condition: sa.ColumnElement[bool],
    removed_at: str = FILES_REMOVED_AT,
) -> set[int]:
    ensure_revision_unchanged(connection)
    ids = _has_id(attempt_ids)
    # A load references the attempt's row, so inserting one either waits for this lock or is seen by
    # the next statement. The same holds for voiding a load.
    connection.execute(sa.select(attempt.c.id).where(ids).order_by(attempt.c.id).with_for_update())
    mark = sa.func.jsonb_build_object(removed_at, sa.func.clock_timestamp())
    is_marked = attempt.c.facts.has_key(removed_at)
    update = (
        sa.update(attempt)
        .where(ids, attempt.c.status == AttemptStatus.SUCCEEDED, ~is_marked, condition)
        .values(facts=attempt.c.facts.op("||")(mark))
    )
    connection.execute(update)
    return set(connection.execute(sa.select(attempt.c.id).where(ids, is_marked)).scalars())


def _read_removal(facts: Mapping[str, Any], removed_at: str) -> Removal | None:
    if removed_at not in facts:
        return None
    return Removal(at=datetime.fromisoformat(facts[removed_at]).astimezone(UTC))


def _has_id(attempt_ids: Collection[int]) -> sa.ColumnElement[bool]:
    return attempt.c.id == sa.any_(sa.cast(sorted(attempt_ids), pg.ARRAY(sa.BigInteger)))
