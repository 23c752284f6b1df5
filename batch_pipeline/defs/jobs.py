"""Dagster jobs over the streams of a code location, and their schedules."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from batch_pipeline.app import Pipeline
from batch_pipeline.config.backfill_form import BackfillForm
from batch_pipeline.defs import names
from batch_pipeline.defs.metadata import backfill_observation, estimate_metadata
from batch_pipeline.defs.partition_sync import PartitionSync
from batch_pipeline.defs.partitions import backfills_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.runs import schedule_status, schedule_tags
from batch_pipeline.model.backfill import Backfill, backfill_name
from batch_pipeline.model.errors import (
    InvalidValueError,
    JobChangedError,
    PipelineError,
    UnknownStreamError,
)
from batch_pipeline.model.garbage import Reason
from batch_pipeline.model.planning import MAX_DURATION, Planned
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.collect_garbage import Collected
from batch_pipeline.pipeline.reconcile import ensure_inventory_current, reconcile

RECONCILE_AT = "41 * * * *"
COLLECT_GARBAGE_AT = "23 3 * * *"
CHECK_STREAMS_AT = "17 * * * *"
CHECKSUMS_AT = "37 3 * * 0"

Counts = Mapping[str, int]


def maintenance_jobs(streams: Sequence[Stream]) -> list[dg.JobDefinition]:
    """Build the Dagster jobs that maintain the streams of a code location."""
    jobs = [reconcile_job(streams), collect_garbage_job(streams)]
    with_backfills = [stream for stream in streams if stream.dagster.backfills]
    return [*jobs, plan_backfill_job(with_backfills)] if with_backfills else jobs


def maintenance_schedules(streams: Sequence[Stream]) -> list[dg.ScheduleDefinition]:
    """Build the schedules of maintenance, in UTC. The checksum schedule is stopped by default."""
    status = schedule_status(*streams)
    checksums = {"resources": {names.CHECKS_RESOURCE: {"config": {"checksums": True}}}}
    times = {
        f"{names.RECONCILE_JOB}_hourly": (names.RECONCILE_JOB, RECONCILE_AT),
        f"{names.COLLECT_GARBAGE_JOB}_daily": (names.COLLECT_GARBAGE_JOB, COLLECT_GARBAGE_AT),
        f"{names.CHECK_STREAMS_JOB}_hourly": (names.CHECK_STREAMS_JOB, CHECK_STREAMS_AT),
    }
    return [
        *(_schedule(name, *when, default_status=status) for name, when in times.items()),
        _schedule(
            f"{names.CHECK_STREAMS_JOB}_weekly",
            names.CHECK_STREAMS_JOB,
            CHECKSUMS_AT,
            run_config=checksums,
        ),
    ]


def new_files_schedules(stream: Stream) -> list[dg.ScheduleDefinition]:
    """Build the schedule that registers and plans new files; none if a sensor does.

    A run that starts while the previous one is still registering finds nothing new.
    """
    rules = stream.dagster
    if rules.schedule is None:
        return []
    return [
        _schedule(
            f"{stream.identifier}_new_files_at",
            names.register_job(stream),
            rules.schedule,
            execution_timezone=rules.timezone,
            default_status=schedule_status(stream),
            description=f"Registers new files of {stream.name}: {rules.schedule} {rules.timezone}.",
        )
    ]


def _schedule(name: str, job: str, cron: str, **options: Any) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=name,
        job_name=job,
        cron_schedule=cron,
        tags_fn=schedule_tags,
        **{"execution_timezone": "UTC", **options},
    )


def op_job(
    name: str, op: dg.OpDefinition, description: str, *, tags: Mapping[str, str] | None = None
) -> dg.JobDefinition:
    """Build a Dagster job that executes one op in the process of its run."""
    return dg.GraphDefinition(name=name, node_defs=[op]).to_job(
        executor_def=dg.in_process_executor, description=description, tags=tags
    )


def _for_each_stream(
    context: dg.OpExecutionContext,
    streams: Sequence[Stream],
    chosen: Sequence[str],
    do: Callable[[Stream], Counts],
) -> None:
    """Call a function for the chosen streams, or all if no name is given.

    Logs the counts of each stream, and attaches their sums as metadata.

    Raises:
        Failure: there is no such stream, or at the end, with the reasons by stream, if the function
            failed for some.
    """
    by_name = {stream.name: stream for stream in streams}
    for name in chosen:
        if name not in by_name:
            error = UnknownStreamError(name, tuple(by_name), "this code location")
            raise dg.Failure(str(error), allow_retries=False) from error
    streams = [by_name[name] for name in chosen] or streams
    sums: Counter[str] = Counter()
    failures: dict[str, str] = {}
    for stream in streams:
        try:
            counts = do(stream)
        except PipelineError as error:
            context.log.warning("%s: %s", stream.name, error)
            failures[stream.name] = str(error)
            continue
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        context.log.info("%s: %s", stream.name, listed)
        sums.update(counts)
    metadata = {"streams": len(streams) - len(failures), **sums}
    if failures:
        others = ", the others are done" if metadata["streams"] else ""
        raise dg.Failure(
            f"Streams failed: {len(failures)} of {len(streams)}{others}: "
            f"{'; '.join(f'{name}: {reason}' for name, reason in failures.items())}",
            metadata={**metadata, **{f"failed: {name}": why for name, why in failures.items()}},
            allow_retries=False,
        )
    context.add_output_metadata(metadata)


class CollectGarbage(dg.Config):
    """Configuration of `batch_pipeline_collect_garbage`."""

    streams: list[str] = Field([], description="Names of streams; all if empty.")
    dry_run: bool = Field(default=False, description="Only list what would be deleted.")


def collect_garbage_job(streams: Sequence[Stream]) -> dg.JobDefinition:
    """Build the Dagster job for a set of streams."""

    @dg.op(name="collect_of_streams", out=dg.Out(dg.Nothing))
    def collect_of_streams(
        context: dg.OpExecutionContext, config: CollectGarbage, batch_pipeline: PipelineResource
    ) -> None:
        def collect(stream: Stream) -> Counts:
            collected = batch_pipeline.pipeline.collect_garbage(
                stream, streams, dry_run=config.dry_run
            )
            for garbage in collected.garbage if config.dry_run else ():
                context.log.info("%s: %s (%s)", stream.name, garbage.file.path, garbage.reason)
            return _counts(collected)

        _for_each_stream(context, streams, config.streams, collect)

    return op_job(
        names.COLLECT_GARBAGE_JOB,
        collect_of_streams,
        "Deletes files of attempts that ended unpublished at least a day ago, of generations "
        "that were replaced longer ago than storage.keep_superseded or loaded into all targets "
        "longer ago than storage.keep_loaded, and quarantine files after "
        "storage.keep_quarantine. With dry_run the log lists the files.",
    )


def _counts(collected: Collected) -> dict[str, int]:
    kinds = [reason for reason in Reason if reason is not Reason.UNKNOWN]
    return {
        "garbage_files": len(collected.garbage),
        "garbage_bytes": collected.size_bytes,
        **{f"garbage_{reason}": collected.files(reason) for reason in kinds},
        "removed_files": collected.removed_files,
        "removed_bytes": collected.removed_bytes,
        "unknown_files": len(collected.unknown),
    }


class PlanBackfill(dg.Config):
    """Configuration of `batch_pipeline_plan_backfill`: ids, times or items; none for everything."""

    stream: str = Field(description="Name of the stream.")
    name: str = Field(description="Name of the backfill; a known name adds new items to it.")
    first_id: int | None = Field(None, description="The lowest item id.")
    last_id: int | None = Field(None, description="The highest item id.")
    since: str | None = Field(None, description="Registered at this time or later (ISO 8601).")
    until: str | None = Field(None, description="Registered before this time (ISO 8601).")
    items: list[int] = Field([], description="Ids of single items.")
    failed_only: bool = Field(default=False, description="Only items of failed and dead batches.")
    max_weight: str | None = Field(None, description="Limit of a batch in bytes, such as 64MiB.")
    max_count: int | None = Field(None, description="Limit of a batch in items.")
    dry_run: bool = Field(default=True, description="Only estimate; plan nothing.")

    def request(self, stream: Stream) -> Backfill:
        """Return the backfill.

        Raises:
            InvalidValueError: it has more than one of ids, times and items.
        """
        has_ids = (self.first_id, self.last_id) != (None, None)
        has_times = (self.since, self.until) != (None, None)
        parts = {"ids": has_ids, "times": has_times, "items": bool(self.items)}
        given = [name for name, is_given in parts.items() if is_given]
        if len(given) > 1:
            expected = "one of them: first_id/last_id, since/until, or items"
            raise InvalidValueError("selection", " and ".join(given), expected)
        selection = self.model_dump(exclude={"stream", "name", "dry_run"})
        return BackfillForm(**selection).request(stream, self.name)


def plan_backfill_job(streams: Sequence[Stream]) -> dg.JobDefinition:
    """Build the Dagster job for streams with backfills."""
    by_name = {stream.name: stream for stream in streams}

    @dg.op(name="plan_or_estimate", out=dg.Out(dg.Nothing))
    def plan_or_estimate(
        context: dg.OpExecutionContext, config: PlanBackfill, batch_pipeline: PipelineResource
    ) -> None:
        pipeline, planned = batch_pipeline.pipeline, None
        try:
            if config.stream not in by_name:
                place = "the streams with `dagster.backfills: true`"
                raise UnknownStreamError(config.stream, tuple(by_name), place)
            stream = by_name[config.stream]
            request = config.request(stream)
            metadata = _estimate(context, pipeline, stream, request)
            if not config.dry_run:
                ensure_inventory_current(pipeline.database, stream)
                planned = pipeline.database.backfills.plan(request, pipeline.meta_table(stream))
                metadata |= _add_partitions(context, pipeline, stream, request, planned)
        except PipelineError as error:
            text = str(error)
            if planned is not None:
                sensor = "the stream's sensor adds their partitions and launches them"
                text = f"Batches planned: {planned.batches}; {sensor}. {error}"
            elif not isinstance(error, UnknownStreamError):
                text = f"{error} Nothing was planned."
            raise dg.Failure(text, allow_retries=False) from error
        context.add_output_metadata(metadata)

    return op_job(
        names.PLAN_BACKFILL_JOB,
        plan_or_estimate,
        "Plans batches that process items of a stream again. Run it with dry_run first: the "
        "run shows batches, items, bytes and seconds. With dry_run false the batches are "
        "planned, and the stream's sensor launches them.",
    )


def _estimate(
    context: dg.OpExecutionContext, pipeline: Pipeline, stream: Stream, request: Backfill
) -> dict[str, Any]:
    """Estimate a backfill; show the estimate in the log and as an observation of the asset."""
    estimate = pipeline.database.backfills.estimate(request, pipeline.meta_table(stream))
    metadata = {
        "backfill": backfill_name(stream.name, request.name),
        "asset": dg.MetadataValue.asset(names.backfill_asset_key(stream)),
        **estimate_metadata(estimate),
    }
    seconds = estimate.seconds
    duration = "an unknown number of" if seconds is None else f"about {seconds:.1f}"
    summary = (
        f"{request.name}: batches: {estimate.batches}, items: {estimate.items}, "
        f"bytes: {estimate.weight}; {duration} seconds for one worker"
    )
    context.log.info(summary)
    key = names.backfill_asset_key(stream)
    context.log_event(dg.AssetObservation(asset_key=key, metadata=metadata))
    return metadata


def _add_partitions(
    context: dg.OpExecutionContext,
    pipeline: Pipeline,
    stream: Stream,
    request: Backfill,
    planned: Planned,
) -> dict[str, Any]:
    """Add the partitions of a stream's backfills, including the one just planned."""
    asset = backfills_of(stream)
    sync = PartitionSync(asset, in_ticks=False).reconcile_and_diff(pipeline, context.instance)
    new_keys = list(sync.new_keys)
    context.instance.add_dynamic_partitions(asset.set_name, new_keys)
    if planned.batches:
        table = pipeline.meta_table(stream)
        progress = pipeline.database.backfills.progress(request.name, table.name)
        context.log_event(backfill_observation(stream, progress))
    summary = (
        f"{request.name}: batches planned: {planned.batches}, partitions added: {len(new_keys)}; "
        f"the stream's sensor launches them. `batch-pipeline jobs pause {request.name}` holds them "
        f"back."
    )
    context.log.info(summary)
    return {"batches_planned": planned.batches, "partitions_added": len(new_keys)}


