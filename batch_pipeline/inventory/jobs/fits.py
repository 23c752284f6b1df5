"""How long batches of a job took, and the limits that planners cut by for it. Reads only."""

import re
from dataclasses import dataclass

import sqlalchemy as sa

from batch_pipeline.domain.batch import Batch, BatchState
from batch_pipeline.domain.fitting import NEWEST, Fitted, Learned, Timed, fitted
from batch_pipeline.domain.planning import Limits
from batch_pipeline.inventory.jobs.jobs import of_stream
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import attempt, batch, batch_state, job

# As indexes say it, which would not be used for parameters.
_WAITING = f"state IN ('{BatchState.PLANNED}', '{BatchState.INTERRUPTED}')"
_RUNNING = f"state = '{BatchState.RUNNING}'"


@dataclass(frozen=True, slots=True)
class LearnedLimits:
    """What was learned about the batches of streams."""

    engine: sa.Engine

    def of_stream(self, stream: str, limits: Limits) -> Fitted:
        """Give the limits that the next planning of a stream would cut by."""
        with transaction(self.engine) as connection:
            query = sa.select(job.c.id).where(of_stream(stream))
            return fit(connection, limits, connection.execute(query).scalar_one_or_none())

    def of_batch(self, one: Batch) -> Learned | None:
        """Tell why a batch was cut as it is; None where its limits were as configured."""
        query = sa.select(batch.c.config).where(batch.c.id == one.id)
        with transaction(self.engine) as connection:
            return Learned.of_config(connection.execute(query).scalar_one_or_none() or {})


def fit(connection: sa.Connection, limits: Limits, *job_ids: int | None) -> Fitted:
    """Fit limits to the past of the first of some jobs that has published.

    One query a job, and none where limits have no target.
    """
    if limits.target_seconds is None:
        return fitted(limits, ())
    for job_id in job_ids:
        past = () if job_id is None else timed(connection, job_id, limits)
        if past:
            return fitted(limits, past)
    return fitted(limits, ())


def room(connection: sa.Connection, fitted: Fitted, job_id: int) -> int | None:
    """Tell how many batches may be planned now; None: any number. The planning lock is held."""
    if fitted.ahead is None:
        return None
    ahead = sa.select(_count(job_id, _WAITING) + _count(job_id, _RUNNING))
    found: int = connection.execute(ahead).scalar_one()
    return max(0, fitted.ahead - found)


def _count(job_id: int, condition: str) -> sa.ScalarSelect[int]:
    query = sa.select(sa.func.count()).select_from(batch_state)
    return query.where(batch_state.c.job_id == job_id, sa.text(condition)).scalar_subquery()


def timed(connection: sa.Connection, job_id: int, limits: Limits) -> list[Timed]:
    """Read the newest published attempts of a job, newest first.

    Finds them by their numbers, of which each job has its own: 20 rows a job are read, however many
    there are. Batches that keep no limit that one can read were cut by `limits`.
    """
    number = sa.func.generate_series(job.c.publish_count - NEWEST + 1, job.c.publish_count)
    numbers = sa.select(number).where(job.c.id == job_id).scalar_subquery()
    seconds = sa.extract("epoch", attempt.c.finished_at - attempt.c.started_at)
    query = (
        sa.select(
            batch.c.weight,
            sa.cast(seconds, sa.Double).label("seconds"),
            batch.c.config["max_weight"].astext.label("max_weight"),
        )
        .join(batch, batch.c.id == attempt.c.batch_id)
        .where(
            attempt.c.publish_number == sa.any_(sa.func.array(numbers)),
            batch.c.job_id == job_id,
        )
        .order_by(attempt.c.publish_number.desc())
    )
    return [
        Timed(
            weight=row.weight,
            seconds=row.seconds,
            max_weight=int(row.max_weight) if _is_limit(row.max_weight) else limits.max_weight,
        )
        for row in connection.execute(query)
    ]


def _is_limit(written: str | None) -> bool:
    # What a restored batch was planned with comes from a file.
    return re.fullmatch("[0-9]{1,19}", written or "") is not None
