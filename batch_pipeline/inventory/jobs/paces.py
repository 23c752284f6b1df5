"""How fast jobs have been: medians over their last attempts that succeeded. Reads only."""

from collections.abc import Iterable
from statistics import median

import sqlalchemy as sa

from batch_pipeline.domain.backfill import Estimate, Pace
from batch_pipeline.domain.batch import AttemptStatus
from batch_pipeline.domain.planning import Cut, Limits
from batch_pipeline.inventory.tables import attempt, batch, job

LAST_ATTEMPTS = 50


def pace(connection: sa.Connection, *candidates: sa.ColumnElement[bool]) -> Pace | None:
    """Give the pace of the first of some jobs that has succeeded before, None when none has.

    Each candidate picks jobs; the newest 50 attempts count.
    """
    for which in candidates:
        seconds = sa.extract("epoch", attempt.c.finished_at - attempt.c.started_at)
        query = (
            sa.select(sa.cast(seconds, sa.Double).label("seconds"), batch.c.weight, job.c.name)
            .select_from(attempt)
            .join(batch, batch.c.id == attempt.c.batch_id)
            .join(job, job.c.id == batch.c.job_id)
            .where(which, attempt.c.status == AttemptStatus.SUCCEEDED)
            .order_by(attempt.c.id.desc())
            .limit(LAST_ATTEMPTS)
        )
        found = connection.execute(query).all()
        if found:
            speeds = [row.weight / row.seconds for row in found if row.seconds > 0]
            speed = median(speeds) if speeds else 0.0
            return Pace(
                job=found[0].name,
                attempts=len(found),
                seconds_per_batch=median(row.seconds for row in found),
                weight_per_second=speed or None,
            )
    return None


def estimate(cuts: Iterable[Cut], limits: Limits, known: Pace | None) -> Estimate:
    """Sum up cuts that are not written; memory is constant."""
    batches = items = weight = oversized = 0
    for one in cuts:
        batches += 1
        items += one.count
        weight += one.weight
        oversized += one.weight > limits.max_weight
    return Estimate(batches=batches, items=items, weight=weight, oversized=oversized, pace=known)
