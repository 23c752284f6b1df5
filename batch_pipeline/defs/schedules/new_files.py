"""The schedule of a stream that says when its new files are looked for."""

import dagster as dg

from batch_pipeline.defs.names import identifier, meta_table_job
from batch_pipeline.defs.run_order import tags_at
from batch_pipeline.model.stream import Stream


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
        tags_fn=tags_at,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Looks for new files of {stream.name}: {rules.schedule} ({rules.timezone}).",
    )
    return [schedule]
