"""Sensor of a stream's targets: it launches loads, and materializes what is loaded.

A tick without new publishes or loads executes two short queries. Batches that were asked for again,
but not loaded, are found every ten minutes.
"""

import time
from collections.abc import Mapping
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
    sensor_status,
)
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.load import LoadedGeneration
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.restore_check import CheckedInventory, ensure_inventory_current

_INTERVAL_SECONDS = 10
_MAX_EVENTS = 500
_MOST_QUIET_SECONDS = 600
_FIRST_PAUSE_SECONDS = 600
_LONGEST_PAUSE_SECONDS = 86_400
_ALL_LOADED = "everything that is published is loaded."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCursor(SensorCursor):
    """The cursor of the sensor.

    `runs` counts the requested runs. `published` are the publish counts of the stream's jobs at the
    last tick, `mark` is the load up to which all are materialized in Dagster, and `is_quiet` is
    true if nothing was due then, at `looked_at`. `loaded` and `due` were counted at the last
    launch, at `launched_at`; `failures` launches in a row loaded nothing. These four are 0 if
    everything is loaded or something was published since. Times are seconds since 1970.
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
        has_failed = bool(self.launched_at) and (loaded, due) == (self.loaded, self.due)
        failures = self.failures + 1 if has_failed else 0
        pause = min(_FIRST_PAUSE_SECONDS * 2.0**self.failures, _LONGEST_PAUSE_SECONDS)
        if has_failed and now - self.launched_at < pause:
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
        """Forget the last launch: the next pending batches are others, even if as many."""
        return replace(self, loaded=0, due=0, failures=0, launched_at=0)


def loads_sensor(stream: Stream) -> dg.SensorDefinition:
    """Build the sensor. Any tick may be repeated or lost."""
    checked = CheckedInventory()  # of this process

    @dg.sensor(
        name=load_job(stream),
        job_name=load_job(stream),
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=sensor_status(stream),
        description=f"Launches loads of {stream.name} into its targets.",
    )
    def loads(
        context: dg.SensorEvaluationContext, batch_pipeline: PipelineResource
    ) -> dg.SensorResult | dg.SkipReason:
        pipeline = batch_pipeline.pipeline
        try:
            ensure_inventory_current(pipeline.database, stream, checked)
            return _tick(pipeline, stream, context.instance, context.cursor)
        except PipelineError as error:
            return dg.SkipReason(str(error))

    return loads


def _tick(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance, text: str | None
) -> dg.SensorResult:
    cursor, loads, now = LoadCursor.of_cursor(text), pipeline.database.loads, time.time()
    targets = [target.name for target in stream.targets]
    counts = pipeline.database.change_feed.publish_counts(stream.name)
    published = {str(job): count for job, count in counts.items()}
    is_same = published == cursor.published and loads.cursor(stream.name, targets) == cursor.mark
    if cursor.is_quiet and is_same and now - cursor.looked_at < _MOST_QUIET_SECONDS:
        return dg.SensorResult(skip_reason=_ALL_LOADED, cursor=text)
    runs = [
        *instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)),
        *runs_about_to_be_repeated(instance),
    ]
    if any(materializes(instance, run, load_job(stream), loaded_key(stream)) for run in runs):
        return dg.SensorResult(skip_reason="a load is running.", cursor=text)
    mark = loads.cursor(stream.name, targets)
    new = list(islice(loads.in_all_targets(stream.name, targets, cursor.mark), _MAX_EVENTS))
    if len(new) == _MAX_EVENTS:
        mark = new[-1].mark
    missing = [loaded for loaded in new if not _is_materialized(instance, stream, loaded)]
    statuses = loads.target_statuses(stream.name, targets)
    due, loaded = sum(one.due for one in statuses), sum(one.loaded for one in statuses)
    if not due or published != cursor.published:
        cursor = cursor.settled()
    launched = cursor.launched(loaded, due, now) if due else None
    after = replace(
        launched or cursor, published=published, mark=mark, is_quiet=not due, looked_at=now
    )
    requests = [] if launched is None else [_request(stream, launched)]
    reason = _ALL_LOADED
    if due:
        errors = (status.error for status in statuses if status.error is not None)
        reason = f"Loads that wait after failures: {due}: {next(errors, 'reason unknown')}"
    return dg.SensorResult(
        run_requests=requests,
        asset_events=[loaded_materialization(stream, one) for one in missing],
        cursor=after.cursor(),
        skip_reason=None if requests or missing else reason,
    )


def _is_materialized(
    instance: dg.DagsterInstance, stream: Stream, loaded: LoadedGeneration
) -> bool:
    """Return whether an event of a batch includes its newest load of that generation.

    Not the run of the event: a run that repeats another one reports the loads of both.
    """
    of_key = dg.AssetRecordsFilter(asset_key=loaded_key(stream), asset_partitions=[loaded.label])
    records = instance.fetch_materializations(of_key, limit=len(loaded.loads)).records
    return any(
        generation_of(event) == loaded.generation and loaded.loads[-1].run_id in loading_runs(event)
        for event in (record.asset_materialization for record in records)
    )


def _request(stream: Stream, cursor: LoadCursor) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=f"{stream.name}:load:{cursor.runs}:{cursor.launched_at:.0f}",
        tags={
            STREAM_TAG: stream.name,
            MAX_RETRIES_TAG: "0",
            # That of new files: below them, a load would never run on a machine that is behind.
            PRIORITY_TAG: str(priority(cursor.launched_at)),
        },
    )
