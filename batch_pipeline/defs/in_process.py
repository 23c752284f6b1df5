"""Dagster runs in the process of a command, without Dagster's output and error classes."""

import os
import signal
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.instance.home import close_abandoned_runs, command_run_tags, open_instance
from batch_pipeline.defs.metadata import LANDING_ERROR
from batch_pipeline.defs.names import register_job, run_tags
from batch_pipeline.defs.partition_sync import PartitionSync, sync_partitions
from batch_pipeline.defs.partitions import (
    PartitionedAsset,
    backfills_of,
    batches_of,
    group_neighbours,
)
from batch_pipeline.defs.sensors.run_ends import cancel_batches_since
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import check_times
from batch_pipeline.model.batch import BatchStatus, due_batches
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
from batch_pipeline.pipeline.idle import RunResult
from batch_pipeline.spark.class_data import build_later
from batch_pipeline.spark.session import end_session, open_in_background

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def run_in_process(
    job: dg.JobDefinition, instance: dg.DagsterInstance, *, tags: dict[str, str]
) -> dg.ExecuteInProcessResult | None:
    """Run a job; failures of batches are read from the inventory, other errors are raised.

    Raises:
        KeyboardInterrupt: the run was interrupted.
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
    """Suppress Dagster's warnings about beta parameters."""
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
    """Hold the home's lock and yield its Dagster instance; end the Spark session at the end.

    Raises:
        RetryableError: another command holds the lock.
    """
    with pipeline.home.lock(command), open_shared(pipeline) as instance:
        _keep_interrupts_from_log_processes(instance)
        open_in_background()
        try:
            yield instance
        finally:
            if end_session():
                build_later(pipeline.home.path)


def _keep_interrupts_from_log_processes(instance: dg.DagsterInstance) -> None:
    """Keep Ctrl-C from the processes that copy the output of steps.

    Dagster starts them in the terminal's process group; interrupted, they print tracebacks.
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
    """Block interrupts until the end; processes started meanwhile never receive any."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_MAX_MESSAGE = 300  # characters of an unexpected exception


def run_until_idle(
    pipeline: Pipeline, streams: Sequence[Stream], instance: dg.DagsterInstance
) -> Iterator[RunResult]:
    """Register, plan, encode and publish stream by stream until nothing is left.

    Batches that failed or were interrupted before are tried again. Backfills follow new files.
    Errors are returned in the results, not raised: an exception in one stream does not stop the
    others, unless the inventory cannot be reached.
    """
    with quiet_dagster():
        close_abandoned_runs(pipeline, instance)
        for stream in streams:
            result = RunResult(stream=stream.name)
            try:
                _drain(pipeline, stream, instance, result)
                _read_statuses(pipeline, stream, result)
                counts = pipeline.database.change_feed.publish_counts(stream.name)
                pipeline.home.set_reported(stream.name, counts)
            except Exception as error:  # noqa: BLE001 - the other streams go on
                result.error = _reported(pipeline, stream, error)
                with suppress(Exception):  # the error above is what is reported
                    _read_statuses(pipeline, stream, result)
            yield result
            if isinstance(result.error, DatabaseUnreachableError):
                return


def _reported(pipeline: Pipeline, stream: Stream, error: Exception) -> PipelineError:
    """Return the error to report for a stream; the traceback of an unexpected one is logged."""
    if isinstance(error, PipelineError):
        return error
    lines = str(error).splitlines() or [""]
    problem = f"{type(error).__name__}: {lines[0][:_MAX_MESSAGE]}".removesuffix(": ")
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


def _drain(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance, result: RunResult
) -> None:
    rules = replace(stream.dagster, backfills=True)  # planned ones are encoded in any case
    definitions = build_definitions([replace(stream, dagster=rules)])
    cancel_batches_since(pipeline, instance, stream, 0)
    try:
        _drain_batches(pipeline, stream, definitions, instance, result)
    except JobPausedError as paused:
        result.error = paused
    _drain_backfills(pipeline, stream, definitions, instance, result)


def _drain_batches(
    pipeline: Pipeline,
    stream: Stream,
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    result: RunResult,
) -> None:
    asset, register = batches_of(stream), definitions.resolve_job_def(register_job(stream))
    check_not_paused = partial(pipeline.database.jobs.check_not_paused, stream.name)
    while True:
        check_not_paused()
        start_step(stream.name, "looking for files")
        tags = command_run_tags(pipeline)
        _add_arrivals(result, run_in_process(register, instance, tags=tags))
        due = due_batches(asset.statuses(pipeline.database), retry_failed=True)
        left = {
            asset.key_of(status.batch): status.batch.id
            for status in due
            if status.batch.id not in result.tried
        }
        if not left:
            return
        start_step(stream.name, "encoding", total=len(left))
        order = instance.get_dynamic_partitions(asset.set_name)
        for group in group_neighbours(left, order, most=stream.dagster.partitions_per_run):
            check_not_paused()
            result.tried.update(left[key] for key in group)
            _encode(pipeline, stream, asset, definitions, instance, group)


