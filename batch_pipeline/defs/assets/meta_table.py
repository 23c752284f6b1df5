"""The asset that stands for the meta table of a stream."""

from collections.abc import Iterator

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.metadata import META_TABLE_VERSION, discovery_metadata, stream_observation
from batch_pipeline.defs.names import group, meta_table_key
from batch_pipeline.defs.partition_sync import lands_in_s3, register_and_plan
from batch_pipeline.defs.partitions import batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.stream import Stream
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.filesystem import FileSystem
from batch_pipeline.storage.s3 import S3FileSystem


def meta_table_asset(stream: Stream) -> dg.AssetsDefinition:
    """The items of a stream. Materializing it registers new files and plans them.

    Beside what the run did, an observation tells where the stream stands; so does the sensor. A
    table of the user's own is only read: there is nothing to register.
    """
    is_own = stream.user_table is None
    files = f"Files that landed in {stream.source.place}, one row each, in order of arrival."
    rows = f"Rows of {stream.source.place}, one for each file; the table is the user's own."

    asset = dg.asset(
        key=meta_table_key(stream),
        kinds={"postgres"} if is_own else {"table"},
        description=files if is_own else rows,
        group_name=group(stream),
        owners=[*stream.dagster.owners],
        tags=dict(stream.dagster.tags),
    )
    if not lands_in_s3(stream):

        @asset
        def meta_table(
            context: dg.AssetExecutionContext, pipeline: PipelineResource
        ) -> Iterator[dg.MaterializeResult[None]]:
            yield from _look(context, pipeline.pipeline, stream, None)

        return meta_table

    from dagster_aws.s3 import S3Resource  # half a second

    def in_bucket(
        context: dg.AssetExecutionContext, pipeline: PipelineResource, s3: S3Resource
    ) -> Iterator[dg.MaterializeResult[None]]:
        yield from _look(
            context, pipeline.pipeline, stream, S3FileSystem(s3_client.kept(s3.get_client))
        )

    return asset(in_bucket)


def _look(
    context: dg.AssetExecutionContext,
    parts: Pipeline,
    stream: Stream,
    filesystem: FileSystem | None,
) -> Iterator[dg.MaterializeResult[None]]:
    try:
        found = register_and_plan(
            parts, stream, context.instance, drain=True, filesystem=filesystem
        )
        told = stream_observation(parts, stream)
    except PipelineError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    for trouble in found.troubles:
        context.log.warning(str(trouble))
    found.known.apply(context.instance, batches_of(stream), context.log_event)
    yield dg.MaterializeResult(
        metadata=discovery_metadata(found.registered, found.planned.batches, told, found.troubles),
        data_version=dg.DataVersion(META_TABLE_VERSION),
    )
    # Dagster shows beside a materialization what was observed after it.
    context.log_event(told)
