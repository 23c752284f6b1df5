"""Stations 3 and 4: items become batches, and batches that are due get launched."""

from collections.abc import Iterable, Sequence

from batch_pipeline.domain.batch import BatchState, BatchStatus
from batch_pipeline.domain.planning import Planned
from batch_pipeline.domain.stream import Stream
from batch_pipeline.ports import Batches, MetaTable

MAX_ATTEMPTS = 3
_BY_ITSELF = {BatchState.PLANNED, BatchState.INTERRUPTED}
_BY_HAND = {BatchState.FAILED, BatchState.DEAD, BatchState.CANCELLED}


def plan(batches: Batches, table: MetaTable, stream: Stream, *, drain: bool = False) -> Planned:
    """Cut the stream's new items into batches; `drain` does not wait to fill the last one."""
    return batches.plan(table, stream.limits, drain=drain)


def due(statuses: Iterable[BatchStatus], *, retry_failed: bool) -> list[BatchStatus]:
    """Choose the batches to encode now, in id order.

    Planned ones, and interrupted ones until they were tried three times. A failed, dead or
    cancelled batch waits for a person, which is what `retry_failed` says there is.
    """
    return [
        status
        for status in statuses
        if status.state in _BY_ITSELF or (retry_failed and status.state in _BY_HAND)
    ]


def neighbours(
    chosen: Iterable[BatchStatus], statuses: Sequence[BatchStatus], *, most: int
) -> list[list[BatchStatus]]:
    """Group chosen batches for runs: at most `most`, with no other batch of the job between them.

    A run over several partitions is a range to Dagster, which would take in whatever lies between.
    """
    position = {status.batch.key: index for index, status in enumerate(statuses)}
    groups: list[list[BatchStatus]] = []
    for status in chosen:
        last = groups[-1] if groups else []
        here = position[status.batch.key]
        if last and len(last) < most and position[last[-1].batch.key] == here - 1:
            last.append(status)
        else:
            groups.append([status])
    return groups
