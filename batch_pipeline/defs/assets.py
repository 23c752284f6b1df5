"""The assets of a stream: its meta table, its batches, and the batches of its backfills.

The partitions of the latter two are batches. A run encodes several partitions, each with its own
attempt, materialization and failure.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs import names
from batch_pipeline.defs.checks import AssetChecks, evaluate_file_checks, evaluate_run_checks
from batch_pipeline.defs.metadata import (
    ENCODE_VERSION,
    FILES_VERSION,
    batch_materialization,
    discovery_metadata,
    stream_observation,
)
from batch_pipeline.defs.partition_events import (
    NOTHING,
    Materializations,
    already_published_by_run,
    ensure_own_location,
    infrastructure_failure,
    raise_failures,
)
from batch_pipeline.defs.partition_sync import PartitionSync
from batch_pipeline.defs.partitions import PartitionedAsset, backfills_of, batches_of
from batch_pipeline.defs.resources import (
    engine_factory,
    landing_filesystem,
    landing_resources,
    stores_in_s3,
)
from batch_pipeline.defs.runs import is_launched
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import (
    BatchSupersededError,
    ConfigurationError,
    InventoryOlderError,
    PermissionDeniedError,
    PipelineError,
    RetryableError,
    SourceRefusedError,
    UnknownBatchError,
)
from batch_pipeline.model.progress import log as progress
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.attempt import EncodeContext, encode
from batch_pipeline.pipeline.reconcile import reconcile


def files_asset(stream: Stream) -> dg.AssetsDefinition:
    """Build the asset of the meta table: the files to process, one row each.

    Materializing it registers new files and plans their batches. A meta table of the user's own is
    only read.
    """
    is_own = stream.user_table is None
    files = f"Files that landed in {stream.source.place}, one row each, in order of arrival."
    rows = f"Rows of {stream.source.place}, your own table, one row per file."

    @dg.asset(
        key=names.files_key(stream),
        kinds={"postgres"} if is_own else {"table"},
        description=files if is_own else rows,
        group_name=names.group(stream),
        owners=[*stream.dagster.owners],
        tags=dict(stream.dagster.tags),
        required_resource_keys=landing_resources(stream),
    )
    def files_of_stream(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        yield from _register(context, context.resources.batch_pipeline.pipeline, stream)

    return files_of_stream


def _register(
    context: dg.AssetExecutionContext, pipeline: Pipeline, stream: Stream
) -> Iterator[dg.MaterializeResult[None]]:
    ensure_own_location(context, stream)
    asset, filesystem = batches_of(stream), landing_filesystem(stream, context.resources)
    try:
        result = PartitionSync(asset, in_ticks=False).register_and_plan(
            pipeline, context.instance, filesystem=filesystem
        )
        status = stream_observation(pipeline, stream)
        evaluations = evaluate_file_checks(pipeline, stream)
    except PipelineError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    for landing_error in result.errors:
        context.log.warning(str(landing_error))
    result.sync.apply(context.instance, asset, context.log_event)
    yield dg.MaterializeResult(
        metadata=discovery_metadata(result.registered, result.planned.batches, result.errors),
        data_version=dg.DataVersion(FILES_VERSION),
    )
    # Dagster shows the latest observation only if it is newer than the materialization.
    context.log_event(status)
    for evaluation in evaluations:
        context.log_event(evaluation)


def batches_asset(stream: Stream) -> dg.AssetsDefinition:
    """Build the asset of a stream's batches; a materialization is a new attempt on a batch."""
    description = (
        f"Batches of {stream.name}, converted to BATCH files in {stream.storage.root}, with one "
        f"manifest each. Partitions are ranges of ids, or `late-` and a number for files that were "
        f"registered late."
    )
    return _encoding_asset(batches_of(stream), description)


def backfill_asset(stream: Stream) -> dg.AssetsDefinition:
    """Build the asset of a stream's backfills; a materialization is a new attempt on a batch."""
    description = (
        f"Batches of backfills of {stream.name}. Plan a backfill with the Dagster job "
        f"`batch_pipeline_plan_backfill` or `batch-pipeline plan {stream.name} --backfill NAME`."
    )
    return _encoding_asset(backfills_of(stream), description)


