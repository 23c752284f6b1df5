"""The sensor of a stream: what lands is registered, planned and launched in one tick."""

import time
from dataclasses import replace

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.metadata import (
    changed_observation,
    discovery_materialization,
    discovery_metadata,
    stream_observation,
)
from batch_pipeline.defs.names import batches_job, identifier
from batch_pipeline.defs.partition_sync import (
    SyncState,
    TickResult,
    lands_in_s3,
    register_and_plan,
    sync_batches,
)
from batch_pipeline.defs.partitions import batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.sensors.run_ends import end_cancelled_since
from batch_pipeline.defs.sensors.run_requests import LaunchCursor, launch_result, plan_launches
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.stream import Stream
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.filesystem import FileSystem
from batch_pipeline.storage.s3 import S3FileSystem

INTERVAL_SECONDS = 4  # the daemon looks every 5 s: what is longer would miss every other turn
_Event = dg.AssetMaterialization | dg.AssetObservation


def new_files_sensor(stream: Stream) -> dg.SensorDefinition:
    """Watch a stream's landing. Safe to repeat and to lose anywhere: the inventory remembers."""
    look = SyncState()  # of the process that evaluates the sensor; a new one starts anew

    sensor = dg.sensor(
        name=f"{identifier(stream)}_new_files",
        job_name=batches_job(stream),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=_description(stream),
    )
    if not lands_in_s3(stream):

        @sensor
        def new_files(
            context: dg.SensorEvaluationContext, pipeline: PipelineResource
        ) -> dg.SensorResult | dg.SkipReason:
            return _tick(context, pipeline.pipeline, stream, look, None)

        return new_files

    from dagster_aws.s3 import S3Resource  # half a second

    def in_bucket(
        context: dg.SensorEvaluationContext, pipeline: PipelineResource, s3: S3Resource
    ) -> dg.SensorResult | dg.SkipReason:
        return _tick(
            context, pipeline.pipeline, stream, look, S3FileSystem(s3_client.kept(s3.get_client))
        )

    return sensor(in_bucket)


def _tick(
    context: dg.SensorEvaluationContext,
    parts: Pipeline,
    stream: Stream,
    look: SyncState,
    filesystem: FileSystem | None,
) -> dg.SensorResult | dg.SkipReason:
    memory, now = LaunchCursor.of_cursor(context.cursor), time.time()
    instance = context.instance
    try:
        end_cancelled_since(parts, instance, stream, memory.looked_at)
        found = register_and_plan(
            parts, stream, instance, drain=False, look=look, filesystem=filesystem
        )
        for trouble in found.troubles:
            context.log.warning(str(trouble))
        news = _news(parts, stream, found, instance)
        return _result(instance, stream, found, news, memory, now)
    except PipelineError as error:
        return dg.SkipReason(str(error))


def _description(stream: Stream) -> str:
    if stream.user_table is not None:
        return f"Plans and launches what the table {stream.source.place} lists."
    return f"Registers, plans and launches what lands in {stream.source.place}."


def _news(
    pipeline: Pipeline, stream: Stream, found: TickResult, instance: dg.DagsterInstance
) -> list[_Event]:
    """Return the events for new items, for published batches that Dagster does not know, and for
    the status of the stream if it has changed.
    """
    has_news = found.registered.new_items if stream.user_table is None else found.planned.batches
    news: list[_Event] = list(found.known.unseen)
    if not has_news:
        return [*news, *changed_observation(pipeline, stream, instance)]
    told = stream_observation(pipeline, stream)
    facts = discovery_metadata(found.registered, found.planned.batches, told, found.troubles)
    return [discovery_materialization(stream, facts), *news, told]


def _result(
    instance: dg.DagsterInstance,
    stream: Stream,
    found: TickResult,
    news: list[_Event],
    memory: LaunchCursor,
    now: float,
) -> dg.SensorResult:
    asset, known = batches_of(stream), found.known
    here = replace(memory, looked_at=now)
    chosen = plan_launches(instance, stream, asset, known.statuses, known.order, here)
    files = f"Files known: {found.registered.found}, " if stream.user_table is None else ""
    troubles = [str(trouble) for trouble in found.troubles]
    reason = " ".join([files + chosen.quiet, *troubles])
    return launch_result(asset, known.new_keys, chosen, news, reason)


_INTERVAL_SECONDS = 30


def planned_sensor(stream: Stream) -> dg.SensorDefinition:
    """Launch the batches of a stream that are due. Safe to repeat and to lose anywhere."""
    look = SyncState()

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
        memory, now = LaunchCursor.of_cursor(context.cursor), time.time()
        try:
            end_cancelled_since(parts, instance, stream, memory.looked_at)
            parts.database.jobs.check_not_paused(stream.name)
            known = sync_batches(parts, stream, instance, look)
            changed = changed_observation(parts, stream, instance)
            asset, here = batches_of(stream), replace(memory, looked_at=now)
            chosen = plan_launches(instance, stream, asset, known.statuses, known.order, here)
            news: list[_Event] = [*known.unseen, *changed]
            return launch_result(asset, known.new_keys, chosen, news, chosen.quiet)
        except PipelineError as error:
            return dg.SkipReason(str(error))

    return planned
