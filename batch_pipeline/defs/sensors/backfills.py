"""The sensor of a stream's backfills: batches of history cut anew are added and launched.

The inventory is what says which backfills there are: those planned by command and those planned in
Dagster are added and launched by the same sensor, and paused, cancelled and tried again alike.
"""

import time
from collections.abc import Sequence

import dagster as dg

from batch_pipeline.defs.discover import Known, look_at_backfills
from batch_pipeline.defs.metadata import backfill_observation
from batch_pipeline.defs.names import (
    backfill_job,
    backfill_partitions,
    identifier,
)
from batch_pipeline.defs.partitioned import backfills_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.sensors.launch import Launches, Memory, launches
from batch_pipeline.defs.sensors.run_ends import end_cancelled_since
from batch_pipeline.domain.backfill import Progress
from batch_pipeline.domain.errors import PipelineError
from batch_pipeline.domain.stream import Stream

_INTERVAL_SECONDS = 30


def backfill_sensor(stream: Stream) -> dg.SensorDefinition:
    """Launch what backfills have planned. Safe to repeat and to lose anywhere."""

    @dg.sensor(
        name=f"{identifier(stream)}_backfill",
        job_name=backfill_job(stream),
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Adds and launches batches of backfills of {stream.name}.",
    )
    def backfills(
        context: dg.SensorEvaluationContext, pipeline: PipelineResource
    ) -> dg.SensorResult | dg.SkipReason:
        parts, instance = pipeline.pipeline, context.instance
        memory, now = Memory.of_cursor(context.cursor), time.time()
        try:
            end_cancelled_since(parts, instance, stream, memory.looked_at)
            known = look_at_backfills(parts, stream, instance)
            paused = parts.database.backfills.paused(stream.name)
            progress = parts.database.backfills.of_stream(stream.name)
        except PipelineError as error:
            return dg.SkipReason(str(error))
        going = [status for status in known.statuses if status.batch.job not in paused]
        asset = backfills_of(stream)
        chosen = launches(instance, stream, asset, going, known.order, memory)
        return _result(stream, known, chosen, progress, memory, now)

    return backfills


def _result(
    stream: Stream,
    known: Known,
    chosen: Launches,
    progress: Sequence[Progress],
    memory: Memory,
    now: float,
) -> dg.SensorResult:
    ended = [one for one in progress if one.is_finished and one.job in memory.open_jobs]
    events: list[dg.AssetMaterialization | dg.AssetObservation] = list(known.unseen)
    events += [backfill_observation(stream, one) for one in ended]
    add = backfill_partitions(stream).build_add_request(list(known.new_keys))
    is_quiet = not (chosen.requests or known.new_keys or events)
    return dg.SensorResult(
        run_requests=list(chosen.requests),
        dynamic_partitions_requests=[add],
        asset_events=events,
        cursor=Memory(
            runs=chosen.runs,
            tries=chosen.tries,
            looked_at=now,
            open_jobs=[one.job for one in progress if not one.is_finished],
        ).cursor(),
        skip_reason="no batch of a backfill is due." if is_quiet else None,
    )
