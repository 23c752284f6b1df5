"""The asset whose partitions are a stream's batches in its targets.

Sensors launch a Dagster job of its own, which loads pending batches in the order of publishing,
those of late arrivals and backfills included. Materializing partitions loads these batches, again
if they were loaded before.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.assets.batches import raise_failures
from batch_pipeline.defs.assets.partition_events import (
    NOTHING,
    Materializations,
    WaitsError,
    infrastructure_failure,
    repeated,
)
from batch_pipeline.defs.metadata import loaded_materialization
from batch_pipeline.defs.names import batches_key, group, loaded_key, partitions_of
from batch_pipeline.defs.partitions import batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import FilesRemovedError, LoadRunningError, PipelineError
from batch_pipeline.model.load import PostgresTarget, Target
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.load import Outcome

Context = dg.AssetExecutionContext | dg.OpExecutionContext
_MAX_WAITS = 120
_PAUSE_SECONDS = 15


def loaded_asset(stream: Stream) -> dg.AssetsDefinition:
    """Build the asset; materializing a partition loads its batch into all targets again."""
    names = [target.name for target in stream.targets]

    @dg.asset(
        key=loaded_key(stream),
        deps=[batches_key(stream)],
        partitions_def=partitions_of(stream.name),
        backfill_policy=dg.BackfillPolicy.multi_run(stream.dagster.partitions_per_run),
        dagster_type=NOTHING,
        output_required=False,
        kinds={
            "postgres" if isinstance(target, PostgresTarget) else "singer"
            for target in stream.targets
        },
        description=f"Batches of {stream.name} as acknowledged by {', '.join(names)}.",
        group_name=group(stream),
        owners=[*stream.dagster.owners],
        tags=dict(stream.dagster.tags),
    )
    def loaded(
        context: dg.AssetExecutionContext, batch_pipeline: PipelineResource
    ) -> Iterator[dg.Output[None]]:
        pipeline = batch_pipeline.pipeline
        with Materializations(context) as events:
            try:
                labels = _published_labels(pipeline.database, stream, context.partition_keys)
            except PipelineError as error:
                raise infrastructure_failure(context, error) from error
            _void(context, pipeline.database, stream, labels)
            load_into_targets(context, pipeline, stream, only=labels, events=events)
            output = events.output()
        if output is not None:
            yield output

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
        Failure: with what failed.
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
        _report(context, pipeline.database, stream, events, before)
    except PipelineError as error:
        result.stops.append(error)
    result.raise_failures(context)


def _report(
    context: Context,
    database: Database,
    stream: Stream,
    events: Materializations | None,
    before: int,
) -> None:
    """Report the batches that all targets have and that this run loaded into one of them.

    Downstream steps of the run need an event for each partition, also for those that a run which
    this one repeats has loaded: its loads have ids up to `before`.
    """
    is_awaited = events is not None and events.is_awaited
    runs = repeated(context.run) if is_awaited else {context.run.run_id}
    is_repeat = len(runs) > 1 or context.retry_number > 0
    after = 0 if is_awaited and is_repeat else before
    report = context.log_event if events is None else events.add
    targets = [target.name for target in stream.targets]
    for loaded in database.loads.in_all_targets(stream.name, targets, after):
        if not runs.isdisjoint(load.run_id for load in loaded.loads):
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
        self.tried.add(label)
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
        """End the run as its loads ended.

        Raises:
            Failure: with what failed.
            RetryRequested: the infrastructure failed and may recover, or another run is loading.
        """
        errors = [error for error in self.stops if not isinstance(error, LoadRunningError)]
        errors += self.failures.values()
        if self.stops and errors:
            raise infrastructure_failure(context, *errors)
        if self.stops:
            raise dg.RetryRequested(max_retries=_MAX_WAITS, seconds_to_wait=_PAUSE_SECONDS)
        names = ", ".join(self.broken_targets)
        untried = f", or not tried since {names} seems to be broken" if names else ""
        raise_failures(self.failures, len(self.tried), done=f"loaded{untried}")


def _void(
    context: dg.AssetExecutionContext, database: Database, stream: Stream, labels: Collection[str]
) -> None:
    """Mark batches as pending for all targets.

    A repeated run leaves alone what it, or the run that it repeats, has loaded.

    Raises:
        Failure: files of some batches were deleted; the next run loads the others.
    """
    errors: list[PipelineError] = []
    runs = repeated(context.run)
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
    """Return the labels of the batches of partition keys.

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
    return [asset.key_of(batch) for batch in batches]
