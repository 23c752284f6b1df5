"""Several partitions in one run: each with its own attempt, materialization and failure."""

import logging
from collections.abc import Mapping

import dagster as dg

from batch_pipeline.defs.metadata import batch_materialization
from batch_pipeline.defs.names import DRAIN_TAG, LAUNCH_TAG
from batch_pipeline.domain.errors import ConfigurationError, PipelineError, RetryableError
from batch_pipeline.inventory.database import Database
from batch_pipeline.steps.encode import Workshop, encode

progress = logging.getLogger("batch_pipeline.progress")


def encode_partitions(
    context: dg.AssetExecutionContext, workshop: Workshop, database: Database
) -> None:
    """Encode and publish the run's partitions one after the other.

    A bad batch does not stop its neighbours; surroundings that fail (no disk space, no Spark, no
    database) do, since the rest would fail as well.

    Raises:
        Failure: at the end when a batch failed, at once when the surroundings did.
    """
    failures: dict[str, PipelineError] = {}
    for key in context.partition_keys:
        try:
            _encode_partition(context, workshop, database, key)
        except (ConfigurationError, RetryableError) as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        except PipelineError as error:
            context.log.warning(str(error))
            progress.warning("%s: failed", key, extra={"key": key})
            failures[key] = error
    raise_failures(failures, len(context.partition_keys))


def raise_failures(failures: Mapping[str, PipelineError], tried: int) -> None:
    """Fail the run when some of its batches did.

    Raises:
        Failure: with the reasons by batch.
    """
    if failures:
        raise dg.Failure(
            f"{len(failures)} of {tried} batches failed, the others are published: "
            f"{'; '.join(str(error) for error in failures.values())}",
            metadata={key: str(error) for key, error in failures.items()},
            allow_retries=False,
        )


def _encode_partition(
    context: dg.AssetExecutionContext, workshop: Workshop, database: Database, key: str
) -> None:
    stream = workshop.stream
    batch = database.batches.batch(stream.name, key)
    called_off = database.jobs.called_off(batch)
    if called_off is not None and not {DRAIN_TAG, LAUNCH_TAG}.isdisjoint(context.run.tags):
        # Whoever picked the partition by hand means it; this run was launched before.
        context.log.warning("%s is left alone: %s", key, called_off)
        return
    only_new = context.run.tags.get(LAUNCH_TAG) == "new"
    earlier = database.manifests.of_batch(batch) if only_new else None
    if earlier is not None:
        context.log.info("%s is published already (generation %s)", key, earlier.generation)
        pointer_uri = workshop.storage.point_to(earlier)
        context.log_event(batch_materialization(stream, earlier, pointer_uri))
        return
    published = encode(workshop, batch, run_id=context.run_id)
    manifest = published.manifest
    context.log_event(
        batch_materialization(stream, manifest, published.pointer_uri, published.seconds)
    )
    progress.info(
        "%s: %d records in %d part files",
        key,
        manifest.records,
        len(manifest.part_files),
        extra={"key": key},
    )
