"""The sensor of a stream's late arrivals: what audits have planned is launched, a run at a time."""

import time
from dataclasses import replace

import dagster as dg

from batch_pipeline.defs.names import (
    LAUNCH_TAG,
    MAX_RETRIES_TAG,
    PRIORITY_TAG,
    STREAM_TAG,
    identifier,
    late_job,
)
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.sensors.run_ends import end_cancelled_since
from batch_pipeline.defs.sensors.run_requests import UNFINISHED, LaunchCursor, priority
from batch_pipeline.model.batch import BatchStatus
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.restore_check import CheckedInventory, ensure_inventory_current

_INTERVAL_SECONDS = 30


def late_sensor(stream: Stream) -> dg.SensorDefinition:
    """Launch what audits have planned; a run at a time. Safe to repeat and to lose anywhere."""
    checked = CheckedInventory()  # of the process that evaluates the sensor; a new one starts anew

    @dg.sensor(
        name=f"{identifier(stream)}_late",
        job_name=late_job(stream),
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Launches batches of late arrivals of {stream.name}.",
    )
    def late_arrivals(
        context: dg.SensorEvaluationContext, pipeline: PipelineResource
    ) -> dg.SensorResult | dg.SkipReason:
        database, now = pipeline.pipeline.database, time.time()
        before = LaunchCursor.of_cursor(context.cursor).looked_at
        memory = replace(LaunchCursor.of_cursor(context.cursor), looked_at=now)
        try:
            ensure_inventory_current(pipeline.pipeline.database, stream, checked)
            end_cancelled_since(pipeline.pipeline, context.instance, stream, before)
            database.jobs.check_not_paused(stream.name)
            waiting = database.change_feed.due(stream.name, JobKind.LATE)
            due = {str(status.batch.id): status for status in waiting}
        except PipelineError as error:
            return dg.SkipReason(str(error))
        runs = dg.RunsFilter(job_name=late_job(stream), statuses=UNFINISHED)
        if context.instance.get_runs(runs, limit=1):
            return dg.SensorResult(skip_reason="a run is under way.", cursor=memory.cursor())
        ready = [status for key, status in due.items() if not memory.is_early(key)]
        if not ready:
            reason = "nothing that came late waits to be launched now."
            return dg.SensorResult(skip_reason=reason, cursor=memory.after((), due, 0).cursor())
        number = memory.runs + 1
        request = dg.RunRequest(
            run_key=_run_key(stream, ready, number),
            tags={
                STREAM_TAG: stream.name,
                LAUNCH_TAG: "new",
                MAX_RETRIES_TAG: "0",
                PRIORITY_TAG: str(priority(now)),
            },
        )
        after = memory.after(due, due, 1)  # the run has all that wait
        return dg.SensorResult(run_requests=[request], cursor=after.cursor())

    return late_arrivals


def _run_key(stream: Stream, waiting: list[BatchStatus], number: int) -> str:
    tries = ",".join(f"{status.batch.id}.{status.attempts}" for status in waiting[:20])
    return f"{stream.name}:late:{number}:{tries}"
