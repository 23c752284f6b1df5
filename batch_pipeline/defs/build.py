"""Definitions for a set of streams. Building them opens nothing: no database, no JVM."""

from collections.abc import Iterable

import dagster as dg

from batch_pipeline.defs.assets.encoded import backfill_asset, batches_asset
from batch_pipeline.defs.assets.late import late_asset
from batch_pipeline.defs.assets.meta_table import meta_table_asset
from batch_pipeline.defs.jobs.plan_backfill import plan_backfill_job
from batch_pipeline.defs.names import (
    STREAM_TAG,
    backfill_asset_key,
    backfill_job,
    batches_job,
    batches_key,
    late_job,
    late_key,
    meta_table_job,
    meta_table_key,
)
from batch_pipeline.defs.resources import PipelineResource, SparkResource
from batch_pipeline.defs.sensors.backfills import backfill_sensor
from batch_pipeline.defs.sensors.late import late_sensor
from batch_pipeline.defs.sensors.new_files import new_files_sensor
from batch_pipeline.defs.sensors.run_ends import cancelled_runs_sensor, failed_runs_sensor
from batch_pipeline.domain.stream import Stream


def build_definitions(streams: Iterable[Stream]) -> dg.Definitions:
    """Build assets, Dagster jobs and sensors for each stream."""
    every = list(streams)
    parts = [_stream_definitions(stream) for stream in every]
    shared = dg.Definitions(
        jobs=[plan_backfill_job(every)],
        sensors=[failed_runs_sensor(), cancelled_runs_sensor(every)],
        resources={"pipeline": PipelineResource(), "spark": SparkResource()},
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(shared, *parts)


def _stream_definitions(stream: Stream) -> dg.Definitions:
    assets = [
        meta_table_asset(stream),
        batches_asset(stream),
        backfill_asset(stream),
        late_asset(stream),
    ]
    tags = {STREAM_TAG: stream.name}
    jobs = [
        dg.define_asset_job(
            meta_table_job(stream),
            selection=[meta_table_key(stream)],
            tags=tags,
            description=f"Registers and plans the new files of {stream.name}.",
        ),
        dg.define_asset_job(
            batches_job(stream),
            selection=[batches_key(stream)],
            tags=tags,
            description=f"Encodes and publishes batches of {stream.name}.",
        ),
        dg.define_asset_job(
            backfill_job(stream),
            selection=[backfill_asset_key(stream)],
            tags=tags,
            description=f"Encodes and publishes batches of backfills of {stream.name}.",
        ),
        dg.define_asset_job(
            late_job(stream),
            selection=[late_key(stream)],
            tags=tags,
            description=f"Encodes and publishes late arrivals of {stream.name}.",
        ),
    ]
    sensors = [new_files_sensor(stream), backfill_sensor(stream), late_sensor(stream)]
    return dg.Definitions(assets=assets, jobs=jobs, sensors=sensors)
