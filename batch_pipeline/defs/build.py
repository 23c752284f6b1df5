"""Definitions of a code location with streams. Building them opens no database and no JVM."""

import logging
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from batch_pipeline.config.stream_file import load_valid_streams
from batch_pipeline.defs import names
from batch_pipeline.defs.assets import backfill_asset, batches_asset, files_asset
from batch_pipeline.defs.checks import CheckScope, check_definitions, check_streams_job
from batch_pipeline.defs.jobs import maintenance_jobs, maintenance_schedules, new_files_schedules
from batch_pipeline.defs.loads import load_due_job, loaded_asset, loads_sensor
from batch_pipeline.defs.partitions import backfills_of, batches_of
from batch_pipeline.defs.resources import PipelineResource, SparkResource, lands_in_s3
from batch_pipeline.defs.sensors import (
    backfill_sensor,
    new_files_sensor,
    planned_sensor,
    run_ends_sensor,
    stream_files_sensor,
)
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.stream import Automation, Stream


def build_definitions(
    streams: Iterable[Stream] | str | Path,
    *,
    automation: Automation = Automation.STOPPED,
    pipeline: PipelineResource | None = None,
    spark: SparkResource | None = None,
) -> dg.Definitions:
    """Build the definitions of streams; a text or path is a folder of stream files.

    `automation`, `running` or `stopped`, is the default status of sensors and schedules of streams
    whose file does not set it. `pipeline` and `spark` are the resources, by default those of the
    environment. An invalid file of the folder is logged and skipped; the sensor
    `batch_pipeline_stream_files` fails until it is corrected.

    Raises:
        InvalidValueError: two streams have the same name, or differ only in `-`, `.` and `_`.
    """
    parts: list[dg.Definitions] = []
    if isinstance(streams, str | Path):
        folder = Path(streams).absolute()
        by_name, errors = load_valid_streams(folder)
        for error in errors:
            logging.getLogger("batch_pipeline").error("%s", error)
        sensor = stream_files_sensor(folder, by_name, Automation(automation))
        parts.append(dg.Definitions(sensors=[sensor]))
        streams = by_name.values()
    automated = [_with_automation(stream, Automation(automation)) for stream in streams]
    parts += [stream_definitions(stream) for stream in automated]
    resources = dg.Definitions(
        resources={
            names.PIPELINE_RESOURCE: pipeline or PipelineResource(),
            names.SPARK_RESOURCE: spark or SparkResource(),
        }
    )
    return dg.Definitions.merge(shared_definitions(automated), resources, *parts)


def _with_automation(stream: Stream, automation: Automation) -> Stream:
    if stream.dagster.automation is not None:
        return stream
    return replace(stream, dagster=replace(stream.dagster, automation=automation))


def shared_definitions(streams: Sequence[Stream]) -> dg.Definitions:
    """Build the definitions that all streams of a code location share, except pipeline and Spark.

    Raises:
        InvalidValueError: two streams have the same name, or differ only in `-`, `.` and `_`.
    """
    by_identifier: dict[str, list[str]] = defaultdict(list)
    for stream in streams:
        by_identifier[stream.identifier].append(stream.name)
    for same in by_identifier.values():
        if len(same) > 1:
            shared = f"{len(same)} streams share it in Dagster: {', '.join(same)}"
            raise InvalidValueError("stream", same[0], f"a unique name per stream; {shared}")
    checks = [check_streams_job(streams)] if streams else []
    schedules = maintenance_schedules(streams) if streams else []
    return dg.Definitions(
        jobs=[*maintenance_jobs(streams), *checks],
        sensors=[run_ends_sensor(streams)],
        schedules=schedules,
        resources={names.CHECKS_RESOURCE: CheckScope(), **_s3_resource(streams)},
    )


def _s3_resource(streams: Sequence[Stream]) -> dict[str, Any]:
    if not any(map(lands_in_s3, streams)):
        return {}
    from batch_pipeline.defs.s3_resource import StoreResource  # imports dagster-aws: 0.5 s

    return {names.S3_RESOURCE: StoreResource.of_environment()}


@contextmanager
def quiet_dagster() -> Iterator[None]:
    """Suppress Dagster's warnings about beta parameters: a hundred lines for fifty streams."""
    with warnings.catch_warnings(action="ignore", category=dg.BetaWarning):
        yield


@quiet_dagster()
def stream_definitions(stream: Stream) -> dg.Definitions:
    """Build the assets, checks, Dagster jobs, sensors and schedules of one stream."""
    name, batches = stream.name, batches_of(stream)
    assets = [files_asset(stream), batches_asset(stream)]
    jobs: list[Any] = [
        _asset_job(
            stream,
            names.register_job(stream),
            names.files_key(stream),
            f"Registers new files of {name} and plans their batches.",
        ),
        _asset_job(
            stream, batches.job, batches.asset_key, f"Encodes and publishes batches of {name}."
        ),
    ]
    schedules = new_files_schedules(stream)
    sensors = [planned_sensor(stream) if schedules else new_files_sensor(stream)]
    if stream.dagster.backfills:
        backfills = backfills_of(stream)
        description = f"Encodes and publishes batches of backfills of {name}."
        assets.append(backfill_asset(stream))
        jobs.append(_asset_job(stream, backfills.job, backfills.asset_key, description))
        sensors.append(backfill_sensor(stream))
    if stream.targets:
        assets.append(loaded_asset(stream))
        jobs.append(load_due_job(stream))
        sensors.append(loads_sensor(stream))
    return dg.Definitions(
        assets=assets,
        asset_checks=check_definitions(stream),
        jobs=jobs,
        sensors=sensors,
        schedules=schedules,
    )


def _asset_job(stream: Stream, name: str, key: dg.AssetKey, description: str) -> Any:
    """Build a Dagster job that materializes an asset in the process of its run.

    The step evaluates checks itself, so that they need no steps of their own. Encoding starts no
    further process for its single step.
    """
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(key).without_checks(),
        tags={names.STREAM_TAG: stream.name},
        executor_def=dg.in_process_executor,
        description=description,
    )
