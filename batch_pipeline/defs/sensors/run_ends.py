"""Sensor of runs that failed or were cancelled: it closes attempts and cancels batches.

A run is CANCELED in Dagster only if a person cancelled it; one whose process was stopped or died
has failed. So batches of cancelled runs wait for a person, and those of failed runs are launched
again.
"""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.names import CLOSED_TAG, RUN_ENDS_SENSOR
from batch_pipeline.defs.partitions import backfills_of, batches_of
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.sensors.run_requests import (
    materializes,
    partition_keys_of,
    sensor_status,
)
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.stream import Stream

_INTERVAL_SECONDS = 10
_OVERLAP_SECONDS = 300  # clocks of the machines that end runs may differ by so much
_FAILED = "its run failed without closing it"


def cancel_batches(
    pipeline: Pipeline, instance: dg.DagsterInstance, streams: Iterable[Stream], run: dg.DagsterRun
) -> int:
    """Cancel the batches of streams that a cancelled run had; return their number.

    A tag marks the run as done: batches that a person retries afterwards stay as they are.
    """
    if CLOSED_TAG in run.tags:
        return 0
    batch_ids: list[int] = []
    is_ours = False
    for stream in streams:
        for asset in (batches_of(stream), backfills_of(stream)):
            if not materializes(instance, run, asset.job, asset.asset_key):
                continue
            is_ours = True
            keys = {*partition_keys_of(run, instance.get_dynamic_partitions(asset.set_name))}
            batches = [status.batch for status in asset.statuses(pipeline.database)]
            batch_ids += [batch.id for batch in batches if asset.key_of(batch) in keys]
    if not is_ours:
        return 0
    closed = pipeline.database.run_ends.close_cancelled(run.run_id, batch_ids)
    instance.add_run_tags(run.run_id, {CLOSED_TAG: "cancelled"})
    return closed.batches


def cancel_batches_since(
    pipeline: Pipeline, instance: dg.DagsterInstance, stream: Stream, since: float
) -> int:
    """Cancel the batches of runs that were cancelled since a time, in seconds since 1970.

    Sensors that launch call it first, because they may be evaluated before the sensor of run ends.
    """
    runs = _ended_runs(instance, since, dg.DagsterRunStatus.CANCELED)
    return sum(cancel_batches(pipeline, instance, [stream], run) for run in runs)


def run_ends_sensor(streams: Sequence[Stream]) -> dg.SensorDefinition:
    """Build the sensor; its cursor is the time of the last tick, in seconds since 1970."""

    @dg.sensor(
        name=RUN_ENDS_SENSOR,
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=sensor_status(*streams),
        description="Closes attempts of failed runs, and cancels batches of cancelled runs.",
    )
    def run_ends(
        context: dg.SensorEvaluationContext, batch_pipeline: PipelineResource
    ) -> dg.SkipReason:
        pipeline = batch_pipeline.pipeline
        now = time.time()
        since = float(context.cursor or now)
        ended = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
        closed = cancelled = 0
        try:
            for run in _ended_runs(context.instance, since, *ended):
                if run.status is dg.DagsterRunStatus.CANCELED:
                    cancelled += cancel_batches(pipeline, context.instance, streams, run)
                else:
                    closed += pipeline.database.run_ends.close_failed(run.run_id, _FAILED)
        except PipelineError as error:
            return dg.SkipReason(str(error))  # the next tick starts at the same time
        context.update_cursor(str(now))
        advice = " Materialize them, or run `batch-pipeline jobs retry JOB`." if cancelled else ""
        return dg.SkipReason(
            f"Attempts of failed runs closed: {closed}. Batches cancelled: {cancelled}.{advice}"
        )

    return run_ends


def _ended_runs(
    instance: dg.DagsterInstance, since: float, *statuses: dg.DagsterRunStatus
) -> Sequence[dg.DagsterRun]:
    updated_after = datetime.fromtimestamp(max(since - _OVERLAP_SECONDS, 0), UTC)
    return instance.get_runs(dg.RunsFilter(statuses=[*statuses], updated_after=updated_after))
