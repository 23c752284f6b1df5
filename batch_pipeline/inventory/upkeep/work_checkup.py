"""Looks at paused streams, attempts nobody closed, numbers of partitions, and Dagster's daemon.

Reads only. Of Dagster's tables, which lie in the same database, it knows no more than it asks.
"""

from collections.abc import Iterator
from datetime import UTC, timedelta

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus
from batch_pipeline.domain.finding import Finding, fine, warning
from batch_pipeline.inventory.jobs.standings import many_partitions
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import attempt, batch, job

_SILENT_FOR = timedelta(minutes=10)
_HEARTBEAT = timedelta(minutes=5)  # Dagster's daemons tell of themselves every 30 s
_NEEDED = ("SENSOR", "SCHEDULER", "QUEUED_RUN_COORDINATOR")
_HEARTBEATS = sa.text("SELECT daemon_type, timestamp FROM public.daemon_heartbeats")
_WAITING = sa.text("SELECT count(*) FROM public.runs WHERE status = 'QUEUED'")
_HAS_TABLES = sa.text(
    "SELECT to_regclass('public.daemon_heartbeats') IS NOT NULL "
    "AND to_regclass('public.runs') IS NOT NULL"
)
_IS_READABLE = sa.text(
    "SELECT has_table_privilege('public.daemon_heartbeats', 'SELECT') "
    "AND has_table_privilege('public.runs', 'SELECT')"
)


def check_work(inventory: sa.Engine) -> Iterator[Finding]:
    """Look at paused jobs, attempts without a process, and assets with too many partitions.

    Raises:
        DatabaseUnreachableError: the server went away.
    """
    paused = sa.select(job.c.name, job.c.paused_at, job.c.paused_reason).where(
        job.c.paused_at.is_not(None)
    )
    late = sa.func.clock_timestamp() - _SILENT_FOR
    silent = (
        sa.select(job.c.name, sa.func.count().label("attempts"))
        .join(batch, batch.c.job_id == job.c.id)
        .join(attempt, attempt.c.batch_id == batch.c.id)
        .where(attempt.c.status == AttemptStatus.RUNNING, attempt.c.lease_until < late)
        .group_by(job.c.name)
        .order_by(job.c.name)
    )
    with transaction(inventory) as connection:
        stopped = connection.execute(paused.order_by(job.c.name)).all()
        left = connection.execute(silent).all()
        many = many_partitions(connection, sa.true())
    for one in stopped:
        reason = f": {one.paused_reason}" if one.paused_reason else ""
        text = (
            f"paused since {one.paused_at:%Y-%m-%d %H:%M} UTC{reason}. "
            f"`batch-pipeline jobs resume {one.name}` lets it go on."
        )
        yield warning(one.name, text)
    for one in left:
        text = (
            f"attempts without a sign of life for ten minutes that nobody closed: {one.attempts}; "
            f"neither sensors nor `reconcile` run. Run "
            f"`batch-pipeline reconcile`."
        )
        yield warning(one.name, text)
    for asset in many:
        yield warning(asset.stream, asset.sentence)


def check_dagster(inventory: sa.Engine, *, is_own: bool) -> Iterator[Finding]:
    """Look whether Dagster's daemon is alive, where Dagster was ever started on this database.

    On our own server (`is_own`) it is up only while somebody has started `dev`.

    Raises:
        DatabaseUnreachableError: the server went away.
    """
    with transaction(inventory) as connection:
        if not connection.execute(_HAS_TABLES).scalar_one():
            yield fine("dagster", "was never started on this database.")
            return
        if not connection.execute(_IS_READABLE).scalar_one():
            yield fine("dagster", "not looked at: this login may not read its tables.")
            return
        beats = {row.daemon_type: row.timestamp for row in connection.execute(_HEARTBEATS)}
        waiting = connection.execute(_WAITING).scalar_one()
        now = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
    newest = {name: beats[name].replace(tzinfo=UTC) for name in _NEEDED if name in beats}
    last = min(newest.values(), default=None)
    if last is None or now - last > _HEARTBEAT:
        heard = "was never started" if last is None else f"was last heard of {last:%Y-%m-%d %H:%M}"
        if waiting == 0 and (last is None or is_own):
            yield fine("dagster", f"its daemon {heard}; `batch-pipeline dev` starts it.")
            return
        text = (
            f"its daemon {heard}, so that sensors, schedules and queued runs ({waiting}) stand "
            f"still. Start `batch-pipeline dev`, or the daemon of your deployment; "
            f"`batch-pipeline run` needs none."
        )
        yield warning("dagster", text)
        return
    yield fine("dagster", f"its daemon is up; runs in the queue: {waiting}.")
