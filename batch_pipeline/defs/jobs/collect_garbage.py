"""The Dagster job `collect_garbage`: removes what nobody needs, or tells what it would.

Files of attempts that the inventory does not know are only counted: the command `gc --unknown`
deletes them.
"""

from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from batch_pipeline.defs.jobs.each_stream import Counts, chosen, do_for_each
from batch_pipeline.defs.names import COLLECT_GARBAGE_JOB
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.model.garbage import Reason
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.collect_garbage import Collected


class CollectGarbage(dg.Config):
    """Which streams, and whether anything is deleted."""

    streams: list[str] = Field([], description="Names of streams; none of them takes all.")
    dry_run: bool = Field(False, description="Only tell what would be deleted.")  # noqa: FBT003 - pydantic's way to write a default


def collect_garbage_job(streams: Sequence[Stream]) -> dg.JobDefinition:
    """Build the Dagster job for a set of streams."""

    @dg.op(name="collect_of_streams", out=dg.Out(dg.Nothing))
    def collect_of_streams(
        context: dg.OpExecutionContext, config: CollectGarbage, pipeline: PipelineResource
    ) -> None:
        parts, mine = pipeline.pipeline, chosen(streams, config.streams)

        def collect(stream: Stream) -> Counts:
            done = parts.collect_garbage(stream, streams, dry_run=config.dry_run)
            for one in done.garbage if config.dry_run else ():
                context.log.info("%s: %s (%s)", stream.name, one.file.path, one.reason)
            return _counts(done)

        do_for_each(context, mine, collect)

    @dg.job(
        name=COLLECT_GARBAGE_JOB,
        executor_def=dg.in_process_executor,
        description=(
            "Deletes files of attempts that ended a day ago or more without publishing, and of "
            "generations that were replaced longer ago than storage.keep_superseded, or loaded "
            "into all targets longer ago than storage.keep_loaded. Quarantine files go after "
            "storage.keep_quarantine. With dry_run the log lists files."
        ),
    )
    def job() -> None:
        collect_of_streams()

    return job


def _counts(done: Collected) -> dict[str, int]:
    kinds = [reason for reason in Reason if reason is not Reason.UNKNOWN]
    return {
        "garbage_files": len(done.garbage),
        "garbage_bytes": done.size_bytes,
        **{f"garbage_{reason}": done.files(reason) for reason in kinds},
        "removed_files": done.removed_files,
        "removed_bytes": done.removed_bytes,
        "unknown_files": len(done.unknown),
    }
