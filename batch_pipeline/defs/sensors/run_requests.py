"""Run requests of sensors: which batches are launched, in which runs, with which priority.

`dagster.yaml` limits how many runs execute at a time.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Self

import dagster as dg

from batch_pipeline.defs.names import (
    DRAIN_TAG,
    LAUNCH_TAG,
    MAX_RETRIES_TAG,
    PARTITION_TAG,
    PRIORITY_TAG,
    RANGE_END_TAG,
    RANGE_START_TAG,
    STREAM_TAG,
    WILL_RETRY_TAG,
    run_tags,
)
from batch_pipeline.defs.partitions import PartitionedAsset
from batch_pipeline.model.batch import BatchState, BatchStatus, due_batches
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.stream import Automation, Stream

_TURN_SECONDS = 30
_NEW_FILES = 2**32  # keeps priorities of new files above 0


def priority(now: float, *, ahead: int = 0, is_backfill: bool = False) -> int:
    """Return the priority of a run that is launched now; `ahead` runs of its stream are queued.

    Runs execute in the order of their launch, except that each run ahead counts as a delay of half
    a minute, so that streams alternate and no run waits for ever. Runs that a person launches have
    priority 0, between new files and backfills.
    """
    launched = round(now) + _TURN_SECONDS * ahead
    return -launched - 1 if is_backfill else _NEW_FILES - launched


def schedule_tags(context: dg.ScheduleEvaluationContext) -> dict[str, str]:
    """Return the tags of a run that a schedule requests."""
    return {PRIORITY_TAG: str(priority(context.scheduled_execution_time.timestamp()))}


def sensor_status(*streams: Stream) -> dg.DefaultSensorStatus:
    """Return whether a sensor of streams runs by default."""
    is_running = any(stream.dagster.automation is Automation.RUNNING for stream in streams)
    return dg.DefaultSensorStatus.RUNNING if is_running else dg.DefaultSensorStatus.STOPPED


def schedule_status(*streams: Stream) -> dg.DefaultScheduleStatus:
    """Return whether a schedule of streams runs by default."""
    return dg.DefaultScheduleStatus(sensor_status(*streams).value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorCursor:
    """The cursor of a sensor, stored as JSON; each field has a default."""

    @classmethod
    def of_cursor(cls, cursor: str | None) -> Self:
        """Parse a cursor; one with unknown fields, of another release, is ignored."""
        fields = json.loads(cursor) if cursor else {}
        return cls(**fields) if fields.keys() <= {*cls.__slots__} else cls()

    def cursor(self) -> str:
        """Format the cursor."""
        return json.dumps(asdict(self))


UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_REPEATED_WITHIN = timedelta(minutes=5)


def materializes(
    instance: dg.DagsterInstance, run: dg.DagsterRun, job: str, asset_key: dg.AssetKey
) -> bool:
    """Return whether a run materializes an asset; `job` is the Dagster job that does.

    Runs of a selection name their assets. For a run of a whole Dagster job that is not one of ours
    (no stream tag), the events of its creation name them.
    """
    if run.job_name == job or asset_key in (run.asset_selection or ()):
        return True
    if run.asset_selection is not None or STREAM_TAG in run.tags:
        return False
    planned = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    events = (log.dagster_event for log in instance.all_logs(run.run_id, of_type=planned))
    return any(event is not None and event.asset_key == asset_key for event in events)


def partition_keys_of(run: dg.DagsterRun, order: Sequence[str]) -> list[str]:
    """Return the partition keys of a run; `order` has the keys of its asset as they were added.

    Empty if the first or last key of its range was deleted.
    """
    if PARTITION_TAG in run.tags:
        return [run.tags[PARTITION_TAG]]
    first, last = run.tags.get(RANGE_START_TAG), run.tags.get(RANGE_END_TAG)
    if first not in order or last not in order:
        return []
    return list(order[order.index(first) : order.index(last) + 1])


@dataclass(frozen=True, slots=True)
class AssetRuns:
    """The queued and running runs of an asset."""

    runs: Sequence[dg.DagsterRun]

    @property
    def by_sensors(self) -> int:
        """Number of runs that sensors launched."""
        return sum(LAUNCH_TAG in run.tags for run in self.runs)

    @property
    def is_one_waiting(self) -> bool:
        """Whether a run that a sensor launched is still queued."""
        queued = dg.DagsterRunStatus.QUEUED
        return any(run.status is queued and LAUNCH_TAG in run.tags for run in self.runs)

    def keys(self, order: Sequence[str]) -> set[str]:
        """Return the partition keys of all runs; `order` is read only if there is a run."""
        return {key for run in self.runs for key in partition_keys_of(run, order)}


def unfinished_runs(instance: dg.DagsterInstance, asset: PartitionedAsset) -> AssetRuns:
    """Find the queued and running runs of an asset."""
    runs = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
    return AssetRuns(
        [run for run in runs if materializes(instance, run, asset.job, asset.asset_key)]
    )


def reporting_runs(instance: dg.DagsterInstance, asset: PartitionedAsset) -> AssetRuns:
    """Find the runs of an asset that will report what they published.

    These are unfinished runs, and runs whose process died and that Dagster is about to repeat.
    """
    runs = runs_about_to_be_repeated(instance)
    repeated = [run for run in runs if materializes(instance, run, asset.job, asset.asset_key)]
    return AssetRuns([*unfinished_runs(instance, asset).runs, *repeated])


def runs_about_to_be_repeated(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    """Find the failed runs that Dagster is about to repeat.

    Leaves out runs older than five minutes, which the daemon would have repeated by now, and runs
    of our commands: Dagster tags these too, but they belong to no code location.
    """
    since = datetime.now(UTC) - _REPEATED_WITHIN
    failed = dg.RunsFilter(
        statuses=[dg.DagsterRunStatus.FAILURE], tags={WILL_RETRY_TAG: "true"}, updated_after=since
    )
    return [
        run
        for run in instance.get_runs(failed)
        if run.is_complete_and_waiting_to_retry and DRAIN_TAG not in run.tags
    ]


_AT_ONCE = 3
_FIRST_PAUSE_SECONDS = 60
_LONGEST_PAUSE_SECONDS = 1_800
_MOST_DOUBLINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCursor(SensorCursor):
    """The cursor of a sensor that launches batches.

    `runs` counts the requested runs, so that run keys are unique; `tries` counts launches of keys
    that are still due, the last one at `launched_at`; `looked_at` is the time of the last tick, and
    `open_jobs` are the backfills that were unfinished then. Times are seconds since 1970.
    """

    runs: int = 0
    tries: Mapping[str, int] = field(default_factory=dict)
    launched_at: Mapping[str, float] = field(default_factory=dict)
    looked_at: float = 0
    open_jobs: Sequence[str] = ()

    def retries_exhausted(self, key: str) -> bool:
        """Return whether a key is still due after three launches."""
        return self.tries.get(key, 0) >= _AT_ONCE

    def is_early(self, key: str) -> bool:
        """Return whether it is too early, at `looked_at`, to launch a key again.

        After the third launch the delay is a minute; it doubles each time, up to half an hour.
        """
        if not self.retries_exhausted(key):
            return False
        doublings = min(self.tries[key] - _AT_ONCE, _MOST_DOUBLINGS)
        pause = min(_FIRST_PAUSE_SECONDS << doublings, _LONGEST_PAUSE_SECONDS)
        return self.looked_at < self.launched_at.get(key, 0) + pause

    def after(self, launched: Collection[str], due: Collection[str], runs: int) -> "LaunchCursor":
        """Return the cursor after launches; it forgets keys that are not `due`."""
        tries = {key: self.tries.get(key, 0) + (key in launched) for key in due}
        times = {**self.launched_at, **dict.fromkeys(launched, self.looked_at)}
        return replace(
            self,
            runs=self.runs + runs,
            tries={key: count for key, count in tries.items() if count},
            launched_at={key: times[key] for key in due if key in times},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Runs to request, the cursor afterwards, and the number of keys that wait for a retry."""

    requests: Sequence[dg.RunRequest]
    cursor: LaunchCursor
    waiting: int = 0

    @property
    def skip_reason(self) -> str:
        """Return why nothing is launched."""
        if not self.waiting:
            return "nothing is due."
        return f"batches that wait for another attempt: {self.waiting}."


