"""Tells Dagster where a stream stands, when that has changed; Dagster itself remembers the last."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.metadata import standing_observation
from batch_pipeline.defs.names import meta_table_key
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.status import StreamStatus
from batch_pipeline.model.stream import Stream


def observation(pipeline: Pipeline, stream: Stream) -> dg.AssetObservation:
    """Look at where a stream stands.

    Raises:
        PipelineError: the user's table cannot be read.
    """
    database = pipeline.database
    standing = database.stream_statuses.status(stream.name, pipeline.meta_table(stream))
    recent = database.published.recent(stream.name, [JobKind.INCREMENTAL, JobKind.LATE])
    return standing_observation(stream, standing, recent)


def changed_observation(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance
) -> list[dg.AssetObservation]:
    """Look at where a stream stands if batches have moved to other states since the last time.

    Raises:
        PipelineError: the user's table cannot be read.
    """
    states = pipeline.database.stream_statuses.states(stream.name)
    if _numbers(states) == _last_told(instance, stream):
        return []
    return [observation(pipeline, stream)]


def _numbers(states: Mapping[BatchState, int]) -> dict[str, Any]:
    return {f"batches_{state}": states.get(state, 0) for state in StreamStatus.SHOWN}


def _last_told(instance: dg.DagsterInstance, stream: Stream) -> dict[str, Any]:
    """Read the numbers of batches that Dagster was told last; before the first, none of each."""
    records = instance.fetch_observations(meta_table_key(stream), limit=1).records
    told = records[0].asset_observation if records else None
    numbers = _numbers({})
    if told is None:
        return numbers
    return {name: value.value for name, value in told.metadata.items() if name in numbers}
