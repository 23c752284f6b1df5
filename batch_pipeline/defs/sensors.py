"""Sensors that launch batches, follow the ends of runs, and watch the stream files.

A tick that launches compares the inventory with Dagster and launches what is due, so that any tick
may be repeated, or lost in a crash. `dagster.yaml` limits how many runs execute at a time.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Self
from uuid import UUID

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.config.stream_file import invalid_files_error, load_valid_streams
from batch_pipeline.defs import names
from batch_pipeline.defs.checks import evaluate_file_checks
from batch_pipeline.defs.instance.code_locations import ensure_only_location
from batch_pipeline.defs.instance.private_api import location_of_sensor
from batch_pipeline.defs.metadata import (
    backfill_observation,
    changed_observation,
    discovery_materialization,
    discovery_metadata,
    stream_observation,
)
from batch_pipeline.defs.partition_sync import PartitionSync, SyncPlan, TickResult
from batch_pipeline.defs.partitions import (
    KeyOrder,
    PartitionedAsset,
    RunGroups,
    backfills_of,
    batches_of,
)
from batch_pipeline.defs.resources import (
    PipelineResource,
    landing_filesystem,
    landing_resources,
)
from batch_pipeline.defs.runs import (
    cancel_batches,
    cancel_batches_since,
    close_silent_runs,
    default_status,
    ended_runs,
    priority,
    sensor_status,
    unfinished_runs,
)
from batch_pipeline.model.backfill import Progress
from batch_pipeline.model.batch import BatchState, BatchStatus, due_batches
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.stream import Automation, Stream

NEW_FILES_SECONDS = 4  # the daemon evaluates sensors every 5 s: more would skip every other tick
_PLANNED_SECONDS = 30
_RUN_ENDS_SECONDS = 10
_STREAM_FILES_SECONDS = 60
_FAILED = "its run failed without closing it"
_Event = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorCursor:
    """The cursor of a sensor, stored as JSON; each field has a default."""

    looked_at: float = 0

    @classmethod
    def of_cursor(cls, cursor: str | None) -> Self:
        """Parse a cursor; one of another release, or that a person has edited, is ignored."""
        with suppress(ValueError, TypeError):
            return cls(**json.loads(cursor or "{}"))
        return cls()

    def cursor(self) -> str:
        """Format the cursor."""
        return json.dumps(asdict(self))


def check_code_location(
    context: dg.SensorEvaluationContext,
    pipeline: Pipeline,
    stream: Stream,
    cursor: SensorCursor,
    now: float,
) -> None:
    """Check that no other code location launches the stream: in the first tick, and once a minute.

    Logs a warning if another Dagster instance encodes it.

    Raises:
        ConfigurationError: another code location launches it.
    """
    if now // 60 == cursor.looked_at // 60:  # the check reads the states of all sensors
        return
    instance = context.instance
    ensure_only_location(instance, stream, location_of_sensor(context), now)
    recent = pipeline.database.change_feed.recent_runs(stream.name)
    foreign = (run for run in recent if _is_uuid(run) and instance.get_run_by_id(run) is None)
    for run in islice(foreign, 1):
        context.log.warning(
            "Another Dagster instance encodes the stream %r in the same inventory: its run %s is "
            "not in this one. Each batch is published once all the same, but neither shows the "
            "runs of the other. Stop the sensors of one of the two.",
            stream.name,
            run,
        )


def _is_uuid(run_id: str) -> bool:
    """Return whether an id may be that of a Dagster run; programs choose their own ids."""
    with suppress(ValueError):
        return str(UUID(run_id)) == run_id
    return False


_AT_ONCE = 3
_FIRST_PAUSE_SECONDS = 60
_LONGEST_PAUSE_SECONDS = 1_800
_MOST_DOUBLINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCursor(SensorCursor):
    """The cursor of a sensor that launches batches.

    `runs` makes run keys unique: it counts the requested runs, from the time of the last tick, so
    that a reset of the cursor does not repeat keys. `tries` counts launches of keys that are still
    due, the last one at `launched_at`; `looked_at` is the time of the last tick, and `open_jobs`
    are the backfills that were unfinished then. `stream` names the stream to other code locations.
    Times are seconds since 1970.
    """

    runs: int = 0
    tries: Mapping[str, int] = field(default_factory=dict)
    launched_at: Mapping[str, float] = field(default_factory=dict)
    open_jobs: Sequence[str] = ()
    stream: str = ""

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
            runs=max(self.runs + runs, round(self.looked_at)),
            tries={key: count for key, count in tries.items() if count},
            launched_at={key: times[key] for key in due if key in times},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Runs to request, the cursor afterwards, and the number of keys that wait for a retry."""

    requests: Sequence[dg.RunRequest]
    cursor: LaunchCursor
    waiting: int = 0


