"""When maintenance runs. Both schedules run by default, since what they start is safe at any time:
it closes what is dead already, and deletes what no manifest has named for a day.
"""

import dagster as dg

from batch_pipeline.defs.names import COLLECT_GARBAGE_JOB, RECONCILE_JOB
from batch_pipeline.defs.run_order import tags_at

RECONCILE_AT = "41 * * * *"
COLLECT_GARBAGE_AT = "23 3 * * *"


def maintenance_schedules() -> list[dg.ScheduleDefinition]:
    """Reconcile every hour and collect garbage every night (UTC): one run each for all streams."""
    return [
        dg.ScheduleDefinition(
            name="reconcile_hourly",
            cron_schedule=RECONCILE_AT,
            execution_timezone="UTC",
            job_name=RECONCILE_JOB,
            tags_fn=tags_at,
            default_status=dg.DefaultScheduleStatus.RUNNING,
            description="Closes what crashes left open and looks for late items, every hour.",
        ),
        dg.ScheduleDefinition(
            name="collect_garbage_daily",
            cron_schedule=COLLECT_GARBAGE_AT,
            execution_timezone="UTC",
            job_name=COLLECT_GARBAGE_JOB,
            tags_fn=tags_at,
            default_status=dg.DefaultScheduleStatus.RUNNING,
            description="Deletes files that no manifest needs, every night.",
        ),
    ]
