"""Late arrivals of a stream: batches that an audit planned, encoded outside the partitions.

A late batch is a list of ids, so no range of ids can name it as a partition: all that wait are
encoded by one run, each with its own attempt and materialization.
"""

from collections.abc import Iterator

import dagster as dg

from batch_pipeline.defs.assets.encoded import raise_failures
from batch_pipeline.defs.metadata import ENCODE_VERSION, batch_metadata
from batch_pipeline.defs.names import (
    DRAIN_TAG,
    LAUNCH_TAG,
    identifier,
    late_key,
    meta_table_key,
)
from batch_pipeline.defs.resources import PipelineResource, SparkResource
from batch_pipeline.domain.errors import ConfigurationError, PipelineError, RetryableError
from batch_pipeline.domain.stream import Stream
from batch_pipeline.inventory.database import Database
from batch_pipeline.steps.encode import Workshop, encode
from batch_pipeline.steps.plan import due

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
