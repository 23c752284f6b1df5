"""Sensors that launch batches: new files, planned batches of scheduled streams, and backfills.

Each tick compares the inventory with Dagster and launches what is due, so that any tick may be
repeated, or lost in a crash.
"""

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.metadata import (
    backfill_observation,
    changed_observation,
    discovery_materialization,
    discovery_metadata,
    stream_observation,
)
from batch_pipeline.defs.names import identifier
from batch_pipeline.defs.partition_sync import (
    SyncPlan,
    SyncState,
    TickResult,
    register_and_plan,
    sync_partitions,
)
from batch_pipeline.defs.partitions import PartitionedAsset, backfills_of, batches_of
from batch_pipeline.defs.resources import PipelineResource, lands_in_s3
from batch_pipeline.defs.sensors.run_ends import cancel_batches_since
from batch_pipeline.defs.sensors.run_requests import (
    LaunchCursor,
    launch_result,
    plan_launches,
    sensor_status,
)
from batch_pipeline.model.backfill import Progress
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.stream import Stream
from batch_pipeline.storage.s3 import S3FileSystem

NEW_FILES_SECONDS = 4  # the daemon evaluates sensors every 5 s: more would skip every other time
_PLANNED_SECONDS = 30
_Event = dg.AssetMaterialization | dg.AssetObservation
_Result = dg.SensorResult | dg.SkipReason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """What a tick has found, before it launches anything; `cursor` has the tick's own memory."""

    sync: SyncPlan
    cursor: LaunchCursor
    events: Sequence[_Event]
    before_reason: str = ""  # what precedes the reason for launching nothing
    after_reasons: Sequence[str] = field(default_factory=tuple)


def new_files_sensor(stream: Stream) -> dg.SensorDefinition:
    """Build the sensor that registers new files, plans batches and launches them."""
    state = SyncState()  # of this process; a new process compares everything first
    action = "Registers, plans and launches files that land in"
    if stream.user_table is not None:
        action = "Plans and launches files that are listed in"

    sensor = dg.sensor(
        name=f"{identifier(stream)}_new_files",
        job_name=batches_of(stream).job,
        minimum_interval_seconds=NEW_FILES_SECONDS,
        default_status=sensor_status(stream),
        description=f"{action} {stream.source.place}.",
    )

    def tick(
        context: dg.SensorEvaluationContext, pipeline: Pipeline, s3_client: Any = None
    ) -> _Result:
        def find(cursor: LaunchCursor) -> _Findings:
            result = register_and_plan(
                pipeline,
                stream,
                context.instance,
                drain=False,
                state=state,
                filesystem=None if s3_client is None else S3FileSystem(lambda: s3_client),
            )
            for error in result.errors:
                context.log.warning(str(error))
            known = f"Files known: {result.registered.found}, "
            return _Findings(
                sync=result.sync,
                cursor=cursor,
                events=_discovery_events(pipeline, stream, result, context.instance),
                before_reason=known if stream.user_table is None else "",
                after_reasons=[str(error) for error in result.errors],
            )

        return _launch(context, pipeline, stream, batches_of(stream), find)

    if lands_in_s3(stream):

        @sensor
        def new_objects(
            context: dg.SensorEvaluationContext,
            batch_pipeline: PipelineResource,
            batch_pipeline_s3: dg.ResourceParam[Any],  # S3Resource: importing it takes 0.5 s
        ) -> _Result:
            return tick(context, batch_pipeline.pipeline, batch_pipeline_s3.get_client())

        return new_objects

    @sensor
    def new_files(context: dg.SensorEvaluationContext, batch_pipeline: PipelineResource) -> _Result:
        return tick(context, batch_pipeline.pipeline)

    return new_files


