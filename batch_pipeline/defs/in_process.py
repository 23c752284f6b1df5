"""Dagster runs in this process, for commands: quiet, and with our errors instead of Dagster's."""

import os
import signal
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.instance.home import close_abandoned_runs, command_run_tags, open_instance
from batch_pipeline.defs.metadata import LANDING_TROUBLE
from batch_pipeline.defs.names import batches_job, late_job, meta_table_job, run_tags
from batch_pipeline.defs.partition_sync import PartitionSync, sync_backfills
from batch_pipeline.defs.partitions import backfills_of, batches_of, group_neighbours
from batch_pipeline.defs.sensors.run_ends import end_cancelled_since
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import check_times
from batch_pipeline.model.batch import BatchState, BatchStatus, due_batches
from batch_pipeline.model.errors import (
    DatabaseUnreachableError,
    InvalidValueError,
    JobPausedError,
    LandingTroubleError,
    PipelineError,
    StreamStoppedError,
    UnknownBatchError,
    UnknownJobError,
)
from batch_pipeline.model.progress import start_step
from batch_pipeline.model.stream import Stream
from batch_pipeline.spark.sessions.class_data_builder import build_later
from batch_pipeline.spark.sessions.session import close_session

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def run_in_process(
    job: dg.JobDefinition, instance: dg.DagsterInstance, *, tags: dict[str, str]
) -> dg.ExecuteInProcessResult | None:
    """Run a job; batches that failed are in the inventory, anything else is raised.

    Raises:
        KeyboardInterrupt: the operator interrupted the run.
    """
    try:
        return job.execute_in_process(instance=instance, tags=tags, run_config=_QUIET)
    except dg.Failure as failure:
        if isinstance(failure.__cause__, PipelineError):
            raise failure.__cause__ from None
        return None
    except dg.DagsterExecutionInterruptedError:
        raise KeyboardInterrupt from None


@contextmanager
def quiet_dagster() -> Iterator[None]:
    """Keep Dagster's notes on beta parameters away from people who run a command."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=dg.BetaWarning)
        yield


@contextmanager
def open_shared(pipeline: Pipeline) -> Iterator[dg.DagsterInstance]:
    """Open the home's Dagster instance without the home's lock, for reading."""
    pipeline.database  # noqa: B018 - opened before Dagster makes its own tables beside it
    with open_instance(pipeline.home) as instance:
        yield instance


@contextmanager
def open_exclusively(pipeline: Pipeline, command: str) -> Iterator[dg.DagsterInstance]:
    """Hold the home's lock, and give its Dagster; a Spark session ends with the block.

    Raises:
        RetryableError: another command works on the home.
    """
    with pipeline.home.lock(command), open_shared(pipeline) as instance:
        _keep_interrupts_from_log_processes(instance)
        try:
            yield instance
        finally:
            if close_session():
                build_later(pipeline.home.path)


def _keep_interrupts_from_log_processes(instance: dg.DagsterInstance) -> None:
    """Make Ctrl-C interrupt this process, but not those that copy the output of its steps.

    Dagster starts them in the terminal's process group and ends them with the step. Interrupted
    before, they print tracebacks of their own.
    """
    manager = instance.compute_log_manager
    manager.capture_logs = partial(_captured, manager.capture_logs)  # type: ignore[method-assign]


@contextmanager
def _captured(
    capture: Callable[[Sequence[str]], AbstractContextManager[Any]], log_key: Sequence[str]
) -> Iterator[Any]:
    with ExitStack() as stack:
        with _interrupts_held_back():
            context = stack.enter_context(capture(log_key))
        yield context


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold interrupts back until the block ends; processes started in it never get any."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_SHOWN = 300  # characters of an exception that is not ours


@dataclass(slots=True, kw_only=True)
class RunResult:
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


def run_until_idle(
    pipeline: Pipeline, streams: Sequence[Stream], instance: dg.DagsterInstance
) -> Iterator[RunResult]:
    """Register, plan, encode and publish stream by stream until nothing is left.

    Failed and interrupted batches of earlier calls are tried again. An exception in one stream,
    whatever it is, does not keep the others from being processed; only when the inventory cannot
    be reached is nothing more tried. Backfills come after new files. Errors are returned in the
    results, not raised.
    """
    with quiet_dagster():
        close_abandoned_runs(pipeline, instance)
        for stream in streams:
            drained = RunResult(stream=stream.name)
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
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance, drained: RunResult
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
    drained: RunResult,
) -> None:
    register_job = definitions.resolve_job_def(meta_table_job(stream))
    encode_job = definitions.resolve_job_def(batches_job(stream))
    encode_late_job = definitions.resolve_job_def(late_job(stream))
    home = command_run_tags(pipeline)
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
    drained: RunResult,
) -> None:
    """Encode what the stream's backfills have planned, one backfill after the other."""
    asset, backfills = backfills_of(stream), pipeline.database.backfills
    job = definitions.resolve_job_def(asset.job)
    known = sync_backfills(pipeline, stream, instance)
    known.apply(instance, asset, instance.report_runless_asset_event)
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
            tags = command_run_tags(pipeline) | asset.tags_of(group[0])
            run_in_process(job, instance, tags=tags | run_tags(stream, group[0], group[-1]))