def _encoding_asset(asset: PartitionedAsset, description: str) -> dg.AssetsDefinition:
    stream = asset.stream
    spark_key = stream.dagster.spark_resource or names.SPARK_RESOURCE

    @dg.asset(
        key=asset.asset_key,
        deps=[names.files_key(stream)],
        partitions_def=asset.partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(stream.dagster.partitions_per_run),
        dagster_type=NOTHING,
        output_required=False,
        code_version=ENCODE_VERSION,
        kinds={"spark", stream.encoding.format.value, *(["s3"] if stores_in_s3(stream) else [])},
        description=description,
        pool=names.pool(stream),
        group_name=names.group(stream),
        owners=[*stream.dagster.owners],
        tags=dict(stream.dagster.tags),
        required_resource_keys={names.PIPELINE_RESOURCE, spark_key},
    )
    def encoded(context: dg.AssetExecutionContext) -> Iterator[dg.Output[None]]:
        pipeline: Pipeline = context.resources.batch_pipeline.pipeline
        try:
            database = pipeline.database  # before a retry opens Spark
            engine = engine_factory(
                stream,
                getattr(context.resources, spark_key),
                pipeline.spark,
                is_retry=context.retry_number > 0,
            )
            encode_context = pipeline.encode_context(stream, engine)
        except PipelineError as error:
            raise infrastructure_failure(context, error) from error
        with Materializations(context) as published:
            failures = encode_partitions(published, encode_context, database, asset)
            blocking = evaluate_run_checks(context, pipeline, AssetChecks.of_batches(asset))
            raise_failures(failures, len(context.partition_keys))
            published.check_downstream(blocking)
            yield from published.output()

    return encoded


def encode_partitions(
    published: Materializations,
    encode_context: EncodeContext,
    database: Database,
    asset: PartitionedAsset,
) -> Mapping[str, PipelineError]:
    """Encode and publish the partitions of the run one by one; return the failures by key.

    A bad batch, refused source files or an unknown key do not stop the other partitions. If the
    infrastructure fails (disk space, Spark, database), the others would fail as well.

    Raises:
        Failure, RetryRequested: the infrastructure failed.
    """
    context, failures = published.context, dict[str, PipelineError]()
    ensure_own_location(context, encode_context.stream)
    for key in context.partition_keys:
        try:
            _encode_partition(published, encode_context, database, asset, key)
        except PipelineError as error:
            if isinstance(error, InventoryOlderError):
                with suppress(PermissionDeniedError):  # a worker role cannot pause
                    stream = encode_context.stream.name
                    database.restore_check.pause_stream(stream, error.pause_reason)
            is_infrastructure = isinstance(error, ConfigurationError | RetryableError)
            if is_infrastructure and not isinstance(error, UnknownBatchError | SourceRefusedError):
                raise infrastructure_failure(context, error) from error
            context.log.warning(str(error))
            progress.warning("%s: failed", key, extra={"key": key})
            failures[key] = error
    return failures


def _encode_partition(
    published: Materializations,
    encode_context: EncodeContext,
    database: Database,
    asset: PartitionedAsset,
    key: str,
) -> None:
    context = published.context
    # If a person selects a split batch, it fails; a cancelled batch gets an attempt. Other runs
    # were launched before the batch was split or cancelled, and skip it.
    is_automatic = names.DRAIN_TAG in context.run.tags or is_launched(context.run)
    try:
        batch = asset.find(database, key)
    except BatchSupersededError as error:
        if not is_automatic:
            raise
        context.log.warning(str(error))
        return
    cancellation_reason = database.jobs.cancellation_reason(batch)
    if cancellation_reason is not None and is_automatic:
        context.log.warning("%s is skipped: %s", key, cancellation_reason)
        return
    earlier = already_published_by_run(context, database, batch)
    if earlier is not None:
        context.log.info("%s is already published (generation %s)", key, earlier.generation)
        manifests, storage = database.manifests, encode_context.storage
        # The run may have ended before it wrote the manifest file.
        done = reconcile(asset.stream.name, encode_context.attempts, manifests, storage)
        for trouble in done.troubles:
            context.log.warning(str(trouble))
        pointer_uri = storage.pointer_uri(earlier)
        published.add(batch_materialization(asset, earlier, pointer_uri), is_repeated=True)
        return

    def report(done: int, total: int) -> None:
        context.log.info("%s: tasks done: %d of %d", key, done, total)
        progress.info("%s: tasks done: %d of %d", key, done, total, extra={"tasks": total})

    result = encode(encode_context, batch, run_id=context.run.run_id, on_progress=report)
    manifest = result.manifest
    published.add(
        batch_materialization(
            asset, manifest, result.pointer_uri, result.seconds, result.schema_changes
        )
    )
    records, parts = manifest.records, len(manifest.part_files)
    progress.info("%s: records: %d, part files: %d", key, records, parts, extra={"key": key})
