"""A Dagster job with a stream's batches and a user's downstream asset."""

from collections.abc import Mapping, Sequence

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

from batch_pipeline.defs.names import RANGE_END_TAG, RANGE_START_TAG, partitions_of

BATCHES, BY_CITY = dg.AssetKey(["orders", "batches"]), dg.AssetKey("by_city")


def with_downstream(definitions: dg.Definitions, upstream: dg.AssetKey = BATCHES) -> dg.Definitions:
    """Add a downstream asset, and the job `both` with both assets and the checks."""

    @dg.asset(
        key=BY_CITY,
        deps=[upstream],
        partitions_def=partitions_of("orders"),
        backfill_policy=dg.BackfillPolicy.multi_run(2),
    )
    def by_city() -> None:
        """Do nothing, in place of a user's asset."""

    both = dg.AssetSelection.assets(upstream, BY_CITY)
    job = dg.define_asset_job("both", selection=both, executor_def=dg.in_process_executor)
    return dg.Definitions.merge(definitions, dg.Definitions(assets=[by_city], jobs=[job]))


def job_of_both(definitions: dg.Definitions, upstream: dg.AssetKey = BATCHES) -> dg.JobDefinition:
    """Return the job of the upstream and the downstream asset."""
    return with_downstream(definitions, upstream).resolve_job_def("both")


def tags_of(keys: Sequence[str]) -> dict[str, str]:
    """Return the tags that Dagster sets on a run of these partitions."""
    if len(keys) == 1:
        return {"dagster/partition": keys[0]}
    return {RANGE_START_TAG: keys[0], RANGE_END_TAG: keys[-1]}


def execute(
    job: dg.JobDefinition,
    instance: dg.DagsterInstance,
    tags: Mapping[str, str],
    *,
    retry_of: dg.DagsterRun | None = None,
) -> dg.DagsterRun:
    """Execute a job as a run, optionally as the retry of another run."""
    parent = None if retry_of is None else retry_of.run_id
    root = None if retry_of is None else retry_of.root_run_id or parent
    run = instance.create_run_for_job(
        job_def=job, parent_run_id=parent, root_run_id=root, tags=dict(tags)
    )
    execute_run(InMemoryJob(job), run, instance, raise_on_error=False)
    completed = instance.get_run_by_id(run.run_id)
    assert completed is not None
    return completed