def launch_result(
    asset: PartitionedAsset,
    new_keys: Sequence[str],
    plan: LaunchPlan,
    events: Sequence[dg.AssetMaterialization | dg.AssetObservation],
    skip_reason: str,
) -> dg.SensorResult:
    """Build the result of a tick; `skip_reason` is used if it has nothing else."""
    is_empty = not (plan.requests or new_keys or events)
    return dg.SensorResult(
        run_requests=list(plan.requests),
        dynamic_partitions_requests=[asset.partitions.build_add_request(list(new_keys))],
        asset_events=[*events],
        cursor=plan.cursor.cursor(),
        skip_reason=skip_reason if is_empty else None,
    )


def plan_launches(
    instance: dg.DagsterInstance,
    stream: Stream,
    asset: PartitionedAsset,
    statuses: Iterable[BatchStatus],
    order: Sequence[str],
    cursor: LaunchCursor,
) -> LaunchPlan:
    """Choose the due keys that no queued or running run has; `cursor.looked_at` is now.

    `order` has the keys of the asset in Dagster's order, new ones at the end. At most
    `runs_at_once` runs that sensors launched are queued or running, and no more statuses are read
    than needed for that. A run has batches of one job only. A batch that is unpublished after three
    launches is launched with growing delays, and alone if it was started: it may delay the others.
    While a run is queued, a last group that is not full waits for more batches: many small runs
    would keep a machine that is behind from catching up.
    """
    unfinished = unfinished_runs(instance, asset)
    most = max(stream.dagster.runs_at_once - unfinished.by_sensors, 0)
    if not most:
        return LaunchPlan(requests=[], cursor=cursor)
    taken = unfinished.keys(order)
    groups = RunGroups(order=order, most=most, size=stream.dagster.partitions_per_run)
    seen: list[str] = []
    is_complete = True
    for status in statuses:
        key = asset.key_of(status.batch)
        if key in taken or not due_batches((status,), retry_failed=False):
            continue
        alone = cursor.retries_exhausted(key) and status.state is BatchState.INTERRUPTED
        if not cursor.is_early(key) and not groups.takes(key, status.batch.job, alone=alone):
            is_complete = False
            break
        seen.append(key)
    if is_complete and unfinished.is_one_waiting:
        groups.leave_open()
    launched = {key for group in groups.groups for key in group}
    still_due = [*seen, *(key for key in cursor.tries if key in taken)]
    if not is_complete:
        still_due += _later(cursor.tries, seen, order)
    return LaunchPlan(
        requests=[
            _request(stream, asset, group, cursor, place, ahead=unfinished.by_sensors + place - 1)
            for place, group in enumerate(groups.groups, start=1)
        ],
        cursor=cursor.after(launched, still_due, len(groups.groups)),
        waiting=sum(cursor.is_early(key) for key in seen),
    )


