"""Dagster runs of a stream's assets: their partitions, their priority, and their cancellation.

A run is CANCELED in Dagster if a person cancelled it, or if the Dagster backfill that launched it
failed; a run whose process was stopped or died has failed. So batches of runs that a person
cancelled wait for a person, and those of other runs are launched again.
"""

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs import names
from batch_pipeline.defs.instance.private_api import (
    is_backfill_failed,
    last_event_at,
    planned_assets,
    report_dead,
    tag_run,
)
from batch_pipeline.defs.partitions import KeyOrder, backfills_of, batches_of
from batch_pipeline.model.errors import BatchSupersededError, UnknownBatchError
from batch_pipeline.model.stream import Automation, Stream

_TURN_SECONDS = 30
_NEW_FILES = 2**32  # keeps priorities of new files above 0
_REPEATED_SECONDS = 300
_ZONE_SECONDS = 14 * 3600
_OVERLAP_SECONDS = 300  # clocks of the machines that end runs may differ by this much
_BACKFILL_FAILED = "Dagster cancelled its run, because the Dagster backfill failed"
_SILENT_SECONDS = 900
BEGUN = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
CREATED = [dg.DagsterRunStatus.NOT_STARTED, *BEGUN]
UNFINISHED = [dg.DagsterRunStatus.QUEUED, *CREATED]


def priority(now: float, *, ahead: int = 0, is_backfill: bool = False) -> int:
    """Return the priority of a run that is launched now; `ahead` runs of its stream are queued.

    Runs execute in the order of their launch, except that each run ahead counts as a delay of half
    a minute, so that streams alternate and no run waits forever. Runs that a person launches have
    priority 0, between new files and backfills.
    """
    launched = round(now) + _TURN_SECONDS * ahead
    return -launched - 1 if is_backfill else _NEW_FILES - launched


def schedule_tags(context: dg.ScheduleEvaluationContext) -> dict[str, str]:
    """Return the tags of a run that a schedule requests."""
    return {names.PRIORITY_TAG: str(priority(context.scheduled_execution_time.timestamp()))}


def default_status(*automation: Automation | None) -> dg.DefaultSensorStatus:
    """Return whether a sensor runs by default, given the automation of its streams.

    It never does in a branch deployment of Dagster+, whose inventory may be that of production.
    """
    is_branch = os.environ.get("DAGSTER_CLOUD_IS_BRANCH_DEPLOYMENT") == "1"
    is_running = Automation.RUNNING in automation and not is_branch
    return dg.DefaultSensorStatus.RUNNING if is_running else dg.DefaultSensorStatus.STOPPED


def sensor_status(*streams: Stream) -> dg.DefaultSensorStatus:
    """Return whether a sensor of streams runs by default."""
    return default_status(*(stream.dagster.automation for stream in streams))


def schedule_status(*streams: Stream) -> dg.DefaultScheduleStatus:
    """Return whether a schedule of streams runs by default."""
    return dg.DefaultScheduleStatus(sensor_status(*streams).value)


def is_launched(run: dg.DagsterRun) -> bool:
    """Return whether a sensor launched a run; a person's re-execution inherits the run's tags."""
    return names.LAUNCH_TAG in run.tags and run.parent_run_id is None


def materializes(
    instance: dg.DagsterInstance, run: dg.DagsterRun, job: str, asset_key: dg.AssetKey
) -> bool:
    """Return whether a run materializes an asset; `job` is the Dagster job for it.

    Runs of a selection name their assets. For a run of a whole Dagster job that is not one of ours
    (no stream tag), its execution plan names them.
    """
    if run.job_name == job or asset_key in (run.asset_selection or ()):
        return True
    if run.asset_selection is not None or names.STREAM_TAG in run.tags:
        return False
    return asset_key in planned_assets(instance, run)


def partition_keys_of(run: dg.DagsterRun, order: KeyOrder) -> list[str]:
    """Return the partition keys of a run; none if the first or last of its range was deleted."""
    if names.PARTITION_TAG in run.tags:
        return [run.tags[names.PARTITION_TAG]]
    return order.between(run.tags.get(names.RANGE_START_TAG), run.tags.get(names.RANGE_END_TAG))


@dataclass(frozen=True, slots=True)
class AssetRuns:
    """The queued and running runs of an asset."""

    runs: Sequence[dg.DagsterRun]

    @property
    def by_sensors(self) -> int:
        """Number of runs that sensors launched."""
        return sum(map(is_launched, self.runs))

    @property
    def is_one_waiting(self) -> bool:
        """Whether a run that a sensor launched is still queued."""
        queued = dg.DagsterRunStatus.QUEUED
        return any(run.status is queued and is_launched(run) for run in self.runs)

    def keys(self, order: KeyOrder) -> set[str]:
        """Return the partition keys of all runs; `order` is read only if there is a run."""
        return {key for run in self.runs for key in partition_keys_of(run, order)}