def _note_statuses(drained: RunResult, pipeline: Pipeline) -> None:
    tried = set(drained.tried)
    statuses = pipeline.database.batches.statuses(drained.stream)
    late = pipeline.database.batches.late_statuses(drained.stream)
    drained.statuses = [status for status in statuses if status.batch.key in tried]
    drained.statuses += [status for status in late if status.batch.id in drained.tried_late]
    if drained.tried_backfill:
        again = pipeline.database.backfills.of_all(drained.stream)
        drained.statuses += [one for one in again if one.batch.id in drained.tried_backfill]


def _note_arrivals(drained: RunResult, result: dg.ExecuteInProcessResult | None) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessResult:
    """A published batch that was tried once more, as it was `before` and is `after`."""

    before: BatchStatus
    after: BatchStatus

    @property
    def is_new(self) -> bool:
        """Whether there is a newer generation of it."""
        return (self.after.generation or 0) > (self.before.generation or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessSelection:
    """Partition keys with the published batch of each, and all keys of the asset in order.

    All of these batches were published before `moment`, by the clock of the database; their next
    generations are not.
    """

    partitions: Mapping[str, BatchStatus]
    order: Sequence[str]
    moment: datetime | None

    @property
    def batches(self) -> list[BatchStatus]:
        """The batches, in the order of their partitions."""
        return [*self.partitions.values()]


def select_batches(
    pipeline: Pipeline,
    stream: Stream,
    instance: dg.DagsterInstance,
    *,
    keys: Collection[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> ReprocessSelection:
    """Choose partitions of a stream that have published batches.

    `keys` may be partition keys, ranges and numbers; without any, all partitions are chosen. Of
    these, the ones whose newest generation was published at `since` or later and before `until`:
    the same call with `until` continues where it was interrupted. Changes nothing.

    Raises:
        InvalidValueError: a key is no partition with published batches, or the times are no range.
    """
    check_times(since, until)
    database = pipeline.database
    known = PartitionSync(in_ticks=False).diff(pipeline, stream, batches_of(stream), instance)
    every = {one.batch.key: one for one in database.batches.statuses(stream.name)}
    names = {_key_of(database, stream, known.order, name): name for name in keys}
    found = {
        key: every[key]
        for key in known.order
        if (not names or key in names) and key in every and every[key].generation is not None
    }
    for key, name in names.items():
        if key not in found:
            expected = "a partition with published batches, as Dagster's page of the asset has them"
            raise InvalidValueError(f"{stream.name}: the batch", name, expected)
    published_at = database.change_feed.published_at(stream.name)
    found = {
        key: one
        for key, one in found.items()
        if (since is None or published_at[one.batch.id] >= since)
        and (until is None or published_at[one.batch.id] < until)
    }
    last = max((published_at[one.batch.id] for one in found.values()), default=None)
    moment = None if last is None else last + timedelta(microseconds=1)
    return ReprocessSelection(partitions=found, order=known.order, moment=moment)


def _key_of(database: Database, stream: Stream, order: Collection[str], name: str) -> str:
    """Return the partition key of a batch that is named by key, range or number."""
    if name in order:
        return name
    with suppress(UnknownJobError, UnknownBatchError):
        return database.jobs.batch(stream.name, name).key
    return name


def reprocess(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance, chosen: ReprocessSelection
) -> list[ReprocessResult]:
    """Encode and publish the batches of partitions once more.

    A batch that fails keeps the generation that it had, and its neighbours go on. The caller holds
    the home's lock.

    Raises:
        JobPausedError: the stream's job is paused; what was made until then stays.
        PipelineError: the surroundings failed; the same.
    """
    database = pipeline.database
    with quiet_dagster():
        close_abandoned_runs(pipeline, instance)
        instance.add_dynamic_partitions(batches_of(stream).set_name, [*chosen.partitions])
        job = build_definitions([stream]).resolve_job_def(batches_job(stream))
        start_step(stream.name, "encoding", total=len(chosen.batches))
        most = stream.dagster.partitions_per_run
        for group in group_neighbours(chosen.partitions, chosen.order, most=most):
            database.jobs.check_not_paused(stream.name)
            tags = command_run_tags(pipeline) | run_tags(stream, group[0], group[-1])
            run_in_process(job, instance, tags=tags)
    after = {one.batch.id: one for one in database.batches.statuses(stream.name)}
    return [ReprocessResult(before=one, after=after[one.batch.id]) for one in chosen.batches]
