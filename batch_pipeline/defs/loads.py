"""Loading a stream's batches into its targets: the asset, the Dagster job and the sensor.

The sensor launches a Dagster job, which loads pending batches in the order of publishing, those of
late arrivals and backfills included. Materializing partitions of the asset loads these batches,
again if they were loaded before.

A tick without new publishes or loads executes a few short queries. Batches that were requested
again, but not loaded, are found every ten minutes.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs import names
from batch_pipeline.defs.jobs import op_job
from batch_pipeline.defs.metadata import generation_of, loaded_materialization, loading_runs
from batch_pipeline.defs.partition_events import (
    NOTHING,
    Context,
    Materializations,
    WaitsError,
    ensure_own_location,
    infrastructure_failure,
    raise_failures,
    repeated_runs,
)
from batch_pipeline.defs.partitions import batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.runs import priority, sensor_status, unfinished_runs
from batch_pipeline.defs.sensors import SensorCursor, check_code_location
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import FilesRemovedError, LoadRunningError, PipelineError
from batch_pipeline.model.load import LoadedGeneration, PostgresTarget, Target
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.load import Outcome
from batch_pipeline.pipeline.reconcile import CheckedInventory, ensure_inventory_current

_MAX_WAITS = 120
_PAUSE_SECONDS = 15
_INTERVAL_SECONDS = 10
_MAX_EVENTS = 500
_MOST_QUIET_SECONDS = 600
_FIRST_PAUSE_SECONDS = 600
_LONGEST_PAUSE_SECONDS = 86_400
_ALL_LOADED = "everything that is published is loaded."


def loaded_asset(stream: Stream) -> dg.AssetsDefinition:
    """Build the asset; materializing a partition loads its batch into all targets again."""
    targets = ", ".join(target.name for target in stream.targets)

    @dg.asset(
        key=names.loaded_key(stream),
        deps=[names.batches_of(stream.name)],
        partitions_def=names.partitions_of(stream.name),
        backfill_policy=dg.BackfillPolicy.multi_run(stream.dagster.partitions_per_run),
        dagster_type=NOTHING,
        output_required=False,
        kinds={
            "postgres" if isinstance(target, PostgresTarget) else "singer"
            for target in stream.targets
        },
        description=f"Batches of {stream.name} as acknowledged by {targets}.",
        group_name=names.group(stream),
        owners=[*stream.dagster.owners],
        tags=dict(stream.dagster.tags),
    )
    def loaded(
        context: dg.AssetExecutionContext, batch_pipeline: PipelineResource
    ) -> Iterator[dg.Output[None]]:
        pipeline = batch_pipeline.pipeline
        with Materializations(context) as events:
            ensure_own_location(context, stream)
            try:
                labels = _published_labels(pipeline.database, stream, context.partition_keys)
            except PipelineError as error:
                raise infrastructure_failure(context, error) from error
            _void(context, pipeline.database, stream, labels)
            load_into_targets(context, pipeline, stream, only=labels, events=events)
            yield from events.output()

    return loaded


def load_into_targets(
    context: Context,
    pipeline: Pipeline,
    stream: Stream,
    *,
    only: Collection[str] | None = None,
    events: Materializations | None = None,
) -> None:
    """Load the pending batches of a stream into its targets; `only` has labels of batches.

    Batches that all targets have are added to `events`, or logged without it. A batch or a target
    that fails does not stop the others. If another run is loading, and nothing else is wrong, the
    step waits.

    Raises:
        Failure: a batch or target failed.
        RetryRequested: the infrastructure failed and may recover, or another run is loading.
    """
    result, targets = _LoadResult(), [target.name for target in stream.targets]
    try:
        before = pipeline.database.loads.cursor(stream.name, targets)
        for target in stream.targets:
            try:
                for outcome in pipeline.load_pending(
                    stream, target, run_id=context.run.run_id, only=only
                ):
                    result.add(context, target, outcome)
            except PipelineError as error:
                context.log.info(str(error))
                result.stops.append(error)
        _report(context, pipeline.database, stream, events, before, only=only or ())
    except PipelineError as error:
        result.stops.append(error)
    result.raise_failures(context)


def _report(
    context: Context,
    database: Database,
    stream: Stream,
    events: Materializations | None,
    before: int,
    *,
    only: Collection[str],
) -> None:
    """Report the batches that all targets have and that this run loaded into one of them.

    Downstream steps of the run, and the Dagster backfill that launched it, need an event for each
    partition, including those in `only` that another run loaded before this one could, and those
    loaded by a run that this run repeats: the ids of its loads are at most `before`.
    """
    is_awaited = events is not None and events.is_awaited
    runs = {*repeated_runs(context)}
    is_repeat = len(runs) > 1 or context.retry_number > 0
    after = 0 if is_repeat else before
    report = context.log_event if events is None else events.add
    targets = [target.name for target in stream.targets]
    for loaded in database.loads.in_all_targets(stream.name, targets, after):
        if loaded.label not in only and runs.isdisjoint(load.run_id for load in loaded.loads):
            continue
        if is_repeat and not is_awaited and _is_materialized(context.instance, stream, loaded):
            continue
        report(loaded_materialization(stream, loaded))


@dataclass(frozen=True, slots=True)
class _LoadResult:
    """Result of a run's loads: batches tried and failed, and errors that stopped a target.

    `broken_targets` are those for which no more batches were tried.
    """

    tried: set[str] = field(default_factory=set)
    failures: dict[str, PipelineError] = field(default_factory=dict)
    stops: list[PipelineError] = field(default_factory=list)
    broken_targets: list[str] = field(default_factory=list)

    def add(self, context: Context, target: Target, outcome: Outcome) -> None:
        """Add the outcome of a batch, and log it."""
        label = outcome.loading.label
        self.tried.add(f"{label} into {target.name}")
        if outcome.loaded is not None:
            loaded = (target.name, label, outcome.loaded.records)
            context.log.info("%s: %s, records loaded: %d", *loaded)
        else:
            self.failures[f"{label} into {target.name}"] = outcome.error or WaitsError(label)
        if outcome.gives_up:
            self.broken_targets.append(target.name)
            text = "%s seems to be broken: a later run loads the other batches."
            context.log.warning(text, target.name)

    def raise_failures(self, context: Context) -> None:
        """Raise the exception with which the run ends, if loads failed.

        Raises:
            Failure: a batch or target failed.
            RetryRequested: the infrastructure failed and may recover, or another run is loading.
        """
        errors = [error for error in self.stops if not isinstance(error, LoadRunningError)]
        errors += self.failures.values()
        if self.stops and errors:
            raise infrastructure_failure(context, *errors)
        if self.stops:
            retry = dg.RetryRequested(max_retries=_MAX_WAITS, seconds_to_wait=_PAUSE_SECONDS)
            raise retry from self.stops[0]  # Dagster shows it after the last retry
        broken = ", ".join(self.broken_targets)
        untried = f", or not tried since {broken} seems to be broken" if broken else ""
        raise_failures(self.failures, len(self.tried), done=f"loaded{untried}")


def _void(
    context: dg.AssetExecutionContext, database: Database, stream: Stream, labels: Collection[str]
) -> None:
    """Mark batches as pending for all targets.

    A repeated run skips batches that it, or a run that it repeats, has loaded.

    Raises:
        Failure: files of some batches were deleted; the next run loads the others.
    """
    errors: list[PipelineError] = []
    runs = repeated_runs(context)
    for label in labels:
        try:
            for target in stream.targets:
                database.loads.void(stream.name, target.name, [label], but_of_runs=runs)
        except FilesRemovedError as error:
            errors.append(error)
        except PipelineError as error:
            raise infrastructure_failure(context, error) from error
    if errors:
        left = len(labels) - len(errors)
        others = f" Other batches, loaded by the next load: {left}." if left else ""
        raise dg.Failure("; ".join(map(str, errors)) + others, allow_retries=False)


def _published_labels(database: Database, stream: Stream, keys: Collection[str]) -> list[str]:
    """Return the labels of the batches of partition keys, and of those to load after them.

    Raises:
        Failure: some of them are not published; nothing was loaded.
    """
    asset = batches_of(stream)
    batches = [asset.find(database, key) for key in keys]
    missing = [
        asset.key_of(batch) for batch in batches if database.manifests.of_batch(batch) is None
    ]
    if missing:
        raise dg.Failure(
            f"Not published, so there is nothing to load: {', '.join(missing)}. Nothing was "
            f"loaded. Materialize the partitions in {asset.asset_key.to_user_string()} first, or "
            f"leave them out.",
            allow_retries=False,
        )
    return database.loads.with_later(stream.name, [asset.key_of(batch) for batch in batches])


def load_due_job(stream: Stream) -> dg.JobDefinition:
    """Build the Dagster job that loads the pending batches of a stream into its targets."""

    @dg.op(name=f"{names.load_job(stream)}_due", out=dg.Out(dg.Nothing))
    def load_due(context: dg.OpExecutionContext, batch_pipeline: PipelineResource) -> None:
        ensure_own_location(context, stream)
        load_into_targets(context, batch_pipeline.pipeline, stream)

    return op_job(
        names.load_job(stream),
        load_due,
        f"Loads published batches of {stream.name} that its targets do not have yet, in the "
        f"order of publishing, and materializes {names.loaded_key(stream).to_user_string()}.",
        tags={names.STREAM_TAG: stream.name},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCursor(SensorCursor):
    """The cursor of the sensor.

    `runs` counts the requested runs. `published` has the publish counts of the stream's jobs at the
    last tick, at `looked_at`; `is_quiet` is true if nothing was due then. All loads up to `mark`
    into `targets` (None: in a cursor of an earlier release) are materialized in Dagster. `loaded`
    and `due` are the counts at the last launch, at `launched_at`; `failures` is the number of
    launches in a row that loaded nothing. These four are 0 if everything is loaded or something was
    published since. Times are seconds since 1970.
    """

    runs: int = 0
    published: Mapping[str, int] = field(default_factory=dict)
    mark: int = 0
    targets: Sequence[str] | None = None
    is_quiet: bool = False
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
        """Return the cursor without the last launch: other batches are pending, even if as many."""
        return replace(self, loaded=0, due=0, failures=0, launched_at=0)


def loads_sensor(stream: Stream) -> dg.SensorDefinition:
    """Build the sensor. Any tick may be repeated or lost."""
    checked = CheckedInventory()  # of this process

    @dg.sensor(
        name=names.load_job(stream),
        job_name=names.load_job(stream),
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=sensor_status(stream),
        description=f"Launches loads of {stream.name} into its targets.",
    )
    def loads(
        context: dg.SensorEvaluationContext, batch_pipeline: PipelineResource
    ) -> dg.SensorResult | dg.SkipReason:
        pipeline, cursor = batch_pipeline.pipeline, LoadCursor.of_cursor(context.cursor)
        try:
            ensure_inventory_current(pipeline.database, stream, checked)
            return _tick(context, pipeline, stream, cursor)
        except PipelineError as error:
            return dg.SkipReason(str(error))

    return loads


def _tick(
    context: dg.SensorEvaluationContext, pipeline: Pipeline, stream: Stream, cursor: LoadCursor
) -> dg.SensorResult:
    instance, loads, now = context.instance, pipeline.database.loads, time.time()
    targets = sorted(target.name for target in stream.targets)
    if cursor.targets not in (None, targets):
        cursor = replace(cursor, mark=0)  # batches that only a removed target did not have
    counts = pipeline.database.change_feed.publish_counts(stream.name)
    published = {str(job): count for job, count in counts.items()}
    is_same = published == cursor.published and loads.cursor(stream.name, targets) == cursor.mark
    if cursor.is_quiet and is_same and now - cursor.looked_at < _MOST_QUIET_SECONDS:
        return dg.SensorResult(skip_reason=_ALL_LOADED, cursor=cursor.cursor())
    check_code_location(context, pipeline, stream, cursor, now)
    if unfinished_runs(
        instance, names.load_job(stream), names.loaded_key(stream), or_repeated=True
    ).runs:
        return dg.SensorResult(skip_reason="a load is running.", cursor=cursor.cursor())
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
        launched or cursor,
        published=published,
        mark=mark,
        targets=targets,
        is_quiet=not due,
        looked_at=now,
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

    The run of the event does not matter: a run that repeats another reports the loads of both.
    """
    of_key = dg.AssetRecordsFilter(
        asset_key=names.loaded_key(stream), asset_partitions=[loaded.label]
    )
    records = instance.fetch_materializations(of_key, limit=len(loaded.loads)).records
    return any(
        generation_of(event) == loaded.generation and loaded.loads[-1].run_id in loading_runs(event)
        for event in (record.asset_materialization for record in records)
    )


def _request(stream: Stream, cursor: LoadCursor) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=f"{stream.name}:load:{cursor.runs}:{cursor.launched_at:.0f}",
        tags={
            names.STREAM_TAG: stream.name,
            names.MAX_RETRIES_TAG: "0",
            # As for new files: below them, loads would never run on a machine with a backlog.
            names.PRIORITY_TAG: str(priority(cursor.launched_at)),
        },
    )
