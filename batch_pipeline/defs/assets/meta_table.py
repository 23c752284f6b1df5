"""The asset that stands for the meta table of a stream."""

import dagster as dg

from batch_pipeline.defs.discover import discover
from batch_pipeline.defs.metadata import META_TABLE_VERSION, discovery_metadata
from batch_pipeline.defs.names import identifier, meta_table_key
from batch_pipeline.defs.partitioned import batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.domain.errors import PipelineError
from batch_pipeline.domain.stream import Stream


def meta_table_asset(stream: Stream) -> dg.AssetsDefinition:
    """The items of a stream. Materializing it registers new files and plans them.

    A table of the user's own is only read: there is nothing to register.
    """
    is_own = stream.user_table is None
    files = f"Files that landed in {stream.source.place}, one row each, in order of arrival."
    rows = f"Rows of {stream.source.place}, one for each file; the table is the user's own."

    @dg.asset(
        key=meta_table_key(stream),
        group_name=identifier(stream),
        kinds={"postgres"} if is_own else {"table"},
        description=files if is_own else rows,
    )
    def meta_table(
        context: dg.AssetExecutionContext, pipeline: PipelineResource
    ) -> dg.MaterializeResult[None]:
        parts = pipeline.pipeline
        try:
            found = discover(parts, stream, context.instance, drain=True)
        except PipelineError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        name, known = batches_of(stream).set_name, found.known
        context.instance.add_dynamic_partitions(name, list(known.new_keys))
        for event in known.unseen:
            context.log_event(event)
        waiting = parts.database.batches.backlog(parts.meta_table(stream))
        return dg.MaterializeResult(
            metadata=discovery_metadata(found.registered, found.planned.batches, *waiting),
            data_version=dg.DataVersion(META_TABLE_VERSION),
        )

    return meta_table