@dataclass(slots=True, kw_only=True)
class RunGroups:
    """At most `most` groups of at most `size` keys that are adjacent in `order`."""

    order: Sequence[str]
    most: int
    size: int
    groups: list[list[str]] = field(default_factory=list)
    _job: str | None = None

    def takes(self, key: str, job: str, *, alone: bool = False) -> bool:
        """Add the next key; return False if that needs more than `most` groups.

        A key that is `alone` gets a group of its own.
        """
        if key not in self.order:
            return True  # its partition is added at a later tick
        last = self.groups[-1] if self.groups else []
        is_open = bool(last) and not alone and job == self._job and len(last) < self.size
        if is_open and self._follows(last[-1], key):
            last.append(key)
        elif len(self.groups) == self.most:
            return False
        else:
            self.groups.append([key])
        self._job = None if alone else job
        return True

    def leave_open(self) -> None:
        """Remove the last group unless it is full."""
        if self.groups and len(self.groups[-1]) < self.size:
            self.groups.pop()

    def _follows(self, before: str, key: str) -> bool:
        return self.order.index(key) == self.order.index(before) + 1


def _later(launched: Iterable[str], seen: Iterable[str], order: Sequence[str]) -> Iterable[str]:
    """Return the launched keys behind those examined, which may still be due."""
    last = max((order.index(key) for key in seen if key in order), default=-1)
    return (key for key in launched if key in order and order.index(key) > last)


def _request(
    stream: Stream,
    asset: PartitionedAsset,
    group: Sequence[str],
    cursor: LaunchCursor,
    place: int,
    *,
    ahead: int,
) -> dg.RunRequest:
    first, last = group[0], group[-1]
    is_backfill = JobKind.BACKFILL in asset.kinds
    rank = priority(cursor.looked_at, ahead=ahead, is_backfill=is_backfill)
    return dg.RunRequest(
        run_key=f"{asset.set_name}:{first}:{last}:{cursor.runs + place}",
        job_name=asset.job,
        tags={
            LAUNCH_TAG: "new",
            MAX_RETRIES_TAG: "0",  # the sensor launches what a dead run leaves
            **asset.tags_of(first),
            **run_tags(stream, first, last),
            PRIORITY_TAG: str(rank),
        },
    )
