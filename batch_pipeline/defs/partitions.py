"""The two assets of a stream whose partitions are batches: which batch a key names, and back.

What encodes, launches and counts is written once, against this value. Nothing is opened here.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import dagster as dg

from batch_pipeline.defs import names
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import backfill_key, backfill_name, parse_backfill_key
from batch_pipeline.model.batch import Batch, BatchStatus
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedAsset:
    """An asset of batches.

    `kind` is that of the jobs whose batches they are; `tags_of` are tags for a run that a sensor
    launches; `find` gives the batch of a key, or says why there is none; `statuses` are all
    batches, also those that were split where the asset has them.
    """

    kind: JobKind
    asset_key: dg.AssetKey
    partitions: dg.DynamicPartitionsDefinition
    job: str
    tags_of: Callable[[str], dict[str, str]]
    key_of: Callable[[Batch], str]
    find: Callable[[Database, str], Batch]
    statuses: Callable[[Database], Sequence[BatchStatus]]

    @property
    def set_name(self) -> str:
        """Name of its partition set."""
        return str(self.partitions.name)


def batches_of(stream: Stream) -> PartitionedAsset:
    """Describe the asset of a stream's own batches."""
    return PartitionedAsset(
        kind=JobKind.INCREMENTAL,
        asset_key=names.batches_key(stream),
        partitions=names.partitions(stream),
        job=names.batches_job(stream),
        tags_of=lambda _: {},
        key_of=lambda one: one.key,
        find=lambda database, key: database.batches.batch(stream.name, key),
        statuses=lambda database: database.batches.statuses(stream.name),
    )


def backfills_of(stream: Stream) -> PartitionedAsset:
    """Describe the asset of the batches of a stream's backfills."""
    return PartitionedAsset(
        kind=JobKind.BACKFILL,
        asset_key=names.backfill_asset_key(stream),
        partitions=names.backfill_partitions(stream),
        job=names.backfill_job(stream),
        tags_of=lambda key: {names.BACKFILL_TAG: parse_backfill_key(key)[0]},
        key_of=lambda one: backfill_key(backfill_name(stream.name, one.job), one.id_range),
        find=lambda database, key: database.backfills.batch(stream.name, key),
        statuses=lambda database: database.backfills.of_all(stream.name),
    )


def group_neighbours(chosen: Iterable[str], order: Sequence[str], *, most: int) -> list[list[str]]:
    """Group partition keys for runs: at most `most`, with no other key between them in `order`.

    A run over several partitions is a range to Dagster, which includes every key in between. The
    order is the one in which keys were added: the halves of a split batch come after later
    batches. A key that is not in `order` is left out.
    """
    positions = {key: position for position, key in enumerate(order)}
    groups: list[list[str]] = []
    for key in chosen:
        if key not in positions:
            continue
        last = groups[-1] if groups else []
        if last and len(last) < most and positions[key] == positions[last[-1]] + 1:
            last.append(key)
        else:
            groups.append([key])
    return groups
