"""Doing something for each stream of a run's choice: one that fails does not stop the others."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from batch_pipeline.app import Pipeline
from batch_pipeline.config.backfill_form import BackfillForm, backfill_request
from batch_pipeline.defs.assets.loaded import load_into_targets
from batch_pipeline.defs.metadata import backfill_observation, estimate_metadata
from batch_pipeline.defs.names import (
    COLLECT_GARBAGE_JOB,
    PLAN_BACKFILL_JOB,
    RECONCILE_JOB,
    STREAM_TAG,
    backfill_asset_key,
    load_job,
    loaded_key,
)
from batch_pipeline.defs.partition_sync import sync_backfills
from batch_pipeline.defs.partitions import backfills_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.model.backfill import Backfill, backfill_name
from batch_pipeline.model.errors import (
    InvalidValueError,
    JobChangedError,
    PipelineError,
    UnknownStreamError,
)
from batch_pipeline.model.garbage import Reason
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.collect_garbage import Collected
from batch_pipeline.pipeline.reconcile import reconcile
from batch_pipeline.pipeline.restore_check import ensure_inventory_current

Counts = Mapping[str, int]


def chosen(streams: Sequence[Stream], names: Sequence[str]) -> list[Stream]:
    """Pick streams by name; all where no name is given.

    Raises:
        Failure: there is no such stream.
    """
    by_name = {stream.name: stream for stream in streams}
    for name in names:
        if name not in by_name:
            error = UnknownStreamError(name, tuple(by_name), "this code location")
            raise dg.Failure(str(error), allow_retries=False) from error
    return [by_name[name] for name in names] if names else list(streams)


def for_each_stream(
    context: dg.OpExecutionContext, streams: Sequence[Stream], do: Callable[[Stream], Counts]
) -> None:
    """Call for each stream; show a line of its counts in the log and their sums on the run.

    Raises:
        Failure: at the end, with the reasons by stream, when it failed for some.
    """
    sums: dict[str, int] = {}
    failures: dict[str, str] = {}
    for stream in streams:
        try:
            counts = do(stream)
        except PipelineError as error:
            context.log.warning("%s: %s", stream.name, error)
            failures[stream.name] = str(error)
            continue
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        context.log.info("%s: %s", stream.name, said)
        for name, count in counts.items():
            sums[name] = sums.get(name, 0) + count
    told = {"streams": len(streams) - len(failures), **sums}
    if failures:
        others = "the others are done" if told["streams"] else "nothing was done"
        raise dg.Failure(
            f"Streams failed: {len(failures)} of {len(streams)}, {others}: "
            f"{'; '.join(f'{name}: {reason}' for name, reason in failures.items())}",
            metadata={**told, **{f"failed: {name}": why for name, why in failures.items()}},
            allow_retries=False,
        )
    context.add_output_metadata(told)


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

        for_each_stream(context, mine, collect)

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

    def asked(self) -> BackfillForm:
        """Return the request in words.

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
        return BackfillForm(**words)


def plan_backfill_job(streams: Sequence[Stream]) -> dg.JobDefinition:
    """Build the Dagster job for a set of streams."""
    by_name = {stream.name: stream for stream in streams}

    @dg.op(name="plan_or_estimate", out=dg.Out(dg.Nothing))
    def plan_or_estimate(
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
        plan_or_estimate()

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
    known = sync_backfills(pipeline, stream, context.instance)
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
        for_each_stream(context, mine, lambda stream: _reconcile(parts, stream, since))

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
