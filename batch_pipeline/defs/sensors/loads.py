"""The sensor of a stream's targets: what is published is loaded, what is loaded turns green.

A tick that finds nothing published or loaded since the last one asks two short questions. What
somebody has asked for again, and not loaded, is found by a look that is due every ten minutes.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.metadata import generation_of, loaded_materialization, loading_runs
from batch_pipeline.defs.names import (
    MAX_RETRIES_TAG,
    PRIORITY_TAG,
    STREAM_TAG,
    load_job,
    loaded_key,
)
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.sensors.run_requests import (
    UNFINISHED,
    SensorCursor,
    materializes,
    priority,
    runs_about_to_be_repeated,
)
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.load import LoadedGeneration, TargetStatus
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.restore_check import CheckedInventory, ensure_inventory_current

_INTERVAL_SECONDS = 10
_MOST_EVENTS = 500
_MOST_QUIET_SECONDS = 600
_FIRST_PAUSE_SECONDS = 600
_LONGEST_PAUSE_SECONDS = 86_400
_NOTHING = "everything that is published is loaded."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCursor(SensorCursor):
    """State of the sensor, kept between ticks.

    `runs` counts what it has asked for. `published` are the publish counts of the stream's jobs
    when it looked last, and `mark` is the load up to which Dagster has heard of everything;
    `is_quiet` tells that nothing was left to do then, at `looked_at`. `loaded` and `due` were
    counted at the last launch, at `launched_at`, which is one of `failures` in a row that brought
    nothing; all four are 0 once everything is loaded, or something was published since. Times are
    seconds since 1970.
    """

    runs: int = 0
    published: Mapping[str, int] = field(default_factory=dict)
    mark: int = 0
    is_quiet: bool = False
    looked_at: float = 0
    loaded: int = 0
    due: int = 0
    failures: int = 0
    launched_at: float = 0

    def launched(self, loaded: int, due: int, now: float) -> "LoadCursor | None":
        """Return the cursor after a launch; None if it is too early to repeat it."""
        in_vain = bool(self.launched_at) and (loaded, due) == (self.loaded, self.due)
        failures = self.failures + 1 if in_vain else 0
        pause = min(_FIRST_PAUSE_SECONDS * 2.0**self.failures, _LONGEST_PAUSE_SECONDS)
        if in_vain and now - self.launched_at < pause:
            return None
        return replace(
            self,
            runs=self.runs + 1,
            loaded=loaded,
            due=due,
            failures=failures,
            launched_at=now,
        )

    def settled(self) -> "LoadCursor":
        """Forget the last launch: what is due next is something else, however alike it looks."""
        return replace(self, loaded=0, due=0, failures=0, launched_at=0)


def loads_sensor(stream: Stream) -> dg.SensorDefinition:
    """Load what is published, and report loads that Dagster does not know. Safe to repeat."""
    checked = CheckedInventory()  # of the process that evaluates the sensor; a new one starts anew

    @dg.sensor(
        name=load_job(stream),
        job_name=load_job(stream),
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Launches loads of {stream.name} into its targets.",
    )
    def loads(
        context: dg.SensorEvaluationContext, pipeline: PipelineResource
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            ensure_inventory_current(pipeline.pipeline.database, stream, checked)
            return _look(pipeline.pipeline, stream, context.instance, context.cursor)
        except PipelineError as error:
            return dg.SkipReason(str(error))

    return loads


def _look(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance, cursor: str | None
) -> dg.SensorResult:
    memory, loads, now = LoadCursor.of_cursor(cursor), pipeline.database.loads, time.time()
    targets = [target.name for target in stream.targets]
    counts = pipeline.database.change_feed.publish_counts(stream.name)
    published = {str(job): count for job, count in counts.items()}
    is_same = published == memory.published and loads.cursor(stream.name, targets) == memory.mark
    if memory.is_quiet and is_same and now - memory.looked_at < _MOST_QUIET_SECONDS:
        return dg.SensorResult(skip_reason=_NOTHING, cursor=cursor)
    runs = [
        *instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)),
        *runs_about_to_be_repeated(instance),
    ]
    if any(materializes(instance, run, load_job(stream), loaded_key(stream)) for run in runs):
        return dg.SensorResult(skip_reason="a load is under way.", cursor=cursor)
    mark = loads.cursor(stream.name, targets)
    new = list(islice(loads.in_all_targets(stream.name, targets, memory.mark), _MOST_EVENTS))
    if len(new) == _MOST_EVENTS:
        mark = new[-1].mark
    unheard = [one for one in new if not _is_heard(instance, stream, one)]
    target_statuses = loads.target_statuses(stream.name, targets)
    due, loaded = (
        sum(one.due for one in target_statuses),
        sum(one.loaded for one in target_statuses),
    )
    known = memory if due and published == memory.published else memory.settled()
    launched = known.launched(loaded, due, now) if due else None
    after = replace(
        launched or known, published=published, mark=mark, is_quiet=not due, looked_at=now
    )
    requests = [] if launched is None else [_request(stream, launched)]
    said = f"Loads that wait after failures: {due}: {_error(target_statuses)}" if due else _NOTHING
    return dg.SensorResult(
        run_requests=requests,
        asset_events=[loaded_materialization(stream, one) for one in unheard],
        cursor=after.cursor(),
        skip_reason=None if requests or unheard else said,
    )


def _is_heard(instance: dg.DagsterInstance, stream: Stream, one: LoadedGeneration) -> bool:
    """Return whether an event of a batch includes its newest load of that generation.

    Not the run of the event: a run that repeats another one reports the loads of both.
    """
    records = dg.AssetRecordsFilter(asset_key=loaded_key(stream), asset_partitions=[one.label])
    found = instance.fetch_materializations(records, limit=len(one.loads)).records
    return any(
        generation_of(event) == one.generation and one.loads[-1].run_id in loading_runs(event)
        for event in (record.asset_materialization for record in found)
    )


def _request(stream: Stream, memory: LoadCursor) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=f"{stream.name}:load:{memory.runs}:{memory.launched_at:.0f}",
        # Behind all new files, it would never come to its turn on a machine that is late.
        tags={
            STREAM_TAG: stream.name,
            MAX_RETRIES_TAG: "0",
            PRIORITY_TAG: str(priority(memory.launched_at)),
        },
    )


def _error(target_statuses: Sequence[TargetStatus]) -> str:
    return next(
        (one.error for one in target_statuses if one.error is not None), "no reason is known"
    )
