"""In which order runs wait for their turn: what Dagster's tag of a run's priority says.

How many runs go at a time is said in `dagster.yaml`, not here.
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
from batch_pipeline.model.stream import Stream

_TURN_SECONDS = 30
_NEW_FILES = 2**32  # above 0, which is what a person launches; backfills are below


def priority(now: float, *, ahead: int = 0, is_backfill: bool = False) -> int:
    """Return the priority of a run that is launched now, behind the given number of its own.

    Who comes first goes first; but it is as if each run ahead made it come half a minute later, so
    that streams take turns. A run that waits is passed by ever fewer others: none waits for ever.
    What a person launches has priority 0, between new files and backfills.
    """
    came = round(now) + _TURN_SECONDS * ahead
    return -came - 1 if is_backfill else _NEW_FILES - came


def schedule_tags(context: dg.ScheduleEvaluationContext) -> dict[str, str]:
    """Return the tags of a run that a schedule requests."""
    return {PRIORITY_TAG: str(priority(context.scheduled_execution_time.timestamp()))}


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorCursor:
    """A memory whose fields, each with a default, are what the cursor holds."""

    @classmethod
    def of_cursor(cls, cursor: str | None) -> Self:
        """Read a cursor; one of another release is as good as none."""
        told = json.loads(cursor) if cursor else {}
        return cls(**told) if told.keys() <= {*cls.__slots__} else cls()

    def cursor(self) -> str:
        """Write the cursor."""
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
    """Return whether a run materializes an asset.

    Runs of a selection name their assets. A run of a whole Dagster job does not; unless the job is
    one of ours, which have the stream as a tag, the events of the run's creation name them.
    """
    if run.job_name == job or asset_key in (run.asset_selection or ()):
        return True
    if run.asset_selection is not None or STREAM_TAG in run.tags:
        return False
    planned = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    found = (one.dagster_event for one in instance.all_logs(run.run_id, of_type=planned))
    return any(event is not None and event.asset_key == asset_key for event in found)


def partition_keys_of(run: dg.DagsterRun, order: Sequence[str]) -> list[str]:
    """Return the partition keys of a run; `order` are those of its asset as they were added.

    A key that is not there any more makes the run one without keys.
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
        """How many of them sensors launched."""
        return sum(LAUNCH_TAG in run.tags for run in self.runs)

    @property
    def is_one_waiting(self) -> bool:
        """Whether one that a sensor launched has not left the queue yet."""
        queued = dg.DagsterRunStatus.QUEUED
        return any(run.status is queued and LAUNCH_TAG in run.tags for run in self.runs)

    def keys(self, order: Sequence[str]) -> set[str]:
        """Return the keys of all runs, also of those that a person launched.

        `order` is read only if there is a run.
        """
        return {key for run in self.runs for key in partition_keys_of(run, order)}


def unfinished_runs(instance: dg.DagsterInstance, asset: PartitionedAsset) -> AssetRuns:
    """Find the queued and running runs of an asset."""
    found = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
    return AssetRuns(
        [run for run in found if materializes(instance, run, asset.job, asset.asset_key)]
    )


def reporting_runs(instance: dg.DagsterInstance, asset: PartitionedAsset) -> AssetRuns:
    """Find the runs of an asset that will report themselves what they published.

    Besides those under way, these are runs whose process died and that Dagster is about to repeat:
    what they published is reported by the repetition.
    """
    found = runs_about_to_be_repeated(instance)
    repeated = [run for run in found if materializes(instance, run, asset.job, asset.asset_key)]
    return AssetRuns([*unfinished_runs(instance, asset).runs, *repeated])


