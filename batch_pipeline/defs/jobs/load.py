"""The Dagster job that loads all that is due of a stream: its batches, late arrivals, backfills."""

import dagster as dg

from batch_pipeline.defs.assets.loaded import load_into_targets
from batch_pipeline.defs.names import STREAM_TAG, load_job, loaded_key
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.model.stream import Stream


def load_due_job(stream: Stream) -> dg.JobDefinition:
    """Build the job; partitions of the asset turn green as targets acknowledge their batches."""
    name = load_job(stream)

    @dg.op(name=f"{name}_due", out=dg.Out(dg.Nothing))
    def load_due(context: dg.OpExecutionContext, pipeline: PipelineResource) -> None:
        load_into_targets(context, pipeline.pipeline, stream)

    @dg.job(
        name=name,
        tags={STREAM_TAG: stream.name},
        executor_def=dg.in_process_executor,
        description=(
            f"Loads what is published of {stream.name} and not yet in its targets, in the order "
            f"of publishing; {loaded_key(stream).to_user_string()} shows what has arrived."
        ),
    )
    def job() -> None:
        load_due()

    return job
