"""The assets of a stream whose partitions are batches: their keys, the order and groups of keys."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import dagster as dg

from batch_pipeline.defs import names
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import backfill_key, backfill_name, parse_backfill_key
from batch_pipeline.model.batch import Batch, BatchStatus, stream_batch_key
from batch_pipeline.model.job import OWN_KINDS, JobKind
from batch_pipeline.model.stream import Stream


class KeyOrder:
    """The partition keys of an asset in the order in which they were added.

    They are read on first use: 100,000 keys take 0.13 s, and a tick that launches nothing needs
    none.
    """

    def __init__(self, read: Callable[[], Iterable[str]]) -> None:
        self._read = read

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """The position of each key, in ascending order."""
        return {key: position for position, key in enumerate(self._read())}

    def between(self, first: str | None, last: str | None) -> list[str]:
        """Return the keys from `first` to `last`; none if either was deleted."""
        start, end = (self.positions.get(key or "") for key in (first, last))
        if start is None or end is None:
            return []
        return list(islice(self.positions, start, end + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedAsset:
    """An asset whose partitions are the batches of a stream's jobs of some `kinds`.

    `job` is the name of the Dagster job that encodes it. `tags_of` returns further tags of a run
    that starts with a key. `find` returns the batch of a key, or raises if there is none;
    `statuses` reads all batches.
    """

    stream: Stream
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

    def order(self, instance: dg.DagsterInstance, new_keys: Sequence[str] = ()) -> KeyOrder:
        """Return the order of its keys; `new_keys` that Dagster lacks are at the end."""
        return KeyOrder(
            lambda: dict.fromkeys([*instance.get_dynamic_partitions(self.set_name), *new_keys])
        )


def batches_of(stream: Stream) -> PartitionedAsset:
    """Return the asset of a stream's batches, those of late arrivals included."""
    return PartitionedAsset(
        stream=stream,
        kinds=OWN_KINDS,
        asset_key=names.batches_of(stream.name),
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
        stream=stream,
        kinds=(JobKind.BACKFILL,),
        asset_key=names.backfill_asset_key(stream),
        partitions=names.backfill_partitions_of(stream.name),
        job=names.encode_backfill_job(stream),
        tags_of=lambda key: {names.BACKFILL_TAG: parse_backfill_key(key)[0]},
        key_of=lambda batch: backfill_key(backfill_name(stream.name, batch.job), batch.key),
        find=lambda database, key: database.batches.batch(stream.name, key, [JobKind.BACKFILL]),
        statuses=lambda database: database.backfills.of_all(stream.name),
    )


@dataclass(slots=True, kw_only=True)
class RunGroups:
    """Partition keys grouped for runs: at most `size` keys, adjacent in `order`, per group.

    To Dagster, a run over several partitions is a range, which includes every key in between. The
    order is the one in which keys were added: the halves of a split batch come after later
    batches. There are at most `most` groups, or any number if it is None.
    """

    order: KeyOrder
    size: int
    most: int | None = None
    groups: list[list[str]] = field(default_factory=list)
    _job: str | None = None

    def takes(self, key: str, job: str, *, alone: bool = False) -> bool:
        """Add the next key, a batch of a job; return False if that needs too many groups.

        A group has batches of one job only. A key that is `alone` gets a group of its own. A key
        that is not in the order is left out: its partition is added later.
        """
        position = self.order.positions.get(key)
        if position is None:
            return True
        last = self.groups[-1] if self.groups else []
        is_open = bool(last) and not alone and job == self._job and len(last) < self.size
        if is_open and position == self.order.positions[last[-1]] + 1:
            last.append(key)
        elif len(self.groups) == self.most:
            return False
        else:
            self.groups.append([key])
        self._job = None if alone else job
        return True

    def leave_open(self) -> None:
        """Remove the last group unless it is full."""
        if self.groups and len(self.groups[-1]) < self.size:
            self.groups.pop()
