"""What each group role may do with the inventory: the one place where a new table gets its rights.

No statement is composed here.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.tables import (
    SCHEMA,
    attempt,
    attempt_item,
    batch,
    batch_state,
    bookmark,
    ceiling_candidate,
    item,
    job,
    load,
    part_file,
    schema_version,
    target_probe,
)


class Role(StrEnum):
    """The group roles; a login that hands out batches as well as working on them is in two."""

    OWNER = "owner"  # migrates, and deletes streams: everything here belongs to it
    PLANNER = "planner"
    WORKER = "worker"
    READER = "reader"

    def named(self, prefix: str) -> str:
        """Give the role's name in the database."""
        return f"{prefix}_{self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """What the statements of one purpose need, and who runs them."""

    to: str
    roles: tuple[Role, ...]
    selects: tuple[sa.FromClause, ...] = ()
    inserts: tuple[sa.Table, ...] = ()
    updates: tuple[sa.Column[Any], ...] = ()
    deletes: tuple[sa.Table, ...] = ()


RIGHTS = (
    Right(
        to="read",
        roles=(Role.PLANNER, Role.WORKER, Role.READER),
        selects=(
            item,
            job,
            bookmark,
            batch,
            batch_state,
            schema_version,
            attempt,
            part_file,
            attempt_item,
            load,
            target_probe,
            ceiling_candidate,
            sa.table("alembic_version", schema=SCHEMA),
            sa.table("inventory", schema=SCHEMA),
            sa.table("published", schema=SCHEMA),
        ),
    ),
    Right(
        to="register files",
        roles=(Role.PLANNER,),
        inserts=(item,),
        updates=(item.c.size_bytes, item.c.modified_at, item.c.etag),
    ),
    Right(
        to="open a job",
        roles=(Role.PLANNER,),
        inserts=(job,),
        updates=(job.c.max_attempts, job.c.bisect, job.c.config),
    ),
    Right(
        to="plan",
        roles=(Role.PLANNER,),
        inserts=(batch, batch_state, bookmark),
        updates=(bookmark.c.last_id,),
        deletes=(bookmark,),  # two runs of planned ids become one
    ),
    Right(
        to="remember ceilings",
        roles=(Role.PLANNER,),
        inserts=(ceiling_candidate,),
        updates=(ceiling_candidate.c.state, ceiling_candidate.c.saved_at),
    ),
    Right(
        to="pause and resume",
        roles=(Role.PLANNER,),
        updates=(job.c.paused_at, job.c.paused_reason),
    ),
    Right(
        to="cancel",
        roles=(Role.PLANNER,),
        updates=(
            attempt.c.status,
            attempt.c.finished_at,
            attempt.c.error,
            attempt.c.logging,
            batch_state.c.state,
        ),
    ),
    Right(
        to="try again",
        roles=(Role.PLANNER,),
        updates=(batch_state.c.state, batch_state.c.forgiven),
    ),
    Right(
        to="split a batch",
        roles=(Role.PLANNER,),
        inserts=(batch, batch_state),
        updates=(batch.c.superseded_at, batch_state.c.state),
    ),
    Right(
        to="claim",
        roles=(Role.WORKER,),
        inserts=(attempt,),
        updates=(batch_state.c.state, batch_state.c.attempts),
    ),
    Right(
        to="renew a lease",
        roles=(Role.WORKER,),
        updates=(attempt.c.renewed_at, attempt.c.lease_until),
    ),
    Right(
        to="end an attempt",
        roles=(Role.WORKER,),
        updates=(
            attempt.c.status,
            attempt.c.finished_at,
            attempt.c.error,
            attempt.c.logging,
            batch_state.c.state,
            batch_state.c.forgiven,  # of attempts that do not count
        ),
    ),
    Right(
        to="publish",
        roles=(Role.WORKER,),
        inserts=(part_file, attempt_item),
        updates=(
            job.c.publish_count,
            batch_state.c.generation,
            attempt.c.generation,
            attempt.c.publish_number,
            attempt.c.schema_version,
            attempt.c.encoding,
            attempt.c.key_properties,
            attempt.c.facts,
            attempt.c.result,
            attempt.c.seen,
            attempt.c.pointer_uri,
        ),
    ),
    Right(
        to="load",
        roles=(Role.WORKER,),
        inserts=(load, target_probe),
        updates=(
            load.c.renewed_at,
            load.c.lease_until,
            load.c.status,
            load.c.finished_at,
            load.c.voided_at,
            load.c.records,
            load.c.state,
            load.c.exit_code,
            load.c.mode,
            load.c.error,
            load.c.log,
        ),
    ),
    Right(
        to="collect garbage",
        roles=(Role.WORKER,),
        updates=(
            attempt.c.facts,  # when files of a generation were given up
            attempt.c.error,
            attempt.c.logging,
            load.c.error,
            load.c.log,
        ),
    ),
    Right(
        to="widen a schema",
        roles=(Role.WORKER,),
        inserts=(schema_version,),
        updates=(job.c.publish_count,),  # the right to lock the job's row
    ),
)