def unfinished_runs(
    instance: dg.DagsterInstance, job: str, asset_key: dg.AssetKey, *, or_repeated: bool = False
) -> AssetRuns:
    """Find the queued and running runs of an asset; `job` is the Dagster job for it.

    With `or_repeated`, also those whose process died and that Dagster is about to repeat: like the
    others, they will report what they published.
    """
    # First the failed ones: the run that repeats one may start in between, and is then unfinished.
    runs = _runs_about_to_be_repeated(instance) if or_repeated else []
    runs += _find_runs(instance, dg.RunsFilter(statuses=UNFINISHED))
    return AssetRuns([run for run in runs if materializes(instance, run, job, asset_key)])


def _find_runs(instance: dg.DagsterInstance, runs: dg.RunsFilter) -> list[dg.DagsterRun]:
    """Return the runs that a filter matches, the newest first."""
    return [record.dagster_run for record in instance.get_run_records(runs)]


def _runs_about_to_be_repeated(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    """Find the failed runs that Dagster is about to repeat.

    Leaves out runs older than five minutes, which the daemon would have repeated by now, and runs
    of our commands: Dagster tags these too, but they belong to no code location.
    """
    failed = [dg.DagsterRunStatus.FAILURE]
    since = time.time() - _REPEATED_SECONDS
    return [
        run
        for run in _find_ended(instance, since, failed, tags={names.WILL_RETRY_TAG: "true"})
        if {names.AUTO_RETRY_TAG, names.DRAIN_TAG}.isdisjoint(run.tags)
    ]


def ended_runs(
    instance: dg.DagsterInstance, since: float, *statuses: dg.DagsterRunStatus
) -> Sequence[dg.DagsterRun]:
    """Find the runs that ended with one of some statuses since a time, in seconds since 1970."""
    return _find_ended(instance, since - _OVERLAP_SECONDS, statuses)


def _find_ended(
    instance: dg.DagsterInstance,
    after: float,
    statuses: Sequence[dg.DagsterRunStatus],
    **others: Any,
) -> list[dg.DagsterRun]:
    # Dagster's storage for PostgreSQL stores the time of an update in the time zone of the session,
    # and reads it as UTC.
    updated_after = datetime.fromtimestamp(max(after - _ZONE_SECONDS, 0), UTC)
    runs = dg.RunsFilter(statuses=[*statuses], updated_after=updated_after, **others)
    return [
        record.dagster_run
        for record in instance.get_run_records(runs)
        if record.end_time is None or record.end_time > after
    ]


def close_silent_runs(pipeline: Pipeline, instance: dg.DagsterInstance, now: float) -> int:
    """Report runs of commands whose processes must have died; return their number.

    The process may have been on another machine, such as a container that is gone: nothing else
    ends such a run. It counts as dead if it has no attempt or load whose process lives, and had no
    event in the 15 minutes before `now`, in seconds since 1970. If it works nevertheless, only the
    status of the run is wrong.
    """
    silent = [
        record.dagster_run
        for record in instance.get_run_records(dg.RunsFilter(statuses=CREATED))
        if names.DRAIN_TAG in record.dagster_run.tags
        and now - last_event_at(instance, record) > _SILENT_SECONDS
    ]
    dead = [run for run in silent if not pipeline.database.run_ends.is_working(run.run_id)]
    for run in dead:
        report_dead(instance, run)
    return len(dead)


def cancel_batches(
    pipeline: Pipeline, instance: dg.DagsterInstance, streams: Iterable[Stream], run: dg.DagsterRun
) -> int:
    """Cancel the batches of streams that a cancelled run had; return their number.

    If Dagster cancelled the run because its backfill failed, only open attempts are closed.
    A tag marks the run as processed, so that batches that a person retries later are not affected.
    Its value is the run, because a re-execution inherits the tag.
    """
    if run.tags.get(names.CLOSED_TAG) in (run.run_id, "cancelled"):  # before 0.2.0
        return 0
    assets = [asset for stream in streams for asset in (batches_of(stream), backfills_of(stream))]
    ours = [asset for asset in assets if materializes(instance, run, asset.job, asset.asset_key)]
    if not ours:
        return 0
    backfill = run.tags.get(names.DAGSTER_BACKFILL_TAG)
    if backfill is not None and is_backfill_failed(instance, backfill):
        pipeline.database.run_ends.close_failed(run.run_id, _BACKFILL_FAILED)
        tag_run(instance, run.run_id, names.CLOSED_TAG, run.run_id)
        return 0
    batch_ids: list[int] = []
    for asset in ours:
        for key in partition_keys_of(run, asset.order(instance)):
            with suppress(UnknownBatchError, BatchSupersededError):
                batch_ids.append(asset.find(pipeline.database, key).id)
    closed = pipeline.database.run_ends.close_cancelled(run.run_id, batch_ids)
    tag_run(instance, run.run_id, names.CLOSED_TAG, run.run_id)
    return closed.batches


def cancel_batches_since(
    pipeline: Pipeline, instance: dg.DagsterInstance, stream: Stream, since: float
) -> None:
    """Cancel the batches of runs that were cancelled since a time, in seconds since 1970.

    Sensors that launch call it first, because they may be evaluated before the sensor of run ends.
    """
    for run in ended_runs(instance, since, dg.DagsterRunStatus.CANCELED):
        cancel_batches(pipeline, instance, [stream], run)
