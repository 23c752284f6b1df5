"""A Dagster job of a stream's batches and of an asset that a user builds on them.

As a program it is a run that dies: it encodes partitions with tiny files, and its process ends when
all of them are published and before the step has an output.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.assets import encode_partitions
from batch_pipeline.defs.names import RANGE_END_TAG, RANGE_START_TAG, partitions_of
from batch_pipeline.defs.partition_events import Materializations
from batch_pipeline.defs.partitions import batches_of
from batch_pipeline.model.location import to_path
from batch_pipeline_tests.pipeline.attempt_fixture import TinyEncoder

BATCHES, BY_CITY = dg.AssetKey(["orders", "batches"]), dg.AssetKey("by_city")
KILLED = 9


def with_downstream(
    definitions: dg.Definitions, set_name: str = "orders.batches"
) -> dg.Definitions:
    """Add an asset downstream of the batches, and the job `both` of the two and their checks."""

    @dg.asset(
        key=BY_CITY,
        deps=[BATCHES],
        partitions_def=dg.DynamicPartitionsDefinition(name=set_name),
        backfill_policy=dg.BackfillPolicy.multi_run(2),
    )
    def by_city() -> None:
        """Stand for what a user makes of batches."""

    both = dg.AssetSelection.assets(BATCHES, BY_CITY)
    job = dg.define_asset_job("both", selection=both, executor_def=dg.in_process_executor)
    own = dg.Definitions(assets=[by_city], jobs=[job])
    return dg.Definitions.merge(definitions, own)


def job_of_both(definitions: dg.Definitions) -> dg.JobDefinition:
    """Build the job of the batches and the asset downstream."""
    return with_downstream(definitions).resolve_job_def("both")


def tags_of(keys: Sequence[str]) -> dict[str, str]:
    """Return the tags of a run of partitions, as Dagster sets them."""
    if len(keys) == 1:
        return {"dagster/partition": keys[0]}
    return {RANGE_START_TAG: keys[0], RANGE_END_TAG: keys[-1]}


def execute(
    job: dg.JobDefinition,
    instance: dg.DagsterInstance,
    tags: Mapping[str, str],
    *,
    after: dg.DagsterRun | None = None,
) -> dg.DagsterRun:
    """Execute a job as a run; `after` is a run whose process died and that this one repeats."""
    died = None if after is None else after.run_id
    run = instance.create_run_for_job(
        job_def=job, parent_run_id=died, root_run_id=died, tags=dict(tags)
    )
    execute_run(InMemoryJob(job), run, instance, raise_on_error=False)
    ended = instance.get_run_by_id(run.run_id)
    assert ended is not None
    return ended


def _dying_definitions(pipeline: Pipeline) -> dg.Definitions:
    stream = pipeline.stream("orders")

    def no_session() -> Any:
        raise AssertionError

    encoder = TinyEncoder(Path(to_path(stream.storage.root)))
    workshop = replace(pipeline.encode_context(stream, no_session), encoder=encoder)

    @dg.asset(
        key=BATCHES,
        partitions_def=partitions_of(stream.name),
        backfill_policy=dg.BackfillPolicy.multi_run(2),
    )
    def encoded(context: dg.AssetExecutionContext) -> None:
        with Materializations(context) as published:
            encode_partitions(published, workshop, pipeline.database, batches_of(stream))
            os._exit(KILLED)

    return dg.Definitions(assets=[encoded])


if __name__ == "__main__":
    folder, *pairs = sys.argv[1:]
    job = job_of_both(_dying_definitions(Pipeline.from_environment()))
    tags = dict(pair.split("=", 1) for pair in pairs)
    execute(job, dg.DagsterInstance.local_temp(folder), tags)
