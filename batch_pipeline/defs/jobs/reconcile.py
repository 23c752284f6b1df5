"""The Dagster job `reconcile`: closes what crashes left open, and audits for items that came late.

Sensors do the first part as they look; this does it for streams whose sensors are off, or too.
"""

from collections.abc import Sequence
from datetime import timedelta

import dagster as dg
from pydantic import Field

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.jobs.each_stream import Counts, chosen, do_for_each
from batch_pipeline.defs.names import RECONCILE_JOB
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.model.errors import JobChangedError
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.reconcile import reconcile
from batch_pipeline.pipeline.restore_check import ensure_inventory_current


class Reconcile(dg.Config):
    """Which streams, and how far back audits look."""

    streams: list[str] = Field([], description="Names of streams; none of them takes all.")
    days: int = Field(
        7, ge=0, le=36_500, description="Audit batches published within so many days; 0: no audit."
    )


def reconcile_job(streams: Sequence[Stream]) -> dg.JobDefinition:
    """Build the Dagster job for a set of streams."""

    @dg.op(name="reconcile_streams", out=dg.Out(dg.Nothing))
    def reconcile_streams(
        context: dg.OpExecutionContext, config: Reconcile, pipeline: PipelineResource
    ) -> None:
        parts, since = pipeline.pipeline, timedelta(days=config.days)
        mine = chosen(streams, config.streams)
        do_for_each(context, mine, lambda stream: _reconcile(parts, stream, since))

    @dg.job(
        name=RECONCILE_JOB,
        executor_def=dg.in_process_executor,
        description=(
            "Closes attempts without a process, writes missing manifest files, and plans items "
            "that appeared below the bookmarks; the stream's sensor launches those. A stream whose "
            "storage has manifests that the inventory does not know fails, and is paused."
        ),
    )
    def job() -> None:
        reconcile_streams()

    return job


def _reconcile(pipeline: Pipeline, stream: Stream, since: timedelta) -> Counts:
    ensure_inventory_current(pipeline.database, stream)
    database, storage = pipeline.database, pipeline.storage(stream)
    done = reconcile(stream.name, database.attempts, database.manifests, storage)
    counts = {"attempts_closed": done.attempts, "pointers_written": done.pointers}
    audited = _audit(pipeline, stream, since) if since else {}
    if done.troubles:
        raise done.troubles[0]
    return {**counts, **audited}


def _audit(pipeline: Pipeline, stream: Stream, since: timedelta) -> Counts:
    """Audit a stream; nothing is found while nothing of it was ever planned."""
    names = ("batches_audited", "late", "missing", "changed", "refused")
    found = pipeline.audit(stream, since)
    if found is None:
        return dict.fromkeys(names, 0)
    if found.other_table:
        raise JobChangedError(stream.name, pipeline.meta_table(stream).name, found.other_table[0])
    noted = (found.late, found.missing, found.changed, found.refused)
    numbers = (found.batches, *(one.count for one in noted))
    return dict(zip(names, numbers, strict=True))
