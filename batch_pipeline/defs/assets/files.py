"""The asset for the meta table of a stream: the files to process, one row each."""

from collections.abc import Iterator

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.metadata import FILES_VERSION, discovery_metadata, stream_observation
from batch_pipeline.defs.names import PIPELINE_RESOURCE, S3_RESOURCE, files_key, group
from batch_pipeline.defs.partition_sync import register_and_plan
from batch_pipeline.defs.partitions import batches_of
from batch_pipeline.defs.resources import lands_in_s3
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.stream import Stream
from batch_pipeline.storage.filesystem import FileSystem
from batch_pipeline.storage.s3 import S3FileSystem


def files_asset(stream: Stream) -> dg.AssetsDefinition:
    """Build the asset; materializing it registers new files and plans their batches.

    A meta table of the user's own is only read.
    """
    is_own, in_s3 = stream.user_table is None, lands_in_s3(stream)
    files = f"Files that landed in {stream.source.place}, one row each, in order of arrival."
    rows = f"Rows of {stream.source.place}, a table of yours with one row for each file."

    @dg.asset(
        key=files_key(stream),
        kinds={"postgres"} if is_own else {"table"},
        description=files if is_own else rows,
        group_name=group(stream),
        owners=[*stream.dagster.owners],
        tags=dict(stream.dagster.tags),
        required_resource_keys={PIPELINE_RESOURCE, *([S3_RESOURCE] if in_s3 else [])},
    )
    def files_of_stream(
        context: dg.AssetExecutionContext,
    ) -> Iterator[dg.MaterializeResult[None]]:
        filesystem = None
        if in_s3:
            client = context.resources.batch_pipeline_s3
            filesystem = S3FileSystem(lambda: client)
        pipeline: Pipeline = context.resources.batch_pipeline.pipeline
        yield from _register(context, pipeline, stream, filesystem)

    return files_of_stream


def _register(
    context: dg.AssetExecutionContext,
    pipeline: Pipeline,
    stream: Stream,
    filesystem: FileSystem | None,
) -> Iterator[dg.MaterializeResult[None]]:
    try:
        result = register_and_plan(
            pipeline, stream, context.instance, drain=True, filesystem=filesystem
        )
        status = stream_observation(pipeline, stream)
    except PipelineError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    for landing_error in result.errors:
        context.log.warning(str(landing_error))
    result.sync.apply(context.instance, batches_of(stream), context.log_event)
    yield dg.MaterializeResult(
        metadata=discovery_metadata(
            result.registered, result.planned.batches, status, result.errors
        ),
        data_version=dg.DataVersion(FILES_VERSION),
    )
    # Dagster shows the latest observation only if it is newer than the materialization.
    context.log_event(status)
