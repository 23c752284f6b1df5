"""The statement that publishes: counter, state and attempt move together or not at all.

Built once, with names for every value; nothing is executed here.
"""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.domain.batch import Attempt, AttemptStatus, BatchState
from batch_pipeline.inventory.tables import attempt, batch, batch_state, job

_JSON = pg.JSONB(none_as_null=True)
_FACTS: dict[str, sa.types.TypeEngine[Any]] = {
    "schema_version": sa.Integer(),
    "encoding": _JSON,
    "key_properties": _JSON,
    "facts": _JSON,
    "result": _JSON,
    "logging": sa.Text(),
    "seen": _JSON,
}


def publish_values(claimed: Attempt, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Give the statement its values; facts that are left out become NULL."""
    given: dict[str, Any] = {"of_token": claimed.token, "of_batch": claimed.batch.id}
    return given | {f"its_{name}": facts.get(name) for name in _FACTS}


def _publish() -> sa.Select[Any]:
    """Publish a running attempt; gives its generation, no row when it does not run any more.

    The job's row comes first: who holds it commits before the next publish gets its number. Without
    a row the transaction must be rolled back, for the counter has gone on.
    """
    of_batch = sa.bindparam("of_batch", type_=sa.BigInteger)
    counted = (
        sa.update(job)
        .where(batch.c.id == of_batch, job.c.id == batch.c.job_id)
        .values(publish_count=job.c.publish_count + sa.literal_column("1"))
        .returning(job.c.publish_count, batch.c.id.label("batch_id"))
        .cte("counted")
    )
    generation = sa.func.coalesce(batch_state.c.generation, sa.literal_column("0"))
    moved = (
        sa.update(batch_state)
        .where(batch_state.c.batch_id == counted.c.batch_id)
        .values(
            state=sa.literal_column(f"'{BatchState.PUBLISHED}'"),
            generation=generation + sa.literal_column("1"),
        )
        .returning(batch_state.c.batch_id, batch_state.c.generation, counted.c.publish_count)
        .cte("moved")
    )
    facts = {name: sa.bindparam(f"its_{name}", type_=kind) for name, kind in _FACTS.items()}
    closed = (
        sa.update(attempt)
        .where(
            attempt.c.batch_id == moved.c.batch_id,
            attempt.c.token == sa.bindparam("of_token", type_=attempt.c.token.type),
            attempt.c.status == sa.literal_column(f"'{AttemptStatus.RUNNING}'"),
        )
        .values(
            status=sa.literal_column(f"'{AttemptStatus.SUCCEEDED}'"),
            finished_at=sa.func.clock_timestamp(),
            generation=moved.c.generation,
            publish_number=moved.c.publish_count,
            **facts,
        )
        .returning(attempt.c.generation)
        .cte("closed")
    )
    return sa.select(closed.c.generation)


PUBLISH = _publish()
