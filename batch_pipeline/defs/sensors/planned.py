"""The sensor of a stream with a schedule: it launches what is planned, and looks for no new files.

Interrupted batches are tried again by themselves all the same, whenever the schedule looks.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import dagster as dg

from batch_pipeline.defs.discover import Look, look_at_batches
from batch_pipeline.defs.heard import Known
from batch_pipeline.defs.names import batches_job, identifier
from batch_pipeline.defs.observe import changed_observation
from batch_pipeline.defs.partitioned import batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.sensors.launch import Memory, launches
from batch_pipeline.defs.sensors.run_ends import end_cancelled_since
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.stream import Stream

_INTERVAL_SECONDS = 30


def planned_sensor(stream: Stream) -> dg.SensorDefinition:
    """Launch the batches of a stream that are due. Safe to repeat and to lose anywhere."""
    look = Look()

    @dg.sensor(
        name=f"{identifier(stream)}_planned",
        job_name=batches_job(stream),
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Launches planned and interrupted batches of {stream.name}; new files are looked for "
            f"by the schedule."
        ),
    )
    def planned(
        context: dg.SensorEvaluationContext, pipeline: PipelineResource
    ) -> dg.SensorResult | dg.SkipReason:
        parts, instance = pipeline.pipeline, context.instance
        memory, now = Memory.of_cursor(context.cursor), time.time()
        try:
            end_cancelled_since(parts, instance, stream, memory.looked_at)
            parts.database.jobs.check_not_paused(stream.name)
            known = look_at_batches(parts, stream, instance, look)
            changed = changed_observation(parts, stream, instance)
            return _result(instance, stream, known, [*known.unseen, *changed], memory, now)
        except PipelineError as error:
            return dg.SkipReason(str(error))

    return planned


def _result(
    instance: dg.DagsterInstance,
    stream: Stream,
    known: Known,
    news: Sequence[dg.AssetMaterialization | dg.AssetObservation],
    memory: Memory,
    now: float,
) -> dg.SensorResult:
    asset = batches_of(stream)
    here = replace(memory, looked_at=now)
    chosen = launches(instance, stream, asset, known.statuses, known.order, here)
    is_quiet = not (chosen.requests or known.new_keys or news)
    return dg.SensorResult(
        run_requests=list(chosen.requests),
        dynamic_partitions_requests=[asset.partitions.build_add_request(list(known.new_keys))],
        asset_events=[*news],
        cursor=chosen.memory.cursor(),
        skip_reason=chosen.quiet if is_quiet else None,
    )
