"""Stations 3 and 4: items become batches, and batches that are due get launched."""

from collections.abc import Iterable, Sequence

from batch_pipeline.domain.batch import BatchState, BatchStatus
from batch_pipeline.domain.planning import Planned
from batch_pipeline.domain.stream import Stream
from batch_pipeline.ports import Batches, MetaTable

MAX_ATTEMPTS = 3
_BY_ITSELF = {BatchState.PLANNED, BatchState.INTERRUPTED}
_BY_HAND = {BatchState.FAILED, BatchState.DEAD}


def plan(batches: Batches, table: MetaTable, stream: Stream, *, drain: bool = False) -> Planned:
    """Cut the stream's new items into batches; `drain` does not wait to fill the last one."""
    return batches.plan(table, stream.limits, drain=drain)


def due(statuses: Iterable[BatchStatus], *, retry_failed: bool) -> list[BatchStatus]:
    """Choose the batches to encode now, in id order.

    Planned ones, and interrupted ones until they were tried three times. A failed or dead batch
    waits for a person, which is what `retry_failed` says there is; a cancelled one stays called off
    until its retry is asked for.
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
    It keeps them in the order in which they were added: halves of a batch come after later batches.
    """
    by_range = {status.batch.id: index for index, status in enumerate(statuses)}
    by_age = {batch_id: index for index, batch_id in enumerate(sorted(by_range))}
    groups: list[list[BatchStatus]] = []
    for status in chosen:
        last = groups[-1] if groups else []
        here, before = status.batch.id, last[-1].batch.id if last else status.batch.id
        follows = by_range[here] - by_range[before] == by_age[here] - by_age[before] == 1
        if follows and len(last) < most:
            last.append(status)
        else:
            groups.append([status])
    return groups
