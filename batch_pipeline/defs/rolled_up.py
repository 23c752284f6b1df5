"""Rolling partitions up: many old ones of a stream become few wider ones of the same asset.

Only Dagster's partition set changes. Batches, attempts, manifests and messages stay as they are,
and a wide key is understood by what the inventory says of its range, so that a set that is lost
comes back narrow. Repeating it, also after a crash at any point, ends in the same partitions.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg
from dagster._core.execution.backfill import (
    BULK_ACTION_TERMINAL_STATUSES,
    BulkActionsFilter,
    BulkActionStatus,
)
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log.schema import DynamicPartitionsTable

from batch_pipeline.defs.key_order import KeyOrder
from batch_pipeline.defs.metadata import encoded_tags
from batch_pipeline.defs.partitioned import Partitioned, batches_of
from batch_pipeline.defs.sensors.run_keys import unfinished_runs
from batch_pipeline.domain.batch import Batch, BatchState, BatchStatus
from batch_pipeline.domain.errors import BatchDataError, InvalidValueError, RetryableError
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.partition_key import parse_partition_key, partition_key
from batch_pipeline.domain.progress import counted
from batch_pipeline.domain.roll_up import RollUp, Tiling, wide_range
from batch_pipeline.domain.stream import Stream
from batch_pipeline.inventory.database import Database

_UNFINISHED = [status for status in BulkActionStatus if status not in BULK_ACTION_TERMINAL_STATUSES]
_CHUNK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledUp:
    """Wide keys to add, each with its batches; narrow keys to take away; partitions before."""

    wide: Mapping[str, Sequence[BatchStatus]]
    narrow: Sequence[str]
    partitions: int

    @property
    def left(self) -> int:
        """How many partitions there are afterwards."""
        return self.partitions + len(self.wide) - len(self.narrow)


@dataclass(eq=False)
class RolledUpFailedError(BatchDataError):
    """Batches of a wide partition failed."""

    key: str
    errors: Mapping[str, Exception]
    batches: int = field(default=0)

    def sentence(self) -> str:
        said = "; ".join(str(error) for error in self.errors.values())
        failed = len(self.errors)
        return (
            f"{self.key}: batches failed: {failed} of {self.batches}, the others are published "
            f"again: {said}"
        )


@dataclass(eq=False)
class BackfillUnderWayError(RetryableError):
    """Dagster works on partitions that would go away."""

    stream: str
    backfill: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: the backfill {self.backfill} of Dagster is under way, and may want "
            f"partitions that would go. Nothing was changed. Roll up when it has ended."
        )


def keys_within(database: Database, stream: Stream, asset: Partitioned, key: str) -> list[str]:
    """Give the keys of the batches that a wide key stands for, in order; none for other keys."""
    ids = _ids(asset, key)
    if ids is None:
        return []
    tiling = _tiling(database.batches.statuses(stream.name, ids))
    return [partition_key(one) for one in tiling.under(ids)]


def told_of_wide(
    database: Database, stream: Stream, asset: Partitioned, key: str
) -> dg.AssetMaterialization:
    """The event of a wide partition, whose batches were all made anew."""
    every = database.batches.statuses(stream.name, parse_partition_key(key))
    published = [one for one in every if one.state is BatchState.PUBLISHED]
    return wide_materialization(stream, asset, key, published)


def covered_keys(tiling: Tiling, asset: Partitioned, keys: Iterable[str]) -> set[str]:
    """Give the narrow keys that wide ones among some keys stand for."""
    found = (_ids(asset, key) for key in keys)
    under = (tiling.under(ids) for ids in found if ids is not None)
    return {partition_key(one) for some in under for one in some}


def is_in(asset: Partitioned, keys: Iterable[str]) -> Callable[[Batch], bool]:
    """Tell of batches whether the range of one of some keys of an asset has them.

    Among keys where a narrow one lies within a wide one, batches behind the narrow one may be
    missed.
    """
    found = (_ids(asset, key) for key in keys)
    ranges = sorted(ids for ids in found if ids is not None)
    firsts = [ids.first_id for ids in ranges]

    def is_in_one(batch: Batch) -> bool:
        place = bisect_right(firsts, batch.id_range.first_id)
        return place > 0 and batch.id_range.last_id <= ranges[place - 1].last_id

    return is_in_one


def plan_roll_up(
    database: Database, stream: Stream, instance: dg.DagsterInstance, wish: RollUp
) -> RolledUp:
    """Choose what becomes wider, and what an earlier call that was interrupted has left.

    Raises:
        BackfillUnderWayError: a backfill of Dagster has partitions of the asset.
    """
    asset = batches_of(stream)
    _check_no_backfill(instance, stream, asset)
    keys = instance.get_dynamic_partitions(asset.set_name)
    every = database.batches.statuses(stream.name)
    tiling = _tiling(every)
    statuses = {one.batch.id_range: one for one in every if one.state is not BatchState.SUPERSEDED}
    covered = covered_keys(tiling, asset, keys)
    in_use = unfinished_runs(instance, asset).keys(KeyOrder(lambda: keys))
    there = {*keys} - covered - in_use
    kept = tiling.newest(wish.keep or 0)
    chosen = {
        ids
        for ids, one in statuses.items()
        if partition_key(ids) in there and ids not in kept and _is_old(one, wish)
    }
    groups = tiling.groups(chosen, wish.width)
    going = (covered | {partition_key(ids) for group in groups for ids in group}) - in_use
    return RolledUp(
        wide={
            partition_key(wide_range(group)): [statuses[ids] for ids in group] for group in groups
        },
        narrow=[key for key in keys if key in going],
        partitions=len(keys),
    )


def roll_up(instance: dg.DagsterInstance, stream: Stream, found: RolledUp) -> None:
    """Tell what the wide partitions hold, add them, and then take the narrow ones away.

    Whoever dies in between has shown no partition that looks as if it were missing.
    """
    asset = batches_of(stream)
    wide = found.wide.items()
    for key, statuses in counted(wide, "making wide partitions", total=len(wide)):
        instance.report_runless_asset_event(wide_materialization(stream, asset, key, statuses))
    instance.add_dynamic_partitions(asset.set_name, list(found.wide))
    _take_away(instance, asset, found.narrow)


def _take_away(instance: dg.DagsterInstance, asset: Partitioned, keys: Sequence[str]) -> None:
    """Delete keys from the set of an asset; Dagster itself only has a way for one at a time, which
    takes an hour for 100,000 on a busy server.
    """
    storage, table = instance.event_log_storage, DynamicPartitionsTable
    if not isinstance(storage, SqlEventLogStorage):
        for key in keys:
            instance.delete_dynamic_partition(asset.set_name, key)
        return
    ours = table.c.partitions_def_name == asset.set_name
    for start in range(0, len(keys), _CHUNK):
        chunk = table.c.partition.in_(keys[start : start + _CHUNK])
        with storage.index_connection() as connection:
            connection.execute(table.delete().where(ours, chunk))


def wide_materialization(
    stream: Stream, asset: Partitioned, key: str, statuses: Sequence[BatchStatus]
) -> dg.AssetMaterialization:
    """The event of a wide partition whose batches are all published."""
    newest = max(one.generation or 0 for one in statuses)
    return dg.AssetMaterialization(
        asset_key=asset.asset_key,
        partition=key,
        metadata={
            "batches": len(statuses),
            "items": sum(one.batch.count for one in statuses),
            "weight_bytes": sum(one.batch.weight for one in statuses),
            "newest_generation": newest,
        },
        tags=encoded_tags(stream, str(newest)),
    )


def _check_no_backfill(instance: dg.DagsterInstance, stream: Stream, asset: Partitioned) -> None:
    for one in instance.get_backfills(BulkActionsFilter(statuses=_UNFINISHED)):
        if asset.asset_key in (one.asset_selection or ()):
            raise BackfillUnderWayError(stream.name, one.backfill_id)


def _ids(asset: Partitioned, key: str) -> IdRange | None:
    if asset.kind is not JobKind.INCREMENTAL:
        return None
    try:
        return parse_partition_key(key)
    except InvalidValueError:
        return None


def _tiling(statuses: Sequence[BatchStatus]) -> Tiling:
    live = [one for one in statuses if one.state is not BatchState.SUPERSEDED]
    return Tiling(
        live=(one.batch.id_range for one in live),
        published={one.batch.id_range for one in live if one.state is BatchState.PUBLISHED},
        split={one.batch.id_range for one in statuses if one.state is BatchState.SUPERSEDED},
    )


def _is_old(one: BatchStatus, wish: RollUp) -> bool:
    if wish.before is None:
        return True
    return one.finished_at is not None and one.finished_at < wish.before
