"""Generations whose files were given up: marked before files go, and told afterwards.

The mark is in `facts` of the attempt, whose rows all stay. Whether files may go is the domain's to
say; here it is asked once more, under a lock, what could have changed since. No file is touched.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.domain.batch import AttemptStatus
from batch_pipeline.domain.garbage import (
    FILES_REMOVED_AT,
    QUARANTINE_REMOVED_AT,
    Removal,
)
from batch_pipeline.domain.load import LoadStatus
from batch_pipeline.inventory.locks import LOADER_IS_THERE
from batch_pipeline.inventory.tables import attempt, batch, job, load
from batch_pipeline.inventory.upkeep.migrate import check_still
from batch_pipeline.inventory.work.generations import IS_REPLACED

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
    """Mark generations that a newer one replaced; return the ids that are marked."""
    return _mark(connection, attempt_ids, IS_REPLACED)


def mark_loaded(
    connection: sa.Connection,
    attempt_ids: Collection[int],
    targets: Collection[str],
) -> set[int]:
    """Mark generations that all targets have; return the ids that are marked."""
    wanted = set(targets)
    having = (
        sa.select(sa.func.count())
        .where(load.c.attempt_id == attempt.c.id, load.c.target.in_(wanted), HAS_LOAD)
        .scalar_subquery()
    )
    all_have = sa.and_(having == len(wanted), sa.literal(bool(wanted)))
    return _mark(connection, attempt_ids, sa.and_(all_have, ~IS_HELD))


def mark_quarantine(connection: sa.Connection, attempt_ids: Collection[int]) -> set[int]:
    """Mark published generations whose quarantine files go, and nothing else of them."""
    return _mark(connection, attempt_ids, sa.true(), QUARANTINE_REMOVED_AT)


def removal_of(facts: Mapping[str, Any]) -> Removal | None:
    """Read the mark out of the facts of an attempt."""
    return _removal(facts, FILES_REMOVED_AT)


def quarantine_removal_of(facts: Mapping[str, Any]) -> Removal | None:
    """Read the mark of quarantine files, which go with the others or before them."""
    own = _removal(facts, QUARANTINE_REMOVED_AT)
    return own or removal_of(facts)


def facts_of(connection: sa.Connection, token: UUID) -> Mapping[str, Any]:
    """Read the facts of the attempt that has a token; none where there is no such attempt."""
    facts = connection.execute(sa.select(attempt.c.facts).where(attempt.c.token == token))
    return facts.scalar_one_or_none() or {}


def keep_from_removal(connection: sa.Connection, attempt_ids: Collection[int]) -> None:
    """Keep others from marking attempts until the transaction ends, and wait for who does."""
    query = sa.select(attempt.c.id).where(_among(attempt_ids)).order_by(attempt.c.id)
    connection.execute(query.with_for_update(read=True, key_share=True))


def _mark(
    connection: sa.Connection,
    attempt_ids: Collection[int],
    may_go: sa.ColumnElement[bool],
    removed_at: str = FILES_REMOVED_AT,
) -> set[int]:
    check_still(connection)
    ids = _among(attempt_ids)
    # A load that starts refers to the attempt's row, so it either waits for this lock or is seen
    # by the next statement; the same goes for somebody who asks for a batch to be loaded again.
    connection.execute(sa.select(attempt.c.id).where(ids).order_by(attempt.c.id).with_for_update())
    mark = sa.func.jsonb_build_object(removed_at, sa.func.clock_timestamp())
    is_marked = attempt.c.facts.has_key(removed_at)
    update = (
        sa.update(attempt)
        .where(ids, attempt.c.status == AttemptStatus.SUCCEEDED, ~is_marked, may_go)
        .values(facts=attempt.c.facts.op("||")(mark))
    )
    connection.execute(update)
    return set(connection.execute(sa.select(attempt.c.id).where(ids, is_marked)).scalars())


def _removal(facts: Mapping[str, Any], removed_at: str) -> Removal | None:
    if removed_at not in facts:
        return None
    return Removal(at=datetime.fromisoformat(facts[removed_at]).astimezone(UTC))


def _among(attempt_ids: Collection[int]) -> sa.ColumnElement[bool]:
    return attempt.c.id == sa.any_(sa.cast(sorted(attempt_ids), pg.ARRAY(sa.BigInteger)))
