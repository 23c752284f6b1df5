"""The throughput of jobs: medians over their last successful attempts. Reads only."""

from collections.abc import Iterable
from statistics import median

import sqlalchemy as sa

from batch_pipeline.inventory.tables import attempt, batch, job
from batch_pipeline.model.backfill import Estimate, Throughput
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.planning import Cut, Limits

LAST_ATTEMPTS = 50


def recent_throughput(
    connection: sa.Connection, *candidates: sa.ColumnElement[bool]
) -> Throughput | None:
    """Return the throughput of the first candidate with a successful attempt, None without any.

    Each candidate is a condition on jobs; their newest 50 attempts count.
    """
    for condition in candidates:
        seconds = sa.extract("epoch", attempt.c.finished_at - attempt.c.started_at)
        query = (
            sa.select(sa.cast(seconds, sa.Double).label("seconds"), batch.c.weight, job.c.name)
            .select_from(attempt)
            .join(batch, batch.c.id == attempt.c.batch_id)
            .join(job, job.c.id == batch.c.job_id)
            .where(condition, attempt.c.status == AttemptStatus.SUCCEEDED)
            .order_by(attempt.c.id.desc())
            .limit(LAST_ATTEMPTS)
        )
        rows = connection.execute(query).all()
        if rows:
            speeds = [row.weight / row.seconds for row in rows if row.seconds > 0]
            speed = median(speeds) if speeds else 0.0
            return Throughput(
                job=rows[0].name,
                attempts=len(rows),
                seconds_per_batch=median(row.seconds for row in rows),
                weight_per_second=speed or None,
            )
    return None


def estimate(cuts: Iterable[Cut], limits: Limits, throughput: Throughput | None) -> Estimate:
    """Sum up cuts as an estimate, in constant memory."""
    batches = items = weight = oversized = 0
    for cut in cuts:
        batches += 1
        items += cut.count
        weight += cut.weight
        oversized += cut.weight > limits.max_weight
    return Estimate(
        batches=batches, items=items, weight=weight, oversized=oversized, pace=throughput
    )
