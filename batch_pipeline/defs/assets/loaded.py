"""The asset whose partitions are a stream's batches in its targets.

Sensors load what is due with a Dagster job of their own, in the order of publishing and with late
arrivals and backfills. A person who materializes partitions here wants these, once more if need be.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import dagster as dg

from batch_pipeline.defs.assets.encoded import raise_failures
from batch_pipeline.defs.assets.repeats import surroundings_failed
from batch_pipeline.defs.metadata import loaded_materialization
from batch_pipeline.defs.names import batches_key, group, loaded_key, partitions
from batch_pipeline.defs.partitioned import batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.rolled_up import keys_within
from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.errors import (
    BatchDataError,
    FilesRemovedError,
    LoadRunningError,
    PipelineError,
    UnknownBatchError,
)
from batch_pipeline.domain.stream import Stream
from batch_pipeline.domain.target import PostgresTarget
from batch_pipeline.inventory.database import Database
from batch_pipeline.settings.loading import load_due
from batch_pipeline.settings.pipeline import Pipeline

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
        try:
            labels = _published(parts.database, stream, context.partition_keys)
        except PipelineError as error:
            raise surroundings_failed(context, error) from error
        if not context.retry_number:
            _void(context, parts.database, stream, labels)
        load_into_targets(context, parts, stream, only=labels)
        yield from ()

    return loaded


def load_into_targets(
    context: dg.AssetExecutionContext | dg.OpExecutionContext,
    pipeline: Pipeline,
    stream: Stream,
    *,
    only: Collection[str] | None = None,
) -> None:
    """Load what is due of a stream into its targets; `only` are names of batches.

    A batch that fails does not stop the others. While somebody else loads, the step waits.

    Raises:
        Failure: with what failed.
        RetryRequested: the surroundings may come back, or somebody else loads.
    """
    before = pipeline.database.loads.mark(stream.name)
    failures: dict[str, PipelineError] = {}
    tried: set[str] = set()
    for target in stream.targets:
        try:
            for outcome in load_due(pipeline, stream, target, run_id=context.run.run_id, only=only):
                label = outcome.loading.label
                tried.add(label)
                if outcome.loaded is not None:
                    told = (target.name, label, outcome.loaded.records)
                    context.log.info("%s: %s, %d records loaded", *told)
                else:
                    failures[f"{label} into {target.name}"] = outcome.error or WaitsError(label)
        except LoadRunningError as error:
            context.log.info(str(error))
            raise dg.RetryRequested(
                max_retries=_MOST_WAITS, seconds_to_wait=_PAUSE_SECONDS
            ) from error
        except PipelineError as error:
            raise surroundings_failed(context, error) from error
    targets = [target.name for target in stream.targets]
    for one in pipeline.database.loads.in_targets(stream.name, targets, before):
        if any(load.run_id == context.run.run_id for load in one.loads):
            context.log_event(loaded_materialization(stream, one))
    raise_failures(failures, len(tried), done="loaded")


def _void(
    context: dg.AssetExecutionContext, database: Database, stream: Stream, labels: Collection[str]
) -> None:
    """Let batches be loaded again into all targets.

    Raises:
        Failure: with those whose files are gone; the others are loaded by the next run.
    """
    gone: list[PipelineError] = []
    for label in labels:
        try:
            for target in stream.targets:
                database.loads.void(stream.name, target.name, label)
        except FilesRemovedError as error:
            gone.append(error)
        except PipelineError as error:
            raise surroundings_failed(context, error) from error
    if gone:
        left = len(labels) - len(gone)
        others = f" The {left} other batches are loaded by the next load." if left else ""
        raise dg.Failure("; ".join(map(str, gone)) + others, allow_retries=False)


def _published(database: Database, stream: Stream, keys: Collection[str]) -> list[str]:
    """Give the names of the batches that partition keys stand for.

    Raises:
        Failure: some of them are not published; nothing was loaded.
    """
    asset = batches_of(stream)
    every = list(_batches(database, stream, keys))
    missing = [one.label for one in every if database.manifests.of_batch(one) is None]
    if missing:
        raise dg.Failure(
            f"{', '.join(missing)} is not published, so there is nothing to load; nothing was. "
            f"Materialize it in {asset.asset_key.to_user_string()} first, or leave it out.",
            allow_retries=False,
        )
    return [one.label for one in every]


def _batches(database: Database, stream: Stream, keys: Collection[str]) -> Iterator[Batch]:
    """Find the batches of partition keys; a wide key stands for several."""
    asset = batches_of(stream)
    for key in keys:
        try:
            yield asset.find(database, key)
        except UnknownBatchError:
            within = keys_within(database, stream, asset, key)
            if not within:
                raise
            yield from (asset.find(database, one) for one in within)


@dataclass(eq=False)
class WaitsError(BatchDataError):
    """A batch was not tried, since one that must come before it failed."""

    batch: str

    def sentence(self) -> str:
        return (
            f"{self.batch}: not tried, because an earlier batch has to be loaded first. Mend that "
            f"one; this one is loaded after it."
        )
