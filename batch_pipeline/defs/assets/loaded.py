"""The asset whose partitions are a stream's batches in its targets.

Sensors load what is due with a Dagster job of their own, in the order of publishing and with late
arrivals and backfills. A person who materializes partitions here wants these, once more if need be.
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
from batch_pipeline.defs.names import batches_key, group, loaded_key, partitions
from batch_pipeline.defs.partitions import batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import FilesRemovedError, LoadRunningError, PipelineError
from batch_pipeline.model.load import PostgresTarget, Target
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.load import Outcome

Context = dg.AssetExecutionContext | dg.OpExecutionContext
_MOST_WAITS = 120
_PAUSE_SECONDS = 15


def loaded_asset(stream: Stream) -> dg.AssetsDefinition:
    """The batches of a stream in its targets. Materializing a partition loads its batch again."""
    names = [target.name for target in stream.targets]

    @dg.asset(
        key=loaded_key(stream),
        deps=[batches_key(stream)],
        partitions_def=partitions(stream),
        backfill_policy=dg.BackfillPolicy.multi_run(stream.dagster.partitions_per_run),
        dagster_type=NOTHING,
        output_required=False,
        kinds={
            "postgres" if isinstance(one, PostgresTarget) else "singer" for one in stream.targets
        },
        description=f"Batches of {stream.name} as acknowledged by {', '.join(names)}.",
        group_name=group(stream),
        owners=[*stream.dagster.owners],
        tags=dict(stream.dagster.tags),
    )
    def loaded(
        context: dg.AssetExecutionContext, pipeline: PipelineResource
    ) -> Iterator[dg.Output[None]]:
        parts = pipeline.pipeline
        with Materializations(context) as loads:
            try:
                labels = _published(parts.database, stream, context.partition_keys)
            except PipelineError as error:
                raise infrastructure_failure(context, error) from error
            _void(context, parts.database, stream, labels)
            load_into_targets(context, parts, stream, only=labels, loads=loads)
            output = loads.output()
        if output is not None:
            yield output

    return loaded


def load_into_targets(
    context: Context,
    pipeline: Pipeline,
    stream: Stream,
    *,
    only: Collection[str] | None = None,
    loads: Materializations | None = None,
) -> None:
    """Load what is due of a stream into its targets; `only` are names of batches.

    Batches that all targets have are reported to `loads`, without it by events.

    Neither a batch nor a target that fails stops the others. While somebody else loads into one,
    and nothing else is wrong, the step waits.

    Raises:
        Failure: with what failed.
        RetryRequested: the surroundings may come back, or somebody else loads.
    """
    came_to, targets = _CameTo(), [target.name for target in stream.targets]
    try:
        before = pipeline.database.loads.cursor(stream.name, targets)
        for target in stream.targets:
            try:
                for outcome in pipeline.load_pending(
                    stream, target, run_id=context.run.run_id, only=only
                ):
                    _note(context, came_to, target, outcome)
            except PipelineError as error:
                context.log.info(str(error))
                came_to.stops.append(error)
        _report(context, pipeline.database, stream, loads, before)
    except PipelineError as error:
        came_to.stops.append(error)
    _judge(context, came_to)


def _report(
    context: Context,
    database: Database,
    stream: Stream,
    loads: Materializations | None,
    before: int,
) -> None:
    """Report the batches that all targets have, one of them by a load of this run.

    Steps that wait for this one need an event for each partition, also for those that a run which
    this one repeats has loaded; its loads are among the ones `before`.
    """
    is_awaited = loads is not None and loads.is_awaited
    runs = repeated(context.run) if is_awaited else {context.run.run_id}
    is_repeat = len(runs) > 1 or context.retry_number > 0
    after = 0 if is_awaited and is_repeat else before
    report = context.log_event if loads is None else loads.add
    targets = [target.name for target in stream.targets]
    for one in database.loads.in_all_targets(stream.name, targets, after):
        if not runs.isdisjoint(load.run_id for load in one.loads):
            report(loaded_materialization(stream, one))


@dataclass(frozen=True, slots=True)
class _CameTo:
    """What came of loads: batches that were tried, those that failed, and what stopped a target.

    `given_up` are targets that seem to be broken, so that no more batches were tried.
    """

    tried: set[str] = field(default_factory=set)
    failures: dict[str, PipelineError] = field(default_factory=dict)
    stops: list[PipelineError] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)


def _note(context: Context, came_to: _CameTo, target: Target, outcome: Outcome) -> None:
    label = outcome.loading.label
    came_to.tried.add(label)
    if outcome.loaded is not None:
        told = (target.name, label, outcome.loaded.records)
        context.log.info("%s: %s, records loaded: %d", *told)
    else:
        came_to.failures[f"{label} into {target.name}"] = outcome.error or WaitsError(label)
    if outcome.gives_up:
        came_to.given_up.append(target.name)
        seems = "%s seems to be broken: no more batches are tried, they are loaded by a later run."
        context.log.warning(seems, target.name)


def _judge(context: Context, came_to: _CameTo) -> None:
    """End the run as its loads ended; that somebody else loads is the least of it.

    Raises:
        Failure: with what failed.
        RetryRequested: the surroundings may come back, or somebody else loads.
    """
    broken = [error for error in came_to.stops if not isinstance(error, LoadRunningError)]
    broken += came_to.failures.values()
    if came_to.stops and broken:
        raise infrastructure_failure(context, *broken)
    if came_to.stops:
        raise dg.RetryRequested(max_retries=_MOST_WAITS, seconds_to_wait=_PAUSE_SECONDS)
    names = ", ".join(came_to.given_up)
    untried = f", or not tried since {names} seems to be broken" if names else ""
    raise_failures(came_to.failures, len(came_to.tried), done=f"loaded{untried}")


def _void(
    context: dg.AssetExecutionContext, database: Database, stream: Stream, labels: Collection[str]
) -> None:
    """Mark batches to be loaded again into all targets.

    A try that is repeated leaves alone what this run, or one that it repeats, has loaded already.

    Raises:
        Failure: with those whose files are gone; the others are loaded by the next run.
    """
    gone: list[PipelineError] = []
    own = repeated(context.run)
    for label in labels:
        try:
            for target in stream.targets:
                database.loads.void(stream.name, target.name, [label], but_of_runs=own)
        except FilesRemovedError as error:
            gone.append(error)
        except PipelineError as error:
            raise infrastructure_failure(context, error) from error
    if gone:
        left = len(labels) - len(gone)
        others = f" Other batches, loaded by the next load: {left}." if left else ""
        raise dg.Failure("; ".join(map(str, gone)) + others, allow_retries=False)


def _published(database: Database, stream: Stream, keys: Collection[str]) -> list[str]:
    """Return the names of the batches of partition keys.

    Raises:
        Failure: some of them are not published; nothing was loaded.
    """
    asset = batches_of(stream)
    every = [asset.find(database, key) for key in keys]
    missing = [one.label for one in every if database.manifests.of_batch(one) is None]
    if missing:
        raise dg.Failure(
            f"{', '.join(missing)} is not published, so there is nothing to load; nothing was. "
            f"Materialize it in {asset.asset_key.to_user_string()} first, or leave it out.",
            allow_retries=False,
        )
    return [one.label for one in every]
