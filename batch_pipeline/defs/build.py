"""Definitions for a set of streams. Building them opens nothing: no database, no JVM.

A code location has the definitions of each of its streams, and once what all streams share.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from batch_pipeline.config.stream_file import load_valid_streams
from batch_pipeline.defs.assets.batches import backfill_asset, batches_asset
from batch_pipeline.defs.assets.late import late_asset
from batch_pipeline.defs.assets.loaded import loaded_asset
from batch_pipeline.defs.assets.meta_table import meta_table_asset
from batch_pipeline.defs.checks import CheckScope, check_jobs, checks_of
from batch_pipeline.defs.jobs import (
    collect_garbage_job,
    load_due_job,
    plan_backfill_job,
    reconcile_job,
)
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
from batch_pipeline.defs.partition_sync import lands_in_s3
from batch_pipeline.defs.resources import PipelineResource, SparkResource
from batch_pipeline.defs.schedules import maintenance_schedules, new_files_schedules
from batch_pipeline.defs.sensors.backfills import backfill_sensor
from batch_pipeline.defs.sensors.late import late_sensor
from batch_pipeline.defs.sensors.loads import loads_sensor
from batch_pipeline.defs.sensors.new_files import new_files_sensor, planned_sensor
from batch_pipeline.defs.sensors.run_ends import cancelled_runs_sensor, failed_runs_sensor
from batch_pipeline.defs.sensors.stream_files import stream_files_sensor
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.stream import Stream


def build_definitions(streams: Iterable[Stream] | str | Path) -> dg.Definitions:
    """Build all that a code location of streams needs; a text or path is a folder of stream files.

    A file of the folder that cannot be used is logged and left out while the other streams load,
    and the sensor `stream_files` fails until it is mended. Runs encode in their own process, so
    that a run starts no second one for its single step.

    Raises:
        InvalidValueError: two streams have the same name.
    """
    if isinstance(streams, str | Path):
        return _definitions_of_folder(Path(streams).absolute())
    every = list(streams)
    executor = dg.Definitions(executor=dg.in_process_executor)
    parts = [stream_definitions(stream) for stream in every]
    return dg.Definitions.merge(executor, shared_definitions(every), *parts)


def _definitions_of_folder(folder: Path) -> dg.Definitions:
    streams, problems = load_valid_streams(folder)
    for problem in problems:
        logging.getLogger("batch_pipeline").error("%s", problem)
    watching = dg.Definitions(sensors=[stream_files_sensor(folder, streams)])
    return dg.Definitions.merge(watching, build_definitions(streams.values()))


def shared_definitions(streams: Sequence[Stream]) -> dg.Definitions:
    """Build what a code location has once, however many streams: resources, sensors of runs' ends.

    Raises:
        InvalidValueError: two streams have the same name.
    """
    for name, count in Counter(stream.name for stream in streams).items():
        if count > 1:
            expected = f"a name of its own for each stream; {count} have this one"
            raise InvalidValueError("stream", name, expected)
    shared = dg.Definitions(
        jobs=[
            plan_backfill_job(streams),
            reconcile_job(streams),
            collect_garbage_job(streams),
        ],
        sensors=[failed_runs_sensor(), cancelled_runs_sensor(streams)],
        schedules=maintenance_schedules(),
        resources={
            "pipeline": PipelineResource(),
            "spark": SparkResource(),
            "check_scope": CheckScope(),
            **_store_of(streams),
        },
    )
    return dg.Definitions.merge(shared, check_jobs(streams))


def _store_of(streams: Sequence[Stream]) -> dict[str, Any]:
    """Return the resource for listing buckets, if a stream lands in one."""
    if not any(map(lands_in_s3, streams)):
        return {}
    from batch_pipeline.defs.s3_resource import StoreResource

    return {"s3": StoreResource.of_environment()}


def stream_definitions(stream: Stream) -> dg.Definitions:
    """Build the assets, Dagster jobs and sensors of one stream."""
    with warnings.catch_warnings():
        # Dagster warns of backfill policies at each asset: a hundred lines for fifty streams.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return _stream_definitions(stream)


def _stream_definitions(stream: Stream) -> dg.Definitions:
    assets = [
        meta_table_asset(stream),
        batches_asset(stream),
        backfill_asset(stream),
        late_asset(stream),
    ]
    name = stream.name
    jobs = [
        dg.define_asset_job(
            job,
            # Runs evaluate the checks that matter themselves, so that these need no steps.
            selection=dg.AssetSelection.assets(key).without_checks(),
            tags={STREAM_TAG: name},
            executor_def=dg.in_process_executor,
            description=description,
        )
        for job, key, description in (
            (
                meta_table_job(stream),
                meta_table_key(stream),
                f"Registers and plans the new files of {name}.",
            ),
            (
                batches_job(stream),
                batches_key(stream),
                f"Encodes and publishes batches of {name}.",
            ),
            (
                backfill_job(stream),
                backfill_asset_key(stream),
                f"Encodes and publishes batches of backfills of {name}.",
            ),
            (
                late_job(stream),
                late_key(stream),
                f"Encodes and publishes late arrivals of {name}.",
            ),
        )
    ]
    if stream.targets:
        assets.append(loaded_asset(stream))
    schedules = new_files_schedules(stream)
    own = planned_sensor(stream) if schedules else new_files_sensor(stream)
    sensors = [own, backfill_sensor(stream), late_sensor(stream)]
    loads = [load_due_job(stream)] if stream.targets else []
    sensors += [loads_sensor(stream)] if stream.targets else []
    return dg.Definitions(
        assets=assets,
        asset_checks=checks_of(stream),
        jobs=[*jobs, *loads],
        sensors=sensors,
        schedules=schedules,
    )
