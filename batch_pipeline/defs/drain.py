"""Everything that has landed, through Dagster runs in this process, until nothing is left."""

import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.discover import look_at_backfills
from batch_pipeline.defs.in_process import quiet_dagster, run_in_process
from batch_pipeline.defs.instance.left_runs import close_left_runs, drain_tags
from batch_pipeline.defs.metadata import LANDING_TROUBLE
from batch_pipeline.defs.names import batches_job, late_job, meta_table_job, run_tags
from batch_pipeline.defs.partitioned import backfills_of, batches_of, group_neighbours
from batch_pipeline.defs.sensors.run_ends import end_cancelled_since
from batch_pipeline.model.batch import BatchState, BatchStatus, due_batches
from batch_pipeline.model.errors import (
    DatabaseUnreachableError,
    JobPausedError,
    LandingTroubleError,
    PipelineError,
    StreamStoppedError,
)
from batch_pipeline.model.progress import start_step
from batch_pipeline.model.stream import Stream

_SHOWN = 300  # characters of an exception that is not ours


@dataclass(slots=True, kw_only=True)
class Drained:
    """What draining one stream did; `tried` are the partition keys of this call in order.

    `tried_late` and `tried_backfill` are numbers of batches: of the late arrivals and of the
    backfills that it tried. `error` is what ended the drain before its time, or kept it from some
    files.
    """

    stream: str
    files_found: int = 0
    items_registered: int = 0
    files_changed: int = 0
    batches_planned: int = 0
    tried: list[str] = field(default_factory=list)
    tried_late: list[int] = field(default_factory=list)
    tried_backfill: list[int] = field(default_factory=list)
    statuses: list[BatchStatus] = field(default_factory=list)
    error: PipelineError | None = None

    @property
    def published(self) -> list[BatchStatus]:
        """Batches of this call that are published now."""
        return [s for s in self.statuses if s.state is BatchState.PUBLISHED]

    @property
    def failed(self) -> list[BatchStatus]:
        """Batches of this call that were tried and are not."""
        fine = {BatchState.PUBLISHED, BatchState.PLANNED}
        return [s for s in self.statuses if s.state not in fine]


def drain(
    pipeline: Pipeline, streams: Sequence[Stream], instance: dg.DagsterInstance
) -> Iterator[Drained]:
    """Register, plan, encode and publish stream by stream until nothing is left.

    Failed and interrupted batches of earlier calls are tried again. An exception in one stream,
    whatever it is, does not keep the others from being processed; only when the inventory cannot
    be reached is nothing more tried. Backfills come after new files. Errors are returned in the
    results, not raised.
    """
    with quiet_dagster():
        close_left_runs(pipeline, instance)
        for stream in streams:
            drained = Drained(stream=stream.name)
            try:
                _drain_all_jobs(pipeline, stream, instance, drained)
                _note_statuses(drained, pipeline)
            except Exception as error:  # noqa: BLE001 - the other streams go on
                drained.error = _reported(pipeline, stream, error)
                with suppress(Exception):  # the error above is what is reported
                    _note_statuses(drained, pipeline)
            yield drained
            if isinstance(drained.error, DatabaseUnreachableError):
                return


def _reported(pipeline: Pipeline, stream: Stream, error: Exception) -> PipelineError:
    """Return the error to report for a stream; the traceback of an unexpected one is logged."""
    if isinstance(error, PipelineError):
        return error
    lines = str(error).splitlines() or [""]
    problem = f"{type(error).__name__}: {lines[0][:_SHOWN]}".removesuffix(": ")
    log = pipeline.home.logs / "errors.log"
    try:
        _append_traceback(log, stream, error)
    except OSError:
        return StreamStoppedError(stream.name, problem, None)
    return StreamStoppedError(stream.name, problem, str(log))


def _append_traceback(log: Path, stream: Stream, error: Exception) -> None:
    log.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, stream {stream.name}\n")
        file.writelines(traceback.format_exception(error))


def _drain_all_jobs(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance, drained: Drained
) -> None:
    definitions = build_definitions([stream])
    end_cancelled_since(pipeline, instance, stream, 0)
    try:
        _drain_stream(pipeline, stream, definitions, instance, drained)
    except JobPausedError as paused:
        drained.error = paused
    _drain_backfills(pipeline, stream, definitions, instance, drained)


