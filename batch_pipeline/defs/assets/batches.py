"""The assets whose partitions are batches: a stream's own, and those of its backfills.

A run has several partitions, each with its own attempt, materialization and failure.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import dagster as dg

from batch_pipeline.defs.assets.partition_events import (
    NOTHING,
    Materializations,
    WaitsError,
    already_published_by_run,
    errors_by_batch,
    infrastructure_failure,
    summarize_errors,
)
from batch_pipeline.defs.checks import (
    AssetCheckSet,
    backfill_checks,
    batches_checks,
    evaluate_run_checks,
)
from batch_pipeline.defs.metadata import ENCODE_VERSION, batch_materialization
from batch_pipeline.defs.names import DRAIN_TAG, LAUNCH_TAG, group, meta_table_key, pool
from batch_pipeline.defs.partitions import PartitionedAsset, backfills_of, batches_of
from batch_pipeline.defs.resources import PipelineResource, SparkResource
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.encode import EncodeRequest, EncodeResult
from batch_pipeline.model.errors import (
    BatchSupersededError,
    ConfigurationError,
    PermissionDeniedError,
    PipelineError,
    RetryableError,
    SourceRefusedError,
    UnknownBatchError,
)
from batch_pipeline.model.manifest_file import InventoryOlderError
from batch_pipeline.model.progress import log as progress
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.attempt import EncodeContext, Encoder, encode
from batch_pipeline.pipeline.reconcile import pointer_of


def batches_asset(stream: Stream) -> dg.AssetsDefinition:
    """The batches of a stream. Materializing a partition makes a new attempt on its batch."""
    description = f"BATCH files of {stream.name} in {stream.storage.root}, one manifest a batch."
    return encoding_asset(stream, batches_of(stream), batches_checks(stream), description)


def backfill_asset(stream: Stream) -> dg.AssetsDefinition:
    """The backfills of a stream. Materializing a partition makes a new attempt on its batch."""
    description = (
        f"Items of {stream.name} once more, in batches of named backfills; the Dagster job "
        f"plan_backfill, or `batch-pipeline plan {stream.name} --backfill NAME`, plans them."
    )
    return encoding_asset(stream, backfills_of(stream), backfill_checks(stream), description)


def encoding_asset(
    stream: Stream, asset: PartitionedAsset, asked: AssetCheckSet, description: str
) -> dg.AssetsDefinition:
    """Define an asset of batches, several of which a run encodes on one Spark session."""

    @dg.asset(
        key=asset.asset_key,
        deps=[meta_table_key(stream)],
        partitions_def=asset.partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(stream.dagster.partitions_per_run),
        dagster_type=NOTHING,
        output_required=False,
        code_version=ENCODE_VERSION,
        kinds={"spark", stream.encoding.format.value},
        description=description,
        pool=pool(stream),
        group_name=group(stream),
        owners=[*stream.dagster.owners],
        tags=dict(stream.dagster.tags),
    )
    def encoded(
        context: dg.AssetExecutionContext, pipeline: PipelineResource, spark: SparkResource
    ) -> Iterator[dg.Output[None]]:
        settings = pipeline.pipeline.spark
        session = spark.session_of(stream, settings, is_retry=context.retry_number > 0)
        workshop = pipeline.pipeline.encode_context(stream, session)
        with Materializations(context) as published:
            failures = encode_partitions(published, workshop, pipeline.pipeline.database, asset)
            blocking = evaluate_run_checks(context, pipeline.pipeline, stream, asked)
            raise_failures(failures, len(context.partition_keys))
            published.check_downstream(blocking)
            output = published.output()
        if output is not None:
            yield output

    return encoded


def encode_partitions(
    published: Materializations,
    workshop: EncodeContext,
    database: Database,
    asset: PartitionedAsset,
) -> Mapping[str, PipelineError]:
    """Encode and publish the run's partitions of an asset one after the other; gives what failed.

    A bad batch, one whose files a store refuses, or a key that names none does not stop its
    neighbours; surroundings that fail (no disk space, no Spark, no database) do, since the rest
    would fail as well.

    Raises:
        Failure, RetryRequested: the surroundings failed.
    """
    context, failures = published.context, dict[str, PipelineError]()
    for key in context.partition_keys:
        try:
            _encode_partition(published, workshop, database, asset, key)
        except PipelineError as error:
            if isinstance(error, InventoryOlderError):
                with suppress(PermissionDeniedError):  # a login that only works
                    database.restore_check.pause_stream(workshop.stream.name, error.pause_reason)
            of_surroundings = isinstance(error, ConfigurationError | RetryableError)
            if of_surroundings and not isinstance(error, UnknownBatchError | SourceRefusedError):
                raise infrastructure_failure(context, error) from error
            context.log.warning(str(error))
            progress.warning("%s: failed", key, extra={"key": key})
            failures[key] = error
    return failures


def raise_failures(
    failures: Mapping[str, PipelineError], tried: int, *, done: str = "published"
) -> None:
    """Fail the run when some of its batches did; `done` is what the others are.

    Raises:
        Failure: with the first reasons by batch.
    """
    if failures:
        waiting = sum(isinstance(error, WaitsError) for error in failures.values())
        others = "those that do not wait are" if waiting else "others are"
        raise dg.Failure(
            f"Batches failed: {len(failures) - waiting} of {tried}, {others} {done}: "
            f"{summarize_errors(failures.values())}",
            metadata=errors_by_batch(failures),
            allow_retries=False,
        )


def _encode_partition(
    published: Materializations,
    workshop: EncodeContext,
    database: Database,
    asset: PartitionedAsset,
    key: str,
) -> None:
    context = published.context
    # Whoever picked the partition by hand means it; other runs were launched before.
    by_itself = not {DRAIN_TAG, LAUNCH_TAG}.isdisjoint(context.run.tags)
    try:
        batch = asset.find(database, key)
    except BatchSupersededError as error:
        if not by_itself:
            raise
        context.log.warning(str(error))
        return
    cancellation_reason = database.jobs.cancellation_reason(batch)
    if cancellation_reason is not None and by_itself:
        context.log.warning("%s is left alone: %s", key, cancellation_reason)
        return
    earlier = already_published_by_run(context, database, batch)
    if earlier is not None:
        context.log.info("%s is published already (generation %s)", key, earlier.generation)
        pointer_uri = pointer_of(earlier, database.manifests, workshop.storage)
        event = batch_materialization(workshop.stream, asset, earlier, pointer_uri)
        published.add(event, is_repeated=True)
        return
    told_of = replace(workshop, encoder=_Told(workshop.encoder, key, context.log))
    done = encode(told_of, batch, run_id=context.run.run_id)
    manifest, place, changes = done.manifest, done.pointer_uri, done.schema_changes
    published.add(
        batch_materialization(workshop.stream, asset, manifest, place, done.seconds, changes)
    )
    records, parts = manifest.records, len(manifest.part_files)
    progress.info("%s: records: %d, part files: %d", key, records, parts, extra={"key": key})


@dataclass(frozen=True, slots=True)
class _Told:
    """An encoder whose progress on one partition people can read in the log of the run."""

    encoder: Encoder
    key: str
    log: logging.Logger

    def prepare(self) -> None:
        """Make ready what it needs."""
        self.encoder.prepare()

    def encode(self, request: EncodeRequest) -> EncodeResult:
        """Encode the items."""
        watch = replace(request.watch, on_progress=self._tell)
        return self.encoder.encode(replace(request, watch=watch))

    def _tell(self, done: int, total: int) -> None:
        counts = (self.key, done, total)
        self.log.info("%s: tasks done: %d of %d", *counts)
        progress.info("%s: tasks done: %d of %d", *counts, extra={"tasks": total})
