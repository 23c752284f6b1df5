"""Late arrivals of a stream: batches that an audit planned, encoded outside the partitions.

A late batch is a list of ids, so no range of ids can name it as a partition: all that wait are
encoded by one run, each with its own attempt and materialization.
"""

from collections.abc import Iterator, Mapping

import dagster as dg

from batch_pipeline.defs.assets.batches import raise_failures
from batch_pipeline.defs.assets.partition_events import (
    NOTHING,
    Materializations,
    infrastructure_failure,
)
from batch_pipeline.defs.checks import evaluate_run_checks, late_checks
from batch_pipeline.defs.metadata import ENCODE_VERSION, batch_metadata, encoded_tags
from batch_pipeline.defs.names import DRAIN_TAG, LAUNCH_TAG, group, late_key, meta_table_key, pool
from batch_pipeline.defs.resources import PipelineResource, SparkResource
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import due_batches
from batch_pipeline.model.errors import (
    ConfigurationError,
    PipelineError,
    RetryableError,
    SourceRefusedError,
)
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.attempt import EncodeContext, encode


def late_asset(stream: Stream) -> dg.AssetsDefinition:
    """The late arrivals of a stream. Materializing it encodes the batches of them that wait."""

    @dg.asset(
        key=late_key(stream),
        deps=[meta_table_key(stream)],
        dagster_type=NOTHING,
        output_required=False,
        code_version=ENCODE_VERSION,
        kinds={"spark", stream.encoding.format.value},
        description=f"Items of {stream.name} that appeared below its bookmark; audits plan them.",
        pool=pool(stream),
        group_name=group(stream),
        owners=[*stream.dagster.owners],
        tags=dict(stream.dagster.tags),
    )
    def late(
        context: dg.AssetExecutionContext, pipeline: PipelineResource, spark: SparkResource
    ) -> Iterator[dg.Output[None]]:
        settings = pipeline.pipeline.spark
        session = spark.session_of(stream, settings, is_retry=context.retry_number > 0)
        workshop = pipeline.pipeline.encode_context(stream, session)
        with Materializations(context) as published:
            failures, tried = encode_late(published, workshop, pipeline.pipeline.database)
            blocking = evaluate_run_checks(context, pipeline.pipeline, stream, late_checks(stream))
            raise_failures(failures, tried)
            published.check_downstream(blocking)
            output = published.output()
        if output is not None:
            yield output

    return late


def encode_late(
    published: Materializations, workshop: EncodeContext, database: Database
) -> tuple[Mapping[str, PipelineError], int]:
    """Encode and publish a stream's late batches that wait; failed ones too when a person asks.

    Gives what failed, and how many batches were tried.

    Raises:
        Failure, RetryRequested: the surroundings failed.
    """
    context, stream = published.context, workshop.stream
    launched = LAUNCH_TAG in context.run.tags
    by_itself = not {DRAIN_TAG, LAUNCH_TAG}.isdisjoint(context.run.tags)
    waiting = due_batches(database.batches.late_statuses(stream.name), retry_failed=not launched)
    waiting.sort(key=lambda status: status.attempts)  # what fails again and again is in no way
    failures: dict[str, PipelineError] = {}
    for status in waiting:
        cancellation_reason = database.jobs.cancellation_reason(status.batch)
        if cancellation_reason is not None and by_itself:
            context.log.warning("%s is left alone: %s", status.batch.label, cancellation_reason)
            continue
        try:
            done = encode(workshop, status.batch, run_id=context.run.run_id)
        except PipelineError as error:
            of_surroundings = isinstance(error, ConfigurationError | RetryableError)
            if of_surroundings and not isinstance(error, SourceRefusedError):
                raise infrastructure_failure(context, error) from error
            context.log.warning(str(error))
            failures[status.batch.label] = error
            continue
        metadata = batch_metadata(done.manifest, done.pointer_uri, done.seconds)
        tags = encoded_tags(stream, f"{status.batch.label}.{done.manifest.generation}")
        key = late_key(stream)
        published.add(dg.AssetMaterialization(asset_key=key, metadata=metadata, tags=tags))
    return failures, len(waiting)
