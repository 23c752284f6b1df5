"""The sensor of a stream's backfills: adds and launches their partitions.

The inventory is what says which backfills there are: those planned by command and those planned in
Dagster are added and launched by the same sensor, and paused, cancelled and tried again alike.
"""

import time
from collections.abc import Sequence, Set
from dataclasses import replace

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.metadata import backfill_observation
from batch_pipeline.defs.names import (
    backfill_job,
    identifier,
)
from batch_pipeline.defs.partition_sync import SyncPlan, SyncState, sync_backfills
from batch_pipeline.defs.partitions import backfills_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.sensors.run_ends import end_cancelled_since
from batch_pipeline.defs.sensors.run_requests import (
    LaunchCursor,
    LaunchPlan,
    launch_result,
    plan_launches,
)
from batch_pipeline.model.backfill import Progress
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.stream import Stream

_INTERVAL_SECONDS = 30


def backfill_sensor(stream: Stream) -> dg.SensorDefinition:
    """Launch what backfills have planned. Safe to repeat and to lose anywhere."""
    look = SyncState()  # of the process that evaluates the sensor; a new one starts anew

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
        memory, now = LaunchCursor.of_cursor(context.cursor), time.time()
        try:
            end_cancelled_since(parts, instance, stream, memory.looked_at)
            known = sync_backfills(parts, stream, instance, look)
            open_jobs = parts.database.change_feed.open_backfills(stream.name)
            ended = _ended(parts, stream, {*memory.open_jobs} - {*open_jobs})
            asset = backfills_of(stream)
            here = replace(memory, looked_at=now, open_jobs=open_jobs)
            chosen = plan_launches(instance, stream, asset, known.statuses, known.order, here)
        except PipelineError as error:
            return dg.SkipReason(str(error))
        return _result(stream, known, chosen, ended)

    return backfills


def _ended(pipeline: Pipeline, stream: Stream, names: Set[str]) -> list[Progress]:
    """Read how backfills stand that were open and are no more."""
    if not names:
        return []
    found = pipeline.database.backfills.of_stream(stream.name)
    return [one for one in found if one.job in names and one.is_finished]


def _result(
    stream: Stream,
    known: SyncPlan,
    chosen: LaunchPlan,
    ended: Sequence[Progress],
) -> dg.SensorResult:
    events: list[dg.AssetMaterialization | dg.AssetObservation] = list(known.unseen)
    events += [backfill_observation(stream, one) for one in ended]
    quiet = chosen.quiet if chosen.pausing else "no batch of a backfill is due."
    return launch_result(backfills_of(stream), known.new_keys, chosen, events, quiet)
