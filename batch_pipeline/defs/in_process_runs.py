"""Dagster runs in the process of a command, without Dagster's output and error classes."""

import os
import signal
import threading
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import groupby
from typing import Any

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.build import build_definitions, quiet_dagster
from batch_pipeline.defs.instance.dagster_home import (
    close_abandoned_runs,
    command_run_tags,
    open_instance,
)
from batch_pipeline.defs.instance.private_api import keep_interrupts_from_log_processes
from batch_pipeline.defs.metadata import LANDING_ERROR
from batch_pipeline.defs.names import register_job, run_tags
from batch_pipeline.defs.partition_sync import PartitionSync
from batch_pipeline.defs.partitions import PartitionedAsset, RunGroups, backfills_of, batches_of
from batch_pipeline.defs.runs import cancel_batches_since
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import check_times
from batch_pipeline.model.batch import BatchStatus, due_batches
from batch_pipeline.model.errors import (
    BatchSupersededError,
    DatabaseUnreachableError,
    InvalidValueError,
    JobPausedError,
    LandingTroubleError,
    PipelineError,
    StreamStoppedError,
    UnknownBatchError,
)
from batch_pipeline.model.progress import start_step
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.pending_work import RunResult
from batch_pipeline.spark.class_data_archive import build_later
from batch_pipeline.spark.session import end_session

_INTERRUPTS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def run_in_process(
    job: dg.JobDefinition, instance: dg.DagsterInstance, *, tags: dict[str, str]
) -> dg.ExecuteInProcessResult | None:
    """Run a job; failures of batches are read from the inventory, other errors are raised.

    Raises:
        KeyboardInterrupt: the run was interrupted.
    """
    try:
        with _interrupts_kept():
            return job.execute_in_process(instance=instance, tags=tags, run_config=_QUIET)
    except dg.Failure as failure:
        if isinstance(failure.__cause__, PipelineError):
            raise failure.__cause__ from None
        return None


@contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if an interrupt arrived, even if it was lost or replaced.

    Dagster raises its own exception, or discards the interrupt after the last step of a run. Other
    libraries may raise another error instead. The wakeup descriptor receives the number of each
    signal that has a handler.

    Raises:
        KeyboardInterrupt: an interrupt arrived.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    for descriptor in (reader, writer):
        os.set_blocking(descriptor, False)
    before = signal.set_wakeup_fd(writer)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        with os.fdopen(reader, "rb") as signals:
            if _INTERRUPTS.intersection(signals.read()):
                raise KeyboardInterrupt from None


@contextmanager
def open_shared(pipeline: Pipeline) -> Iterator[dg.DagsterInstance]:
    """Open the home's Dagster instance without the home's lock, for reading."""
    pipeline.database  # noqa: B018 - opened before Dagster creates its own tables beside it
    with open_instance(pipeline.home) as instance:
        yield instance


@contextmanager
def open_exclusively(pipeline: Pipeline, command: str) -> Iterator[dg.DagsterInstance]:
    """Hold the home's lock and yield its Dagster instance; end the Spark session at the end.

    Raises:
        RetryableError: another command holds the lock.
    """
    with pipeline.home.lock(command), open_shared(pipeline) as instance:
        keep_interrupts_from_log_processes(instance)
        try:
            yield instance
        finally:
            if end_session():
                build_later(pipeline.home.path)


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
                with _interrupts_kept():
                    _StreamRuns(pipeline, stream, instance, result).execute_all()
                    _read_statuses(pipeline, stream, result)
                    counts = pipeline.database.change_feed.publish_counts(stream.name)
                    pipeline.home.set_reported(stream.name, counts)
            except Exception as error:  # noqa: BLE001 - the other streams continue
                result.error = _reported(pipeline, stream, error)
                with suppress(Exception):  # only the error above is reported
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
        log.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, stream {stream.name}\n")
            file.writelines(traceback.format_exception(error))
    except OSError:
        return StreamStoppedError(stream.name, problem, None)
    return StreamStoppedError(stream.name, problem, str(log))