class Reconcile(dg.Config):
    """Configuration of `batch_pipeline_reconcile`."""

    streams: list[str] = Field([], description="Names of streams; all if empty.")
    days: int = Field(
        7,
        ge=0,
        le=MAX_DURATION.days,
        description="Audit batches published in the last N days; 0: no audit.",
    )


def reconcile_job(streams: Sequence[Stream]) -> dg.JobDefinition:
    """Build the Dagster job for a set of streams."""

    @dg.op(name="reconcile_streams", out=dg.Out(dg.Nothing))
    def reconcile_streams(
        context: dg.OpExecutionContext, config: Reconcile, batch_pipeline: PipelineResource
    ) -> None:
        pipeline, since = batch_pipeline.pipeline, timedelta(days=config.days)
        _for_each_stream(
            context, streams, config.streams, lambda stream: _reconcile(pipeline, stream, since)
        )

    return op_job(
        names.RECONCILE_JOB,
        reconcile_streams,
        "Closes attempts without a process, writes missing manifest files, and plans files "
        "that were registered late; the stream's sensor launches those. A stream whose storage "
        "has manifests that the inventory does not know fails, and is paused.",
    )


def _reconcile(pipeline: Pipeline, stream: Stream, since: timedelta) -> Counts:
    ensure_inventory_current(pipeline.database, stream)
    database, storage = pipeline.database, pipeline.storage(stream)
    result = reconcile(stream.name, database.attempts, database.manifests, storage)
    counts = {"attempts_closed": result.attempts, "pointers_written": result.pointers}
    audited = _audit(pipeline, stream, since) if since else {}
    if result.troubles:
        raise result.troubles[0]
    return {**counts, **audited}


def _audit(pipeline: Pipeline, stream: Stream, since: timedelta) -> Counts:
    """Audit a stream; all counts are 0 if nothing was planned yet."""
    counted = ("batches_audited", "late", "missing", "changed", "refused")
    audit = pipeline.audit(stream, since)
    if audit is None:
        return dict.fromkeys(counted, 0)
    if audit.other_table:
        raise JobChangedError(stream.name, pipeline.meta_table(stream).name, audit.other_table[0])
    items = (audit.late, audit.missing, audit.changed, audit.refused)
    return dict(zip(counted, (audit.batches, *(one.count for one in items)), strict=True))
