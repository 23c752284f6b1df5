"""The sensor of a stream's late arrivals: what audits have planned is launched, a run at a time."""

import time

import dagster as dg

from batch_pipeline.defs.names import (
    LAUNCH_TAG,
    MAX_RETRIES_TAG,
    STREAM_TAG,
    identifier,
    late_job,
)
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.sensors.launch import Memory
from batch_pipeline.defs.sensors.run_ends import end_cancelled_since
from batch_pipeline.defs.sensors.run_keys import UNFINISHED
from batch_pipeline.domain.batch import BatchStatus
from batch_pipeline.domain.errors import PipelineError
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.stream import Stream
from batch_pipeline.steps.plan import MAX_ATTEMPTS

_INTERVAL_SECONDS = 30


def late_sensor(stream: Stream) -> dg.SensorDefinition:
    """Launch what audits have planned; a run at a time. Safe to repeat and to lose anywhere."""

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
        memory = Memory.of_cursor(context.cursor)
        try:
            end_cancelled_since(pipeline.pipeline, context.instance, stream, memory.looked_at)
            database.jobs.check_not_paused(stream.name)
            waiting = database.batch_news.due(stream.name, JobKind.LATE)
            tried_less = [status for status in waiting if status.attempts < MAX_ATTEMPTS]
        except PipelineError as error:
            return dg.SkipReason(str(error))
        runs = dg.RunsFilter(job_name=late_job(stream), statuses=UNFINISHED)
        if not tried_less or context.instance.get_runs(runs, limit=1):
            quiet = Memory(runs=memory.runs, looked_at=now)
            reason = "nothing that came late waits to be launched."
            return dg.SensorResult(skip_reason=reason, cursor=quiet.cursor())
        number = memory.runs + 1
        request = dg.RunRequest(
            run_key=_run_key(stream, tried_less, number),
            tags={STREAM_TAG: stream.name, LAUNCH_TAG: "new", MAX_RETRIES_TAG: "0"},
        )
        after = Memory(runs=number, looked_at=now)
        return dg.SensorResult(run_requests=[request], cursor=after.cursor())

    return late_arrivals


def _run_key(stream: Stream, waiting: list[BatchStatus], number: int) -> str:
    tries = ",".join(f"{status.batch.id}.{status.attempts}" for status in waiting[:20])
    return f"{stream.name}:late:{number}:{tries}"