@dataclass(frozen=True)
class _StreamRuns:
    """The Dagster runs of one stream in this process; `result` has their results so far."""

    pipeline: Pipeline
    stream: Stream
    instance: dg.DagsterInstance
    result: RunResult

    @cached_property
    def definitions(self) -> dg.Definitions:
        """The definitions of the stream; planned backfills are encoded in any case."""
        rules = replace(self.stream.dagster, backfills=True)
        return build_definitions([replace(self.stream, dagster=rules)])

    def execute_all(self) -> None:
        """Execute runs until nothing is left; a paused job is noted in the result."""
        cancel_batches_since(self.pipeline, self.instance, self.stream, 0)
        try:
            self._execute_batches()
        except JobPausedError as paused:
            self.result.error = paused
        self._execute_backfills()

    def _execute_batches(self) -> None:
        asset = batches_of(self.stream)
        register = self.definitions.resolve_job_def(register_job(self.stream))
        while True:
            self._check_not_paused(self.stream.name)
            start_step(self.stream.name, "looking for files")
            tags = command_run_tags(self.pipeline)
            _add_arrivals(self.result, run_in_process(register, self.instance, tags=tags))
            due = due_batches(asset.statuses(self.pipeline.database), retry_failed=True)
            left = [status for status in due if status.batch.id not in self.result.tried]
            if not left:
                return
            start_step(self.stream.name, "encoding", total=len(left))
            self.encode(asset, left)

    def _execute_backfills(self) -> None:
        """Encode the planned batches of the stream's backfills, one backfill after the other."""
        asset = backfills_of(self.stream)
        sync = PartitionSync(asset, in_ticks=False).reconcile_and_diff(self.pipeline, self.instance)
        sync.apply(self.instance, asset, self.instance.report_runless_asset_event)
        due = sorted(due_batches(sync.statuses, retry_failed=True), key=lambda one: one.batch.job)
        for name, group in groupby(due, key=lambda one: one.batch.job):
            statuses = list(group)
            start_step(name, "encoding", total=len(statuses))
            try:
                self.encode(asset, statuses)
            except JobPausedError as paused:
                self.result.error = self.result.error or paused

    def _check_not_paused(self, job: str) -> None:
        """Check that the stream and, if it is the job of a backfill, `job` are not paused."""
        database, stream = self.pipeline.database, self.stream.name
        reason = database.backfills.paused(stream).get(job)
        if reason is not None:
            raise JobPausedError(job, reason)
        database.jobs.check_not_paused(stream)

    def encode(self, asset: PartitionedAsset, statuses: Sequence[BatchStatus]) -> None:
        """Encode batches of the stream or of one backfill, neighbouring partitions in one run.

        Raises:
            JobPausedError: the stream or the backfill is paused; later runs were not started.
        """
        batch_ids = {status.key: status.batch.id for status in statuses}
        size = self.stream.dagster.partitions_per_run
        groups = RunGroups(order=asset.order(self.instance), size=size)
        for status in statuses:
            groups.takes(status.key, status.batch.job)
        job = self.definitions.resolve_job_def(asset.job)
        for keys in groups.groups:
            self._check_not_paused(statuses[0].batch.job)
            self.result.tried.update(batch_ids[key] for key in keys)
            tags = command_run_tags(self.pipeline) | asset.tags_of(keys[0])
            tags |= run_tags(self.stream, keys[0], keys[-1])
            run_in_process(job, self.instance, tags=tags)


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
    """Partition keys with their published batches, in the order of the asset's partitions.

    All of these batches were published before `moment`, by the clock of the database; None if the
    selection is empty.
    """

    partitions: Mapping[str, BatchStatus]
    moment: datetime | None


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

    `keys` may be partition keys, ranges and numbers; without any, all partitions are selected. Only
    partitions whose newest generation was published at `since` or later and before `until` are
    kept; the same call with `until` continues an interrupted call.

    Raises:
        InvalidValueError: a key has no published batch, or the times are not a valid range.
    """
    check_times(since, until)
    database = pipeline.database
    asset = batches_of(stream)
    statuses = {status.key: status for status in asset.statuses(database)}
    order = asset.order(instance, [*statuses]).positions
    names = {_key_of(database, asset, stream, order, name): name for name in keys}
    selected = {
        key: statuses[key]
        for key in order
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
    return ReprocessSelection(partitions=selected, moment=moment)


def _key_of(
    database: Database, asset: PartitionedAsset, stream: Stream, order: Collection[str], name: str
) -> str:
    """Return the partition key of a batch that is named by key, range or number."""
    if name in order:
        return name
    with suppress(UnknownBatchError, BatchSupersededError):
        return asset.key_of(database.batches.find(stream.name, name))
    return name


def reprocess(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance, chosen: ReprocessSelection
) -> list[ReprocessResult]:
    """Encode and publish the batches of partitions again.

    A batch that fails keeps its generation; the others continue. The caller holds the home's lock.

    Raises:
        JobPausedError: the stream's job is paused; generations published so far are kept.
        PipelineError: the infrastructure failed; generations published so far are kept.
    """
    asset, batches = batches_of(stream), [*chosen.partitions.values()]
    with quiet_dagster():
        close_abandoned_runs(pipeline, instance)
        instance.add_dynamic_partitions(asset.set_name, [*chosen.partitions])
        runs = _StreamRuns(pipeline, stream, instance, RunResult(stream=stream.name))
        start_step(stream.name, "encoding", total=len(batches))
        runs.encode(asset, batches)
    after = {status.batch.id: status for status in asset.statuses(pipeline.database)}
    return [ReprocessResult(before=status, after=after[status.batch.id]) for status in batches]