def plan_launches(
    instance: dg.DagsterInstance,
    asset: PartitionedAsset,
    statuses: Iterable[BatchStatus],
    order: KeyOrder,
    cursor: LaunchCursor,
) -> LaunchPlan:
    """Choose the due keys that no queued or running run has; `cursor.looked_at` is now.

    `order` has the keys of the asset in Dagster's order, new ones at the end. At most
    `runs_at_once` runs that sensors launched are queued or running, and no more statuses are read
    than needed for that. A batch that is unpublished after three launches is launched with growing
    delays, and alone if it was started, as it may delay others. While a run is queued, a last
    group that is not full waits for more batches: many small runs would keep a machine that is
    behind from catching up.
    """
    statuses = iter(statuses)
    first = next(statuses, None)
    if first is None:  # without reading all runs
        return LaunchPlan(requests=[], cursor=cursor)
    rules, unfinished = asset.stream.dagster, unfinished_runs(instance, asset.job, asset.asset_key)
    most = max(rules.runs_at_once - unfinished.by_sensors, 0)
    if not most:
        return LaunchPlan(requests=[], cursor=cursor)
    taken = unfinished.keys(order)
    groups = RunGroups(order=order, most=most, size=rules.partitions_per_run)
    seen: list[str] = []
    is_complete = True
    for status in chain([first], statuses):
        key = status.key
        if key in taken or not due_batches((status,), retry_failed=False):
            continue
        alone = cursor.retries_exhausted(key) and status.state is BatchState.INTERRUPTED
        if not cursor.is_early(key) and not groups.takes(key, status.batch.job, alone=alone):
            is_complete = False
            break
        seen.append(key)
    if is_complete and unfinished.is_one_waiting:
        groups.leave_open()
    still_due = [*seen, *(key for key in cursor.tries if key in taken)]
    if not is_complete:  # keys after the examined ones may still be due
        last = max((order.positions.get(key, -1) for key in seen), default=-1)
        still_due += [key for key in cursor.tries if order.positions.get(key, -1) > last]
    return LaunchPlan(
        requests=[
            _request(asset, group, cursor, place, ahead=unfinished.by_sensors + place - 1)
            for place, group in enumerate(groups.groups, start=1)
        ],
        cursor=cursor.after(
            {key for group in groups.groups for key in group}, still_due, len(groups.groups)
        ),
        waiting=sum(cursor.is_early(key) for key in seen),
    )