def _drain_stream(
    pipeline: Pipeline,
    stream: Stream,
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    drained: Drained,
) -> None:
    register_job = definitions.resolve_job_def(meta_table_job(stream))
    encode_job = definitions.resolve_job_def(batches_job(stream))
    encode_late_job = definitions.resolve_job_def(late_job(stream))
    home = drain_tags(pipeline)
    jobs = pipeline.database.jobs
    while True:
        jobs.check_not_paused(stream.name)
        start_step(stream.name, "looking for files")
        _note_arrivals(drained, run_in_process(register_job, instance, tags=home))
        statuses = pipeline.database.batches.statuses(stream.name)
        left = [
            s for s in due_batches(statuses, retry_failed=True) if s.batch.key not in drained.tried
        ]
        late = due_batches(pipeline.database.batches.late_statuses(stream.name), retry_failed=True)
        if late and not drained.tried_late:
            drained.tried_late += [status.batch.id for status in late]
            run_in_process(encode_late_job, instance, tags=home)
        if not left:
            break
        start_step(stream.name, "encoding", total=len(left))
        order = instance.get_dynamic_partitions(batches_of(stream).set_name)
        keys = [status.batch.key for status in left]
        for group in group_neighbours(keys, order, most=stream.dagster.partitions_per_run):
            jobs.check_not_paused(stream.name)
            drained.tried += group
            tags = home | run_tags(stream, group[0], group[-1])
            run_in_process(encode_job, instance, tags=tags)


def _drain_backfills(
    pipeline: Pipeline,
    stream: Stream,
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    drained: Drained,
) -> None:
    """Encode what the stream's backfills have planned, one backfill after the other."""
    asset, backfills = backfills_of(stream), pipeline.database.backfills
    job = definitions.resolve_job_def(asset.job)
    known = look_at_backfills(pipeline, stream, instance)
    instance.add_dynamic_partitions(asset.set_name, list(known.new_keys))
    for event in known.unseen:
        instance.report_runless_asset_event(event)
    waiting = sorted(due_batches(known.statuses, retry_failed=True), key=lambda one: one.batch.job)
    for name, statuses in groupby(waiting, key=lambda one: one.batch.job):
        by_key = {asset.key_of(status.batch): status.batch.id for status in statuses}
        start_step(name, "encoding", total=len(by_key))
        for group in group_neighbours(by_key, known.order, most=stream.dagster.partitions_per_run):
            reason = backfills.paused(stream.name).get(name)
            if reason is not None:
                drained.error = drained.error or JobPausedError(name, reason)
                break
            drained.tried_backfill += [by_key[key] for key in group]
            tags = drain_tags(pipeline) | asset.tags_of(group[0])
            run_in_process(job, instance, tags=tags | run_tags(stream, group[0], group[-1]))


def _note_statuses(drained: Drained, pipeline: Pipeline) -> None:
    tried = set(drained.tried)
    statuses = pipeline.database.batches.statuses(drained.stream)
    late = pipeline.database.batches.late_statuses(drained.stream)
    drained.statuses = [status for status in statuses if status.batch.key in tried]
    drained.statuses += [status for status in late if status.batch.id in drained.tried_late]
    if drained.tried_backfill:
        again = pipeline.database.backfills.of_all(drained.stream)
        drained.statuses += [one for one in again if one.batch.id in drained.tried_backfill]


def _note_arrivals(drained: Drained, result: dg.ExecuteInProcessResult | None) -> None:
    if result is None:
        return
    for event in result.get_asset_materialization_events():
        facts: dict[str, Any] = {
            name: value.value for name, value in event.materialization.metadata.items()
        }
        if "files_found" in facts:
            drained.files_found = facts["files_found"]
            drained.files_changed = facts["files_changed"]
            drained.items_registered += facts["items_registered"]
            drained.batches_planned += facts["batches_planned"]
            if LANDING_TROUBLE in facts:
                drained.error = LandingTroubleError(facts[LANDING_TROUBLE])
