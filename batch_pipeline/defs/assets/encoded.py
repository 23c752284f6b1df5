"""The assets whose partitions are batches: a stream's own, and those of its backfills.

A run has several partitions, each with its own attempt, materialization and failure.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import dagster as dg

from batch_pipeline.defs.metadata import ENCODE_VERSION, batch_materialization
from batch_pipeline.defs.names import DRAIN_TAG, LAUNCH_TAG, identifier, meta_table_key
from batch_pipeline.defs.partitioned import Partitioned, backfills_of, batches_of
from batch_pipeline.defs.resources import PipelineResource, SparkResource
from batch_pipeline.domain.encode import EncodeRequest, EncodeResult
from batch_pipeline.domain.errors import (
    BatchSupersededError,
    ConfigurationError,
    PipelineError,
    RetryableError,
    UnknownBatchError,
)
from batch_pipeline.domain.stream import Stream
from batch_pipeline.inventory.database import Database
from batch_pipeline.ports import Encoder
from batch_pipeline.steps.encode import Workshop, encode

progress = logging.getLogger("batch_pipeline.progress")


def batches_asset(stream: Stream) -> dg.AssetsDefinition:
    """The batches of a stream. Materializing a partition makes a new attempt on its batch."""
    description = f"BATCH files of {stream.name} in {stream.storage.root}, one manifest a batch."
    return encoding_asset(stream, batches_of(stream), description)


def backfill_asset(stream: Stream) -> dg.AssetsDefinition:
    """The backfills of a stream. Materializing a partition makes a new attempt on its batch."""
    description = (
        f"Items of {stream.name} once more, in batches of named backfills; the Dagster job "
        f"plan_backfill, or `batch-pipeline plan {stream.name} --backfill NAME`, plans them."
    )
    return encoding_asset(stream, backfills_of(stream), description)


def encoding_asset(stream: Stream, asset: Partitioned, description: str) -> dg.AssetsDefinition:
    """Define an asset of batches, several of which a run encodes on one Spark session."""

    @dg.asset(
        key=asset.asset_key,
        deps=[meta_table_key(stream)],
        partitions_def=asset.partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(stream.dagster.partitions_per_run),
        output_required=False,
        code_version=ENCODE_VERSION,
        group_name=identifier(stream),
        kinds={"spark", stream.encoding.format.value},
        description=description,
    )
    def encoded(
        context: dg.AssetExecutionContext, pipeline: PipelineResource, spark: SparkResource
    ) -> Iterator[dg.Output[None]]:
        workshop = pipeline.pipeline.workshop(stream, lambda: spark.spark_session)
        encode_partitions(context, workshop, pipeline.pipeline.database, asset)
        yield from ()

    return encoded


def encode_partitions(
    context: dg.AssetExecutionContext, workshop: Workshop, database: Database, asset: Partitioned
) -> None:
    """Encode and publish the run's partitions of an asset one after the other.

    A bad batch, or a key that names none, does not stop its neighbours; surroundings that fail (no
    disk space, no Spark, no database) do, since the rest would fail as well.

    Raises:
        Failure: at the end when a batch failed, at once when the surroundings did.
    """
    failures: dict[str, PipelineError] = {}
    for key in context.partition_keys:
        try:
            _encode_partition(context, workshop, database, asset, key)
        except PipelineError as error:
            of_surroundings = isinstance(error, ConfigurationError | RetryableError)
            if of_surroundings and not isinstance(error, UnknownBatchError):
                raise dg.Failure(str(error), allow_retries=False) from error
            context.log.warning(str(error))
            progress.warning("%s: failed", key, extra={"key": key})
            failures[key] = error
    raise_failures(failures, len(context.partition_keys))


def raise_failures(failures: Mapping[str, PipelineError], tried: int) -> None:
    """Fail the run when some of its batches did.

    Raises:
        Failure: with the reasons by batch.
    """
    if failures:
        raise dg.Failure(
            f"{len(failures)} of {tried} batches failed, the others are published: "
            f"{'; '.join(str(error) for error in failures.values())}",
            metadata={key: str(error) for key, error in failures.items()},
            allow_retries=False,
        )


def _encode_partition(
    context: dg.AssetExecutionContext,
    workshop: Workshop,
    database: Database,
    asset: Partitioned,
    key: str,
) -> None:
    # Whoever picked the partition by hand means it; other runs were launched before.
    by_itself = not {DRAIN_TAG, LAUNCH_TAG}.isdisjoint(context.run.tags)
    try:
        batch = asset.find(database, key)
    except BatchSupersededError as error:
        if not by_itself:
            raise
        context.log.warning(str(error))
        return
    called_off = database.jobs.called_off(batch)
    if called_off is not None and by_itself:
        context.log.warning("%s is left alone: %s", key, called_off)
        return
    only_new = context.run.tags.get(LAUNCH_TAG) == "new"
    earlier = database.manifests.of_batch(batch) if only_new else None
    if earlier is not None:
        context.log.info("%s is published already (generation %s)", key, earlier.generation)
        pointer_uri = workshop.storage.point_to(earlier)
        context.log_event(batch_materialization(workshop.stream, asset, earlier, pointer_uri))
        return
    told_of = replace(workshop, encoder=_Told(workshop.encoder, key, context.log))
    published = encode(told_of, batch, run_id=context.run_id)
    manifest, seconds = published.manifest, published.seconds
    place = published.pointer_uri
    changes = published.schema_changes
    context.log_event(
        batch_materialization(workshop.stream, asset, manifest, place, seconds, changes)
    )
    told = (key, manifest.records, len(manifest.part_files))
    progress.info("%s: %d records in %d part files", *told, extra={"key": key})


@dataclass(frozen=True, slots=True)
class _Told:
    """An encoder whose progress on one partition people can read in the log of the run."""

    encoder: Encoder
    key: str
    log: logging.Logger

    def encode(self, request: EncodeRequest) -> EncodeResult:
        """Encode the items."""
        watch = replace(request.watch, tell=self._tell)
        return self.encoder.encode(replace(request, watch=watch))

    def _tell(self, done: int, total: int) -> None:
        told = (self.key, done, total)
        self.log.info("%s: %d of %d tasks done", *told)
        progress.info("%s: %d of %d tasks done", *told, extra={"tasks": total})
