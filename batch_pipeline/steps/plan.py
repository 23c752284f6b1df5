"""Stations 3 and 4: items become batches, and batches that are due get launched."""

from collections.abc import Iterable, Sequence

from batch_pipeline.model.batch import BatchState, BatchStatus
from batch_pipeline.model.planning import Planned
from batch_pipeline.model.stream import Stream
from batch_pipeline.ports import Batches, MetaTable

_BY_ITSELF = {BatchState.PLANNED, BatchState.INTERRUPTED}
_BY_HAND = {BatchState.FAILED, BatchState.DEAD}


def plan(batches: Batches, table: MetaTable, stream: Stream, *, drain: bool = False) -> Planned:
    """Cut the stream's new items into batches; `drain` does not wait to fill the last one."""
    return batches.plan(table, stream.limits, drain=drain)


def due(statuses: Iterable[BatchStatus], *, retry_failed: bool) -> list[BatchStatus]:
    """Choose the batches to encode now, in id order.

    Planned ones, and interrupted ones: those that have had all their tries are dead. A failed or
    dead batch waits for a person, which is what `retry_failed` says there is; a cancelled one stays
    called off until its retry is asked for.
    """
    return [
        status
        for status in statuses
        if status.state in _BY_ITSELF or (retry_failed and status.state in _BY_HAND)
    ]


def neighbours(chosen: Iterable[str], order: Sequence[str], *, most: int) -> list[list[str]]:
    """Group partition keys for runs: at most `most`, with no other key between them in `order`.

    A run over several partitions is a range to Dagster, which takes in whatever lies between in the
    order in which keys were added: halves of a batch come after later batches. A key that is not
    in `order` is left out.
    """
    places = {key: place for place, key in enumerate(order)}
    groups: list[list[str]] = []
    for key in chosen:
        if key not in places:
            continue
        last = groups[-1] if groups else []
        if last and len(last) < most and places[key] == places[last[-1]] + 1:
            last.append(key)
        else:
            groups.append([key])
    return groups