def _drain_backfills(
    pipeline: Pipeline,
    stream: Stream,
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    result: RunResult,
) -> None:
    """Encode the planned batches of the stream's backfills, one backfill after the other."""
    asset, backfills = backfills_of(stream), pipeline.database.backfills
    sync = sync_partitions(pipeline, stream, asset, instance)
    sync.apply(instance, asset, instance.report_runless_asset_event)
    due = sorted(due_batches(sync.statuses, retry_failed=True), key=lambda one: one.batch.job)
    for name, statuses in groupby(due, key=lambda one: one.batch.job):
        left = {asset.key_of(status.batch): status.batch.id for status in statuses}
        start_step(name, "encoding", total=len(left))
        for group in group_neighbours(left, sync.order, most=stream.dagster.partitions_per_run):
            reason = backfills.paused(stream.name).get(name)
            if reason is not None:
                result.error = result.error or JobPausedError(name, reason)
                break
            result.tried.update(left[key] for key in group)
            _encode(pipeline, stream, asset, definitions, instance, group)


def _encode(
    pipeline: Pipeline,
    stream: Stream,
    asset: PartitionedAsset,
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    keys: Sequence[str],
) -> None:
    """Encode neighbouring partitions in one run."""
    tags = command_run_tags(pipeline) | asset.tags_of(keys[0]) | run_tags(stream, keys[0], keys[-1])
    run_in_process(definitions.resolve_job_def(asset.job), instance, tags=tags)


def _read_statuses(pipeline: Pipeline, stream: Stream, result: RunResult) -> None:
    if not result.tried:
        return
    statuses = [
        *batches_of(stream).statuses(pipeline.database),
        *backfills_of(stream).statuses(pipeline.database),
    ]
    result.statuses = [status for status in statuses if status.batch.id in result.tried]


def _add_arrivals(result: RunResult, run: dg.ExecuteInProcessResult | None) -> None:
    if run is None:
        return
    for event in run.get_asset_materialization_events():
        metadata: dict[str, Any] = {
            name: value.value for name, value in event.materialization.metadata.items()
        }
        if "files_found" in metadata:
            result.files_found = metadata["files_found"]
            result.files_changed = metadata["files_changed"]
            result.items_registered += metadata["items_registered"]
            result.batches_planned += metadata["batches_planned"]
            if LANDING_ERROR in metadata:
                result.error = LandingTroubleError(metadata[LANDING_ERROR])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessResult:
    """A published batch that was encoded again, with its status before and after."""

    before: BatchStatus
    after: BatchStatus

    @property
    def is_new(self) -> bool:
        """Whether a newer generation was published."""
        return (self.after.generation or 0) > (self.before.generation or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessSelection:
    """Partition keys with their published batches, and all keys of the asset in order.

    All of these batches were published before `moment`, by the clock of the database; None if the
    selection is empty.
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
    """Select partitions of a stream that have published batches; nothing is changed.

    `keys` may be partition keys, ranges and numbers; without any, all partitions are selected. Of
    these, only those whose newest generation was published at `since` or later and before `until`
    are kept: the same call with `until` continues an interrupted one.

    Raises:
        InvalidValueError: a key is no partition with published batches, or the times are no range.
    """
    check_times(since, until)
    database = pipeline.database
    asset = batches_of(stream)
    sync = PartitionSync(in_ticks=False).diff(pipeline, stream, asset, instance)
    statuses = {asset.key_of(status.batch): status for status in asset.statuses(database)}
    names = {_key_of(database, asset, stream, sync.order, name): name for name in keys}
    selected = {
        key: statuses[key]
        for key in sync.order
        if (not names or key in names) and key in statuses and statuses[key].generation is not None
    }
    for key, name in names.items():
        if key not in selected:
            expected = "a partition with published batches, as Dagster's page of the asset has them"
            raise InvalidValueError(f"{stream.name}: the batch", name, expected)
    published_at = database.change_feed.published_at(stream.name)
    selected = {
        key: status
        for key, status in selected.items()
        if (since is None or published_at[status.batch.id] >= since)
        and (until is None or published_at[status.batch.id] < until)
    }
    last = max((published_at[status.batch.id] for status in selected.values()), default=None)
    moment = None if last is None else last + timedelta(microseconds=1)
    return ReprocessSelection(partitions=selected, order=sync.order, moment=moment)


def _key_of(
    database: Database, asset: PartitionedAsset, stream: Stream, order: Collection[str], name: str
) -> str:
    """Return the partition key of a batch that is named by key, range or number."""
    if name in order:
        return name
    with suppress(UnknownJobError, UnknownBatchError):
        return asset.key_of(database.jobs.batch(stream.name, name))
    return name


def reprocess(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance, chosen: ReprocessSelection
) -> list[ReprocessResult]:
    """Encode and publish the batches of partitions again.

    A batch that fails keeps its generation, and the others go on. The caller holds the home's lock.

    Raises:
        JobPausedError: the stream's job is paused. Generations published until then stay.
        PipelineError: the infrastructure failed. The same.
    """
    database, asset = pipeline.database, batches_of(stream)
    with quiet_dagster():
        close_abandoned_runs(pipeline, instance)
        instance.add_dynamic_partitions(asset.set_name, [*chosen.partitions])
        definitions = build_definitions([stream])
        start_step(stream.name, "encoding", total=len(chosen.batches))
        most = stream.dagster.partitions_per_run
        for group in group_neighbours(chosen.partitions, chosen.order, most=most):
            database.jobs.check_not_paused(stream.name)
            _encode(pipeline, stream, asset, definitions, instance, group)
    after = {status.batch.id: status for status in asset.statuses(database)}
    return [
        ReprocessResult(before=status, after=after[status.batch.id]) for status in chosen.batches
    ]