def _request(
    asset: PartitionedAsset, group: Sequence[str], cursor: LaunchCursor, place: int, *, ahead: int
) -> dg.RunRequest:
    first, last = group[0], group[-1]
    is_backfill = JobKind.BACKFILL in asset.kinds
    rank = priority(cursor.looked_at, ahead=ahead, is_backfill=is_backfill)
    return dg.RunRequest(
        run_key=f"{asset.set_name}:{first}:{last}:{cursor.runs + place}",
        job_name=asset.job,
        tags={
            names.LAUNCH_TAG: "new",
            names.MAX_RETRIES_TAG: "0",  # the sensor launches the batches that a dead run leaves
            **asset.tags_of(first),
            **names.run_tags(asset.stream, first, last),
            names.PRIORITY_TAG: str(rank),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """The findings of a tick before it launches anything; `cursor` is that of this tick."""

    sync: SyncPlan
    cursor: LaunchCursor
    events: Sequence[_Event]
    before_reason: str = ""  # precedes the reason for launching nothing
    after_reasons: Sequence[str] = ()


def _launching_sensor(
    asset: PartitionedAsset,
    name: str,
    description: str,
    find: Callable[[dg.SensorEvaluationContext, Pipeline, LaunchCursor], _Findings],
    *,
    seconds: int = _PLANNED_SECONDS,
    resources: Set[str] = frozenset({names.PIPELINE_RESOURCE}),
) -> dg.SensorDefinition:
    """Build a sensor that launches the due batches of an asset; a tick calls `find` first."""
    stream = asset.stream

    @dg.sensor(
        name=f"{stream.identifier}_{name}",
        job_name=asset.job,
        minimum_interval_seconds=seconds,
        default_status=sensor_status(stream),
        description=description,
        required_resource_keys={*resources},
    )
    def launch(context: dg.SensorEvaluationContext, **_: object) -> dg.SensorResult | dg.SkipReason:
        # If the sensor is called directly, Dagster also passes the resources as arguments.
        pipeline: Pipeline = context.resources.batch_pipeline.pipeline
        cursor, now = LaunchCursor.of_cursor(context.cursor), time.time()
        try:
            check_code_location(context, pipeline, stream, cursor, now)
            cancel_batches_since(pipeline, context.instance, stream, cursor.looked_at)
            cursor = replace(cursor, looked_at=now)
            found = find(context, pipeline, replace(cursor, stream=stream.name))
            sync = found.sync
            plan = plan_launches(context.instance, asset, sync.statuses, sync.order, found.cursor)
        except PipelineError as error:
            context.update_cursor(cursor.cursor())
            return dg.SkipReason(str(error))
        waiting = f"batches that wait for another attempt: {plan.waiting}."
        reason = found.before_reason + (waiting if plan.waiting else "nothing to launch now.")
        is_empty = not (plan.requests or sync.new_keys or found.events)
        return dg.SensorResult(
            run_requests=list(plan.requests),
            dynamic_partitions_requests=[asset.partitions.build_add_request(list(sync.new_keys))],
            asset_events=[*found.events],
            cursor=plan.cursor.cursor(),
            skip_reason=" ".join([reason, *found.after_reasons]) if is_empty else None,
        )

    return launch


def new_files_sensor(stream: Stream) -> dg.SensorDefinition:
    """Build the sensor that registers new files, plans batches and launches them."""
    asset, is_own = batches_of(stream), stream.user_table is None
    state = PartitionSync(asset)  # of this process; a new process compares everything first

    def find(
        context: dg.SensorEvaluationContext, pipeline: Pipeline, cursor: LaunchCursor
    ) -> _Findings:
        filesystem = landing_filesystem(stream, context.resources)
        result = state.register_and_plan(pipeline, context.instance, filesystem=filesystem)
        for error in result.errors:
            context.log.warning(str(error))
        return _Findings(
            sync=result.sync,
            cursor=cursor,
            events=_discovery_events(pipeline, stream, result, context.instance),
            before_reason=f"Files known: {result.registered.found}, " if is_own else "",
            after_reasons=[str(error) for error in result.errors],
        )

    land = "Registers, plans and launches files that land in"
    action = land if is_own else "Plans and launches files that are listed in"
    description = f"{action} {stream.source.place}."
    resources = landing_resources(stream)
    return _launching_sensor(
        asset, "new_files", description, find, seconds=NEW_FILES_SECONDS, resources=resources
    )


def _discovery_events(
    pipeline: Pipeline, stream: Stream, result: TickResult, instance: dg.DagsterInstance
) -> list[_Event]:
    """Return the events for new files, for batches that Dagster lacks, and for a changed status.

    Raises:
        PipelineError: the user's table cannot be read.
    """
    unseen: list[_Event] = list(result.sync.unseen)
    is_own = stream.user_table is None
    if not (result.registered.new_items if is_own else result.planned.batches):
        return [*unseen, *changed_observation(pipeline, stream, instance)]
    status = stream_observation(pipeline, stream)
    metadata = discovery_metadata(result.registered, result.planned.batches, result.errors)
    checks = evaluate_file_checks(pipeline, stream)
    return [discovery_materialization(stream, metadata), *unseen, status, *checks]


def planned_sensor(stream: Stream) -> dg.SensorDefinition:
    """Build the sensor that launches batches of a stream whose files a schedule registers."""
    asset = batches_of(stream)
    state = PartitionSync(asset)

    def find(
        context: dg.SensorEvaluationContext, pipeline: Pipeline, cursor: LaunchCursor
    ) -> _Findings:
        pipeline.database.jobs.check_not_paused(stream.name)
        sync = state.reconcile_and_diff(pipeline, context.instance)
        changed = changed_observation(pipeline, stream, context.instance)
        return _Findings(sync=sync, cursor=cursor, events=[*sync.unseen, *changed])

    description = (
        f"Launches planned and interrupted batches of {stream.name}; the schedule registers new "
        f"files."
    )
    return _launching_sensor(asset, "planned", description, find)


def backfill_sensor(stream: Stream) -> dg.SensorDefinition:
    """Build the sensor that launches batches of backfills, however they were planned."""
    asset = backfills_of(stream)
    state = PartitionSync(asset)

    def find(
        context: dg.SensorEvaluationContext, pipeline: Pipeline, cursor: LaunchCursor
    ) -> _Findings:
        sync = state.reconcile_and_diff(pipeline, context.instance)
        open_jobs = pipeline.database.change_feed.open_backfills(stream.name)
        ended = _ended_backfills(pipeline, stream, {*cursor.open_jobs} - {*open_jobs})
        return _Findings(
            sync=sync,
            cursor=replace(cursor, open_jobs=open_jobs),
            events=[*sync.unseen, *(backfill_observation(stream, one) for one in ended)],
        )

    description = f"Launches batches of backfills of {stream.name}."
    return _launching_sensor(asset, "backfill", description, find)


def _ended_backfills(pipeline: Pipeline, stream: Stream, jobs: Set[str]) -> list[Progress]:
    """Return the progress of backfills that were open at the last tick and are finished."""
    if not jobs:
        return []
    progress = pipeline.database.backfills.of_stream(stream.name)
    return [one for one in progress if one.job in jobs and one.is_finished]


def run_ends_sensor(streams: Sequence[Stream]) -> dg.SensorDefinition:
    """Build the sensor; its cursor is the time of the last tick, in seconds since 1970."""

    @dg.sensor(
        name=names.RUN_ENDS_SENSOR,
        minimum_interval_seconds=_RUN_ENDS_SECONDS,
        default_status=sensor_status(*streams),
        description="Closes attempts of failed runs, and cancels batches of cancelled runs.",
    )
    def evaluate(
        context: dg.SensorEvaluationContext, batch_pipeline: PipelineResource
    ) -> dg.SkipReason:
        pipeline = batch_pipeline.pipeline
        now = time.time()
        since = now
        with suppress(ValueError):  # of a cursor that a person has edited
            since = float(context.cursor or now)
        ended = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
        closed = cancelled = 0
        try:
            run_ends = pipeline.database.run_ends
            close_silent_runs(pipeline, context.instance, now)
            for run in ended_runs(context.instance, since, *ended):
                if run.status is dg.DagsterRunStatus.CANCELED:
                    cancelled += cancel_batches(pipeline, context.instance, streams, run)
                elif names.DRAIN_TAG not in run.tags or not run_ends.is_working(run.run_id):
                    closed += run_ends.close_failed(run.run_id, _FAILED)
        except PipelineError as error:
            return dg.SkipReason(str(error))  # the next tick starts at the same time
        context.update_cursor(str(now))
        advice = " Materialize them, or run `batch-pipeline jobs retry JOB`." if cancelled else ""
        return dg.SkipReason(
            f"Attempts of failed runs closed: {closed}. Batches cancelled: {cancelled}.{advice}"
        )

    return evaluate


def stream_files_sensor(
    folder: Path, loaded: Mapping[str, Stream], automation: Automation
) -> dg.SensorDefinition:
    """Build the sensor; its ticks fail while a file is invalid, with file, line and problem."""

    @dg.sensor(
        name=names.STREAM_FILES_SENSOR,
        minimum_interval_seconds=_STREAM_FILES_SECONDS,
        default_status=default_status(automation),
        description=f"Reads the stream files in {folder}; fails while one is invalid.",
    )
    def stream_files() -> dg.SkipReason:
        streams, problems = load_valid_streams(folder)
        if problems:
            raise invalid_files_error(problems)
        every = sorted({*streams, *loaded})
        changed = [name for name in every if streams.get(name) != loaded.get(name)]
        if not changed:
            return dg.SkipReason(f"Streams without changes: {len(loaded)}.")
        return dg.SkipReason(
            f"Changed streams: {', '.join(changed)}. Reload the code location to apply the changes."
        )

    return stream_files
