"""The Dagster job that plans a backfill from the Launchpad: first what it would be, then for good.

It adds the partitions and leaves their launch to the stream's sensor. A Dagster backfill of its own
would be a second launcher: one that pausing does not reach, and whose cancelled partitions the
sensor would take for work that waits.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from batch_pipeline.app import Pipeline
from batch_pipeline.config.backfill_form import Asked, backfill_request
from batch_pipeline.defs.discover import look_at_backfills
from batch_pipeline.defs.metadata import backfill_observation, estimate_metadata
from batch_pipeline.defs.names import PLAN_BACKFILL_JOB, backfill_asset_key
from batch_pipeline.defs.partitioned import backfills_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.model.backfill import Backfill, backfill_name
from batch_pipeline.model.errors import InvalidValueError, PipelineError, UnknownStreamError
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.restore_check import ensure_inventory_current


class PlanBackfill(dg.Config):
    """What to take once more. State ids, or times, or items; none of them takes everything."""

    stream: str = Field(description="Name of the stream.")
    name: str = Field(description="Name of the backfill; the same name again adds what has come.")
    first_id: int | None = Field(None, description="The lowest item id.")
    last_id: int | None = Field(None, description="The highest item id.")
    since: str | None = Field(None, description="Registered at this time or later (ISO 8601).")
    until: str | None = Field(None, description="Registered before this time (ISO 8601).")
    items: list[int] = Field([], description="Items one by one.")
    failed_only: bool = Field(False, description="Only items of failed and dead batches.")  # noqa: FBT003 - pydantic's way to write a default
    max_weight: str | None = Field(None, description="Another limit of a batch, such as 64MiB.")
    max_count: int | None = Field(None, description="Another limit of a batch, in items.")
    dry_run: bool = Field(True, description="Only tell what it would be; store nothing.")  # noqa: FBT003 - as above

    def asked(self) -> Asked:
        """Give the words of the request.

        Raises:
            InvalidValueError: it states more than one of ids, times and items.
        """
        has_ids = (self.first_id, self.last_id) != (None, None)
        has_times = (self.since, self.until) != (None, None)
        parts = {"ids": has_ids, "times": has_times, "items": bool(self.items)}
        stated = [name for name, is_stated in parts.items() if is_stated]
        if len(stated) > 1:
            expected = "one of them: first_id/last_id, since/until, or items"
            raise InvalidValueError("selection", " and ".join(stated), expected)
        words = self.model_dump(exclude={"stream", "name", "dry_run"})
        return Asked(**words)


def plan_backfill_job(streams: Sequence[Stream]) -> dg.JobDefinition:
    """Build the Dagster job for a set of streams."""
    by_name = {stream.name: stream for stream in streams}

    @dg.op(name="plan_or_tell", out=dg.Out(dg.Nothing))
    def plan_or_tell(
        context: dg.OpExecutionContext, config: PlanBackfill, pipeline: PipelineResource
    ) -> None:
        parts = pipeline.pipeline
        try:
            stream = _stream(parts, by_name, config.stream)
            request = backfill_request(stream, config.name, config.asked())
            told = _tell(context, parts, stream, request)
            if not config.dry_run:
                told |= _plan(context, parts, stream, request)
        except PipelineError as error:
            nothing = "" if isinstance(error, UnknownStreamError) else " Nothing was planned."
            raise dg.Failure(f"{error}{nothing}", allow_retries=False) from error
        context.add_output_metadata(told)

    @dg.job(
        name=PLAN_BACKFILL_JOB,
        description=(
            "Takes items of a stream's past once more, in batches of their own. Run it with "
            "dry_run first: the run shows batches, items, bytes and seconds. With dry_run false "
            "the batches are planned, and the stream's sensor launches them."
        ),
    )
    def plan_backfill() -> None:
        plan_or_tell()

    return plan_backfill


def _stream(pipeline: Pipeline, streams: Mapping[str, Stream], name: str) -> Stream:
    if name not in streams:
        raise UnknownStreamError(name, tuple(streams), str(pipeline.settings.streams))
    return streams[name]


def _tell(
    context: dg.OpExecutionContext, pipeline: Pipeline, stream: Stream, request: Backfill
) -> dict[str, Any]:
    """Estimate a backfill, and show it in the log and on the asset."""
    table = pipeline.meta_table(stream)
    found = pipeline.database.backfills.estimate(request, table)
    told = {
        "backfill": backfill_name(stream.name, request.name),
        "asset": dg.MetadataValue.asset(backfill_asset_key(stream)),
        **estimate_metadata(found),
    }
    seconds = "an unknown number of" if found.seconds is None else f"about {found.seconds:.1f}"
    summary = (
        f"{request.name}: batches: {found.batches}, items: {found.items}, "
        f"bytes: {found.weight}; {seconds} seconds for one worker"
    )
    context.log.info(summary)
    observation = dg.AssetObservation(asset_key=backfill_asset_key(stream), metadata=told)
    context.log_event(observation)
    return told


def _plan(
    context: dg.OpExecutionContext, pipeline: Pipeline, stream: Stream, request: Backfill
) -> dict[str, Any]:
    """Plan a backfill and add its partitions."""
    ensure_inventory_current(pipeline.database, stream)
    database, table = pipeline.database, pipeline.meta_table(stream)
    planned = database.backfills.plan(request, table)
    known = look_at_backfills(pipeline, stream, context.instance)
    new_keys = list(known.new_keys)
    context.instance.add_dynamic_partitions(backfills_of(stream).set_name, new_keys)
    if planned.batches:
        progress = database.backfills.progress(request.name, table.name)
        context.log_event(backfill_observation(stream, progress))
    summary = (
        f"{request.name}: batches planned: {planned.batches}, partitions added: {len(new_keys)}; "
        f"the stream's sensor launches them. `batch-pipeline jobs pause {request.name}` holds them "
        f"back."
    )
    context.log.info(summary)
    return {"batches_planned": planned.batches, "partitions_added": len(new_keys)}
