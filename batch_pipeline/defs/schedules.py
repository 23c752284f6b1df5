"""When maintenance runs. Both schedules run by default, since what they start is safe at any time:
it closes what is dead already, and deletes what no manifest has named for a day.
"""

import dagster as dg

from batch_pipeline.defs.names import COLLECT_GARBAGE_JOB, RECONCILE_JOB, identifier, meta_table_job
from batch_pipeline.defs.sensors.run_requests import schedule_tags
from batch_pipeline.model.stream import Stream

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
            tags_fn=schedule_tags,
            default_status=dg.DefaultScheduleStatus.RUNNING,
            description="Closes what crashes left open and looks for late items, every hour.",
        ),
        dg.ScheduleDefinition(
            name="collect_garbage_daily",
            cron_schedule=COLLECT_GARBAGE_AT,
            execution_timezone="UTC",
            job_name=COLLECT_GARBAGE_JOB,
            tags_fn=schedule_tags,
            default_status=dg.DefaultScheduleStatus.RUNNING,
            description="Deletes files that no manifest needs, every night.",
        ),
    ]


def new_files_schedules(stream: Stream) -> list[dg.ScheduleDefinition]:
    """Register and plan at the stream's times, the last small batch too; nothing without times.

    A time that comes while the look before is still under way looks once more, which finds nothing.
    """
    rules = stream.dagster
    if rules.schedule is None:
        return []
    schedule = dg.ScheduleDefinition(
        name=f"{identifier(stream)}_new_files_at",
        cron_schedule=rules.schedule,
        execution_timezone=rules.timezone,
        job_name=meta_table_job(stream),
        tags_fn=schedule_tags,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Looks for new files of {stream.name}: {rules.schedule} ({rules.timezone}).",
    )
    return [schedule]