def planned_sensor(stream: Stream) -> dg.SensorDefinition:
    """Build the sensor that launches batches of a stream whose files a schedule registers."""
    state, asset = SyncState(), batches_of(stream)

    @dg.sensor(
        name=f"{identifier(stream)}_planned",
        job_name=asset.job,
        minimum_interval_seconds=_PLANNED_SECONDS,
        default_status=sensor_status(stream),
        description=(
            f"Launches planned and interrupted batches of {stream.name}; the schedule registers "
            f"new files."
        ),
    )
    def planned(context: dg.SensorEvaluationContext, batch_pipeline: PipelineResource) -> _Result:
        pipeline = batch_pipeline.pipeline

        def find(cursor: LaunchCursor) -> _Findings:
            pipeline.database.jobs.check_not_paused(stream.name)
            sync = sync_partitions(pipeline, stream, asset, context.instance, state)
            changed = changed_observation(pipeline, stream, context.instance)
            return _Findings(sync=sync, cursor=cursor, events=[*sync.unseen, *changed])

        return _launch(context, pipeline, stream, asset, find)

    return planned


def backfill_sensor(stream: Stream) -> dg.SensorDefinition:
    """Build the sensor that launches batches of backfills, whatever has planned them."""
    state, asset = SyncState(), backfills_of(stream)

    @dg.sensor(
        name=f"{identifier(stream)}_backfill",
        job_name=asset.job,
        minimum_interval_seconds=_PLANNED_SECONDS,
        default_status=sensor_status(stream),
        description=f"Launches batches of backfills of {stream.name}.",
    )
    def backfills(context: dg.SensorEvaluationContext, batch_pipeline: PipelineResource) -> _Result:
        pipeline = batch_pipeline.pipeline

        def find(cursor: LaunchCursor) -> _Findings:
            sync = sync_partitions(pipeline, stream, asset, context.instance, state)
            open_jobs = pipeline.database.change_feed.open_backfills(stream.name)
            ended = _ended_backfills(pipeline, stream, {*cursor.open_jobs} - {*open_jobs})
            return _Findings(
                sync=sync,
                cursor=replace(cursor, open_jobs=open_jobs),
                events=[*sync.unseen, *(backfill_observation(stream, one) for one in ended)],
            )

        return _launch(context, pipeline, stream, asset, find)

    return backfills


def _launch(
    context: dg.SensorEvaluationContext,
    pipeline: Pipeline,
    stream: Stream,
    asset: PartitionedAsset,
    find: Callable[[LaunchCursor], _Findings],
) -> _Result:
    cursor = LaunchCursor.of_cursor(context.cursor)
    now = time.time()
    try:
        cancel_batches_since(pipeline, context.instance, stream, cursor.looked_at)
        found = find(replace(cursor, looked_at=now))
        sync = found.sync
        plan = plan_launches(
            context.instance, stream, asset, sync.statuses, sync.order, found.cursor
        )
    except PipelineError as error:
        return dg.SkipReason(str(error))
    reason = " ".join([found.before_reason + plan.skip_reason, *found.after_reasons])
    return launch_result(asset, sync.new_keys, plan, found.events, reason)


def _discovery_events(
    pipeline: Pipeline, stream: Stream, result: TickResult, instance: dg.DagsterInstance
) -> list[_Event]:
    """Return the events for new files, for batches that Dagster misses, and for a changed status.

    Raises:
        PipelineError: the user's table cannot be read.
    """
    unseen: list[_Event] = list(result.sync.unseen)
    is_own = stream.user_table is None
    if not (result.registered.new_items if is_own else result.planned.batches):
        return [*unseen, *changed_observation(pipeline, stream, instance)]
    status = stream_observation(pipeline, stream)
    metadata = discovery_metadata(result.registered, result.planned.batches, status, result.errors)
    return [discovery_materialization(stream, metadata), *unseen, status]


def _ended_backfills(pipeline: Pipeline, stream: Stream, names: Set[str]) -> list[Progress]:
    """Return the progress of backfills that were open at the last tick and are finished."""
    if not names:
        return []
    progress = pipeline.database.backfills.of_stream(stream.name)
    return [one for one in progress if one.job in names and one.is_finished]
