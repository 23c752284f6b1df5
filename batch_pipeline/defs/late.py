"""Late arrivals of a stream: batches that an audit planned, encoded outside the partitions.

A late batch is a list of ids, so no range of ids can name it as a partition: all that wait are
encoded by one run, each with its own attempt and materialization.
"""

import time
from collections.abc import Iterator

import dagster as dg

from batch_pipeline.defs.encode_partitions import raise_failures
from batch_pipeline.defs.launch import Memory
from batch_pipeline.defs.metadata import ENCODE_VERSION, batch_metadata
from batch_pipeline.defs.names import (
    DRAIN_TAG,
    LAUNCH_TAG,
    STREAM_TAG,
    identifier,
    late_job,
    late_key,
    meta_table_key,
)
from batch_pipeline.defs.resources import PipelineResource, SparkResource
from batch_pipeline.defs.run_ends import end_cancelled_since
from batch_pipeline.defs.run_keys import UNFINISHED
from batch_pipeline.domain.batch import BatchStatus
from batch_pipeline.domain.errors import ConfigurationError, PipelineError, RetryableError
from batch_pipeline.domain.stream import Stream
from batch_pipeline.inventory.database import Database
from batch_pipeline.steps.encode import Workshop, encode
from batch_pipeline.steps.plan import MAX_ATTEMPTS, due

_INTERVAL_SECONDS = 30


def late_asset(stream: Stream) -> dg.AssetsDefinition:
    """The late arrivals of a stream. Materializing it encodes the batches of them that wait."""

    @dg.asset(
        key=late_key(stream),
        deps=[meta_table_key(stream)],
        output_required=False,
        code_version=ENCODE_VERSION,
        group_name=identifier(stream),
        kinds={"spark", stream.encoding.format.value},
        description=f"Items of {stream.name} that appeared below its bookmark; audits plan them.",
    )
    def late(
        context: dg.AssetExecutionContext, pipeline: PipelineResource, spark: SparkResource
    ) -> Iterator[dg.Output[None]]:
        workshop = pipeline.pipeline.workshop(stream, lambda: spark.spark_session)
        encode_late(context, workshop, pipeline.pipeline.database)
        yield from ()

    return late


def encode_late(context: dg.AssetExecutionContext, workshop: Workshop, database: Database) -> None:
    """Encode and publish a stream's late batches that wait; failed ones too when a person asks.

    Raises:
        Failure: at the end when a batch failed, at once when the surroundings did.
    """
    stream, launched = workshop.stream, LAUNCH_TAG in context.run.tags
    by_itself = not {DRAIN_TAG, LAUNCH_TAG}.isdisjoint(context.run.tags)
    waiting = due(database.batches.late_statuses(stream.name), retry_failed=not launched)
    failures: dict[str, PipelineError] = {}
    for status in waiting:
        called_off = database.jobs.called_off(status.batch)
        if called_off is not None and by_itself:
            context.log.warning("%s is left alone: %s", status.batch.label, called_off)
            continue
        try:
            published = encode(workshop, status.batch, run_id=context.run_id)
        except (ConfigurationError, RetryableError) as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        except PipelineError as error:
            context.log.warning(str(error))
            failures[status.batch.label] = error
            continue
        metadata = batch_metadata(published.manifest, published.pointer_uri, published.seconds)
        event = dg.AssetMaterialization(asset_key=late_key(stream), metadata=metadata)
        context.log_event(event)
    raise_failures(failures, len(waiting))


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
            waiting = due(database.batches.late_statuses(stream.name), retry_failed=False)
        except PipelineError as error:
            return dg.SkipReason(str(error))
        tried_less = [status for status in waiting if status.attempts < MAX_ATTEMPTS]
        runs = dg.RunsFilter(job_name=late_job(stream), statuses=UNFINISHED)
        if not tried_less or context.instance.get_runs(runs, limit=1):
            quiet = Memory(runs=memory.runs, looked_at=now)
            reason = "nothing that came late waits to be launched."
            return dg.SensorResult(skip_reason=reason, cursor=quiet.cursor())
        number = memory.runs + 1
        request = dg.RunRequest(
            run_key=_run_key(stream, tried_less, number),
            tags={STREAM_TAG: stream.name, LAUNCH_TAG: "new"},
        )
        after = Memory(runs=number, looked_at=now)
        return dg.SensorResult(run_requests=[request], cursor=after.cursor())

    return late_arrivals


def _run_key(stream: Stream, waiting: list[BatchStatus], number: int) -> str:
    tries = ",".join(f"{status.batch.id}.{status.attempts}" for status in waiting[:20])
    return f"{stream.name}:late:{number}:{tries}"
