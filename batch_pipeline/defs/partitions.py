"""The assets of a stream whose partitions are batches, and the batch of each partition key."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import dagster as dg

from batch_pipeline.defs import names
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import backfill_key, backfill_name, parse_backfill_key
from batch_pipeline.model.batch import Batch, BatchStatus, stream_batch_key
from batch_pipeline.model.job import OWN_KINDS, JobKind
from batch_pipeline.model.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedAsset:
    """An asset whose partitions are the batches of jobs of some `kinds`.

    `job` is the name of the Dagster job that encodes it. `tags_of` returns further tags of a run
    that starts with a key. `find` returns the batch of a key, or raises why there is none;
    `statuses` reads all batches.
    """

    kinds: tuple[JobKind, ...]
    asset_key: dg.AssetKey
    partitions: dg.DynamicPartitionsDefinition
    job: str
    tags_of: Callable[[str], dict[str, str]]
    key_of: Callable[[Batch], str]
    find: Callable[[Database, str], Batch]
    statuses: Callable[[Database], Sequence[BatchStatus]]

    @property
    def set_name(self) -> str:
        """Name of its dynamic partitions."""
        return str(self.partitions.name)


def batches_of(stream: Stream) -> PartitionedAsset:
    """Return the asset of a stream's batches, those of late arrivals included."""
    return PartitionedAsset(
        kinds=OWN_KINDS,
        asset_key=names.batches_key(stream),
        partitions=names.partitions_of(stream.name),
        job=names.encode_job(stream),
        tags_of=lambda _: {},
        key_of=lambda batch: stream_batch_key(batch, stream.name),
        find=lambda database, key: database.batches.batch(stream.name, key, OWN_KINDS),
        statuses=lambda database: [
            *database.batches.statuses(stream.name),
            *database.batches.late_statuses(stream.name),
        ],
    )


def backfills_of(stream: Stream) -> PartitionedAsset:
    """Return the asset of the batches of a stream's backfills."""
    return PartitionedAsset(
        kinds=(JobKind.BACKFILL,),
        asset_key=names.backfill_asset_key(stream),
        partitions=names.backfill_partitions_of(stream.name),
        job=names.encode_backfill_job(stream),
        tags_of=lambda key: {names.BACKFILL_TAG: parse_backfill_key(key)[0]},
        key_of=lambda batch: backfill_key(backfill_name(stream.name, batch.job), batch.key),
        find=lambda database, key: database.batches.batch(stream.name, key, [JobKind.BACKFILL]),
        statuses=lambda database: database.backfills.of_all(stream.name),
    )


def group_neighbours(keys: Iterable[str], order: Sequence[str], *, most: int) -> list[list[str]]:
    """Group partition keys for runs: at most `most` keys, adjacent in `order`, per group.

    A run over several partitions is a range to Dagster, which includes every key in between. The
    order is the one in which keys were added: the halves of a split batch come after later
    batches. A key that is not in `order` is left out.
    """
    positions = {key: position for position, key in enumerate(order)}
    groups: list[list[str]] = []
    for key in keys:
        if key not in positions:
            continue
        last = groups[-1] if groups else []
        if last and len(last) < most and positions[key] == positions[last[-1]] + 1:
            last.append(key)
        else:
            groups.append([key])
    return groups
