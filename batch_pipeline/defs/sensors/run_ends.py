"""Sensors of runs that failed or were cancelled: close their attempts, cancel their batches.

Dagster says `CANCELED` only of a run whose end a person asked for; a process that was stopped or
died has failed. So what was cancelled waits for a person, and what failed is launched again.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.names import CLOSED_TAG, late_job, late_key
from batch_pipeline.defs.partitions import backfills_of, batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.sensors.run_requests import materializes, partition_keys_of
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.stream import Stream

_INTERVAL_SECONDS = 10
_SLACK_SECONDS = 300  # clocks of the machines that end runs may differ by so much
_FAILED = "its run failed without closing it"


def end_failed(pipeline: Pipeline, run: dg.DagsterRun) -> int:
    """Close the attempts that a failed run left open; gives their number."""
    return pipeline.database.run_ends.close_failed(run.run_id, _FAILED)


def end_cancelled(
    pipeline: Pipeline, instance: dg.DagsterInstance, streams: Iterable[Stream], run: dg.DagsterRun
) -> int:
    """Call off what a cancelled run had of some streams, once; gives the number of batches.

    A tag on the run tells that it is done: what a person lets be tried again afterwards stays so.
    """
    mine = [stream for stream in streams if _is_of(instance, run, stream)]
    if CLOSED_TAG in run.tags or not mine:
        return 0
    ids = [one for stream in mine for one in _batch_ids(pipeline, instance, stream, run)]
    done = pipeline.database.run_ends.close_cancelled(run.run_id, ids)
    instance.add_run_tags(run.run_id, {CLOSED_TAG: "cancelled"})
    return done.batches


def end_cancelled_since(
    pipeline: Pipeline, instance: dg.DagsterInstance, stream: Stream, looked_at: float
) -> int:
    """Call off what was cancelled since a time, in seconds since 1970, before anything is launched.

    Sensors come in no order: the one that launches may be earlier than the one that hears of ends.
    """
    since = datetime.fromtimestamp(max(looked_at - _SLACK_SECONDS, 0), UTC)
    cancelled = dg.RunsFilter(statuses=[dg.DagsterRunStatus.CANCELED], updated_after=since)
    runs = instance.get_runs(cancelled)
    return sum(end_cancelled(pipeline, instance, [stream], run) for run in runs)


def cancelled_runs_sensor(streams: Sequence[Stream]) -> dg.SensorDefinition:
    """Call off at once what a person cancelled in Dagster."""

    @dg.run_status_sensor(
        name="cancelled_runs",
        run_status=dg.DagsterRunStatus.CANCELED,
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Closes the attempts of cancelled runs and calls their batches off.",
    )
    def cancelled_runs(
        context: dg.RunStatusSensorContext, pipeline: PipelineResource
    ) -> dg.SkipReason:
        parts = pipeline.pipeline
        try:
            off = end_cancelled(parts, context.instance, streams, context.dagster_run)
        except PipelineError as error:
            return dg.SkipReason(str(error))  # the sensors that launch look again
        return dg.SkipReason(
            f"run {context.dagster_run.run_id}: batches cancelled: {off}; materializing them or "
            f"`batch-pipeline jobs retry JOB` takes them up again."
        )

    return cancelled_runs


def failed_runs_sensor() -> dg.SensorDefinition:
    """Close at once what a run left open that died."""

    @dg.run_status_sensor(
        name="failed_runs",
        run_status=dg.DagsterRunStatus.FAILURE,
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Closes the attempts that failed runs left open; their batches go on.",
    )
    def failed_runs(
        context: dg.RunStatusSensorContext, pipeline: PipelineResource
    ) -> dg.SkipReason:
        try:
            closed = end_failed(pipeline.pipeline, context.dagster_run)
        except PipelineError as error:
            return dg.SkipReason(str(error))  # reconcile closes them at the next tick
        return dg.SkipReason(f"run {context.dagster_run.run_id}: attempts closed: {closed}.")

    return failed_runs


def _is_of(instance: dg.DagsterInstance, run: dg.DagsterRun, stream: Stream) -> bool:
    partitioned = (batches_of(stream), backfills_of(stream))
    return materializes(instance, run, late_job(stream), late_key(stream)) or any(
        materializes(instance, run, asset.job, asset.asset_key) for asset in partitioned
    )


def _batch_ids(
    pipeline: Pipeline, instance: dg.DagsterInstance, stream: Stream, run: dg.DagsterRun
) -> list[int]:
    ids: list[int] = []
    for asset in (batches_of(stream), backfills_of(stream)):
        if materializes(instance, run, asset.job, asset.asset_key):
            keys = {*partition_keys_of(run, instance.get_dynamic_partitions(asset.set_name))}
            found = [status.batch for status in asset.statuses(pipeline.database)]
            ids += [one.id for one in found if asset.key_of(one) in keys]
    if materializes(instance, run, late_job(stream), late_key(stream)):
        record = instance.get_run_records(dg.RunsFilter(run_ids=[run.run_id]), limit=1)[0]
        started = record.create_timestamp
        if record.start_time is not None:
            started = datetime.fromtimestamp(record.start_time, UTC)
        ids += pipeline.database.run_ends.late_batches(stream.name, started)
    return ids