def runs_about_to_be_repeated(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    """Find the runs that failed and that Dagster repeats within seconds.

    After some minutes without a repetition there will be none: the daemon was not running. It
    never repeats runs within our own commands, although Dagster gives these the tag, too: they
    belong to no code location.
    """
    since = datetime.now(UTC) - _REPEATED_WITHIN
    died = dg.RunsFilter(
        statuses=[dg.DagsterRunStatus.FAILURE], tags={WILL_RETRY_TAG: "true"}, updated_after=since
    )
    return [
        run
        for run in instance.get_runs(died)
        if run.is_complete_and_waiting_to_retry and DRAIN_TAG not in run.tags
    ]


_AT_ONCE = 3
_FIRST_PAUSE_SECONDS = 60
_LONGEST_PAUSE_SECONDS = 1_800
_MOST_DOUBLINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCursor(SensorCursor):
    """What a sensor remembers from tick to tick.

    `runs` counts what it has asked for, so that no run key comes twice; `tries` counts launches of
    keys that are still due, `launched_at` is when the last one was; `looked_at` is when it last
    looked for cancelled runs; `open_jobs` are the backfills that were not finished then. Times are
    seconds since 1970.
    """

    runs: int = 0
    tries: Mapping[str, int] = field(default_factory=dict)
    launched_at: Mapping[str, float] = field(default_factory=dict)
    looked_at: float = 0
    open_jobs: Sequence[str] = ()

    def retries_exhausted(self, key: str) -> bool:
        """Return whether a key is still due although it was launched often."""
        return self.tries.get(key, 0) >= _AT_ONCE

    def is_early(self, key: str) -> bool:
        """Return whether it is too early, at `looked_at`, to launch a key again.

        After its third launch a key waits for a minute, then for twice as long each time, at most
        half an hour.
        """
        if not self.retries_exhausted(key):
            return False
        doublings = min(self.tries[key] - _AT_ONCE, _MOST_DOUBLINGS)
        pause = min(_FIRST_PAUSE_SECONDS << doublings, _LONGEST_PAUSE_SECONDS)
        return self.looked_at < self.launched_at.get(key, 0) + pause

    def after(self, launched: Collection[str], due: Collection[str], runs: int) -> "LaunchCursor":
        """Remember launches; of other keys, what is known of those that are still due."""
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
    """The runs to ask for, and what to remember of them; `pausing` keys wait for another try."""

    requests: Sequence[dg.RunRequest]
    memory: LaunchCursor
    pausing: int = 0

    @property
    def quiet(self) -> str:
        """Return why nothing is launched."""
        if not self.pausing:
            return "nothing is due."
        return f"batches launched in vain that wait for the next try: {self.pausing}."


def launch_result(
    asset: PartitionedAsset,
    new_keys: Sequence[str],
    plan: LaunchPlan,
    events: Sequence[dg.AssetMaterialization | dg.AssetObservation],
    skip_reason: str,
) -> dg.SensorResult:
    """Return what a tick adds, launches and reports; `skip_reason` is used if that is nothing."""
    is_quiet = not (plan.requests or new_keys or events)
    return dg.SensorResult(
        run_requests=list(plan.requests),
        dynamic_partitions_requests=[asset.partitions.build_add_request(list(new_keys))],
        asset_events=[*events],
        cursor=plan.memory.cursor(),
        skip_reason=skip_reason if is_quiet else None,
    )


def plan_launches(
    instance: dg.DagsterInstance,
    stream: Stream,
    asset: PartitionedAsset,
    statuses: Iterable[BatchStatus],
    order: Sequence[str],
    memory: LaunchCursor,
) -> LaunchPlan:
    """Choose the due keys that no queued or running run has; `memory.looked_at` is now.

    `order` are the keys of the asset as Dagster has them, new ones at the end. At most
    `runs_at_once` runs that sensors launched wait or run, and no more statuses are read than it
    takes to fill them. A run has batches of one job only. A batch that three launches did not
    publish is launched after ever longer pauses, and in a run of its own if it was started: it
    may be what delays those behind it. While a run waits in the queue, the newest batches wait for
    more to fill another one: else a machine that is late is kept so by many small runs.
    """
    under_way = unfinished_runs(instance, asset)
    most = max(stream.dagster.runs_at_once - under_way.by_sensors, 0)
    if not most:
        return LaunchPlan(requests=[], memory=memory)
    taken = under_way.keys(order)
    chosen = RunGroups(order=order, most=most, size=stream.dagster.partitions_per_run)
    seen: list[str] = []
    is_all = True
    for status in statuses:
        key = asset.key_of(status.batch)
        if key in taken or not due_batches((status,), retry_failed=False):
            continue
        alone = memory.retries_exhausted(key) and status.state is BatchState.INTERRUPTED
        if not memory.is_early(key) and not chosen.takes(key, status.batch.job, alone=alone):
            is_all = False
            break
        seen.append(key)
    if is_all and under_way.is_one_waiting:
        chosen.leave_open()
    launched = {key for group in chosen.groups for key in group}
    still_due = [*seen, *(key for key in memory.tries if key in taken)]
    if not is_all:
        still_due += _later(memory.tries, seen, order)
    return LaunchPlan(
        requests=[
            _request(stream, asset, group, memory, place, ahead=under_way.by_sensors + place - 1)
            for place, group in enumerate(chosen.groups, start=1)
        ],
        memory=memory.after(launched, still_due, len(chosen.groups)),
        pausing=sum(memory.is_early(key) for key in seen),
    )


@dataclass(slots=True, kw_only=True)
class RunGroups:
    """At most `most` groups of at most `size` neighbours, as `group_neighbours` does."""

    order: Sequence[str]
    most: int
    size: int
    groups: list[list[str]] = field(default_factory=list)
    _job: str | None = None

    def takes(self, key: str, job: str, *, alone: bool = False) -> bool:
        """Take a key, the next one of those that wait; False when that takes one more run.

        One that is to be `alone` has its group for itself.
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
        """Take the last group back unless it is full."""
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
    memory: LaunchCursor,
    place: int,
    *,
    ahead: int,
) -> dg.RunRequest:
    first, last = group[0], group[-1]
    is_backfill = asset.kind is JobKind.BACKFILL
    rank = priority(memory.looked_at, ahead=ahead, is_backfill=is_backfill)
    return dg.RunRequest(
        run_key=f"{asset.set_name}:{first}:{last}:{memory.runs + place}",
        job_name=asset.job,
        tags={
            LAUNCH_TAG: "new",
            MAX_RETRIES_TAG: "0",  # what a run that died leaves is launched from here
            **asset.tags_of(first),
            **run_tags(stream, first, last),
            PRIORITY_TAG: str(rank),
        },
    )
