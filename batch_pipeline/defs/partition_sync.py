"""Synchronization of the inventory with Dagster's partitions and materializations."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import Any, overload

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.metadata import batch_materialization, generation_of
from batch_pipeline.defs.names import DATA_VERSION_TAG
from batch_pipeline.defs.partitions import PartitionedAsset, batches_of
from batch_pipeline.defs.sensors.run_requests import reporting_runs
from batch_pipeline.inventory.change_feed import Cursor
from batch_pipeline.inventory.meta_tables.registered_table import OwnMetaTable
from batch_pipeline.inventory.meta_tables.sources import UserMetaTable
from batch_pipeline.model.batch import Batch, BatchStatus
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.item import Registered
from batch_pipeline.model.planning import Planned
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.reconcile import pointer_of, reconcile
from batch_pipeline.pipeline.restore_check import CheckedInventory, ensure_inventory_current
from batch_pipeline.storage.filesystem import FileSystem
from batch_pipeline.storage.landing_poll import PolledLanding


class KeyOrder(Sequence[str]):
    """A sequence of keys that is read once, on first use, with constant-time lookup of positions.

    Reading 100,000 keys takes 0.13 s: a tick that launches nothing does not read them.
    """

    def __init__(self, read: Callable[[], Sequence[str]]) -> None:
        self._read = read

    @cached_property
    def _keys(self) -> Sequence[str]:
        return self._read()

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self._keys)}

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        return self._keys[place]

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._positions

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the position of a key.

        Raises:
            ValueError: there is no such key between the two positions.
        """
        place = self._positions.get(value, -1)
        if place < start or (stop is not None and place >= stop):
            raise ValueError(value)
        return place


MAX_KEYS_PER_TICK = 10_000  # adding so many takes Postgres half a second
MAX_EVENTS_PER_TICK = 500
_MAX_KEYS_PER_LOOKUP = 500  # above, reading all that Dagster knows is cheaper than asking for each


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlan:
    """The batches of an asset, and the partitions and events that Dagster is missing.

    `statuses` has at least the batches that are due. `new_keys` are partitions to add, in order,
    and `order` all keys once they are added; `unseen` are materializations that a crash kept from
    Dagster although their batches are published, each of the newest generation.
    """

    statuses: Iterable[BatchStatus]
    new_keys: Sequence[str]
    order: Sequence[str]
    unseen: Sequence[dg.AssetMaterialization]

    def apply(
        self,
        instance: dg.DagsterInstance,
        asset: PartitionedAsset,
        report: Callable[[dg.AssetMaterialization], object],
    ) -> None:
        """Add the missing partitions, then report the missing events."""
        instance.add_dynamic_partitions(asset.set_name, list(self.new_keys))
        for event in self.unseen:
            report(event)


@dataclass(frozen=True, slots=True)
class _Published:
    """A published batch and its newest generation."""

    batch: Batch
    generation: int


@dataclass(slots=True)
class PartitionSync:
    """A comparison of an asset's batches with Dagster that keeps state between calls.

    Not thread-safe. With `in_ticks`, a plan is limited to what one sensor tick can process and to
    the batches that are due; otherwise it is complete.
    """

    in_ticks: bool
    _cursors: Mapping[int, Cursor] = field(default_factory=dict)
    _keys: dict[str, None] = field(default_factory=dict)
    _events: dict[str, _Published] = field(default_factory=dict)

    def diff(
        self,
        pipeline: Pipeline,
        stream: Stream,
        asset: PartitionedAsset,
        instance: dg.DagsterInstance,
    ) -> SyncPlan:
        """Compute the partitions and events that Dagster is missing, without adding any."""
        self._read(pipeline, stream, asset)
        there = _existing_keys(instance, asset, self._keys)
        for key in there:
            self._keys.pop(key, None)
        new_keys = list(islice(self._keys, MAX_KEYS_PER_TICK if self.in_ticks else None))
        unseen = self._unseen(pipeline, stream, asset, instance)
        due = _Due(pipeline, stream, asset)
        return SyncPlan(
            statuses=due if self.in_ticks else asset.statuses(pipeline.database),
            new_keys=new_keys,
            order=KeyOrder(lambda: _ordered_keys(instance, asset, new_keys)),
            unseen=unseen,
        )

    def _read(self, pipeline: Pipeline, stream: Stream, asset: PartitionedAsset) -> None:
        changes = pipeline.database.change_feed.since(stream.name, asset.kinds, self._cursors)
        self._keys |= dict.fromkeys(asset.key_of(one) for one in changes.planned)
        published = (_Published(one, changes.generations[one.id]) for one in changes.published)
        self._events |= {asset.key_of(one.batch): one for one in published}
        self._cursors = changes.cursors

    def _unseen(
        self,
        pipeline: Pipeline,
        stream: Stream,
        asset: PartitionedAsset,
        instance: dg.DagsterInstance,
    ) -> list[dg.AssetMaterialization]:
        for key in _up_to_date_keys(instance, asset, self._events):
            del self._events[key]
        if not self._events:
            return []
        # Runs that are under way, or about to be repeated, report what they have published.
        reported = reporting_runs(instance, asset).keys(
            KeyOrder(lambda: _ordered_keys(instance, asset))
        )
        events = []
        missing = [key for key in self._events if key not in reported]
        for key in missing[: MAX_EVENTS_PER_TICK if self.in_ticks else None]:
            manifest = pipeline.database.manifests.of_batch(self._events[key].batch)
            # Without a manifest, a worker of the library published a result of its own.
            if manifest is None or manifest.generation <= _latest_generation(instance, asset, key):
                del self._events[key]
                continue
            manifests, storage = pipeline.database.manifests, pipeline.storage(stream)
            pointer_uri = pointer_of(manifest, manifests, storage)
            manifest = manifests.with_origin(manifest)
            events.append(batch_materialization(stream, asset, manifest, pointer_uri))
        return events


@dataclass(frozen=True, slots=True)
class _Due:
    """The batches of an asset that are due, read page by page during iteration."""

    pipeline: Pipeline
    stream: Stream
    asset: PartitionedAsset

    def __iter__(self) -> Iterator[BatchStatus]:
        return self.pipeline.database.change_feed.due(self.stream.name, self.asset.kinds)


def _existing_keys(
    instance: dg.DagsterInstance, asset: PartitionedAsset, keys: Collection[str]
) -> Collection[str]:
    if not keys:
        return ()
    if len(keys) > _MAX_KEYS_PER_LOOKUP:
        return instance.get_dynamic_partitions(asset.set_name)
    return instance.get_existing_dynamic_partitions(asset.set_name, list(keys))


def _up_to_date_keys(
    instance: dg.DagsterInstance, asset: PartitionedAsset, published: Mapping[str, _Published]
) -> list[str]:
    """Return the keys whose newest generation Dagster shows, without reading any event.

    For a batch that was published once, any materialization suffices; an event without a data
    version counts as generation 1.
    """
    there = [key for key in _materialized(instance, asset, published) if key in published]
    later = [key for key in there if published[key].generation > 1]
    generations = _data_versions(instance, asset, later)
    return [key for key in there if published[key].generation <= generations.get(key, 1)]


def _data_versions(
    instance: dg.DagsterInstance, asset: PartitionedAsset, keys: Sequence[str]
) -> dict[str, int]:
    """Return the generations in the data versions of the partitions' latest events."""
    if not keys:
        return {}
    found = instance.event_log_storage.get_latest_tags_by_partition(
        asset.asset_key,
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        [DATA_VERSION_TAG],
        asset_partitions=None if len(keys) > _MAX_KEYS_PER_LOOKUP else keys,
    )
    versions = {key: tags[DATA_VERSION_TAG] for key, tags in found.items()}
    return {key: int(text) for key, text in versions.items() if text.isdecimal()}


def _latest_generation(instance: dg.DagsterInstance, asset: PartitionedAsset, key: str) -> int:
    """Return the generation in the latest event of a partition, or 0 without an event."""
    of_key = dg.AssetRecordsFilter(asset_key=asset.asset_key, asset_partitions=[key])
    found = instance.fetch_materializations(of_key, limit=1).records
    return generation_of(found[0].asset_materialization) if found else 0


def _materialized(
    instance: dg.DagsterInstance, asset: PartitionedAsset, keys: Collection[str]
) -> Collection[str]:
    if not keys:
        return ()
    if len(keys) > _MAX_KEYS_PER_LOOKUP:
        return instance.get_materialized_partitions(asset.asset_key)
    return instance.event_log_storage.get_latest_storage_id_by_partition(
        asset.asset_key, dg.DagsterEventType.ASSET_MATERIALIZATION, partitions={*keys}
    )


def _ordered_keys(
    instance: dg.DagsterInstance, asset: PartitionedAsset, new_keys: Sequence[str] = ()
) -> list[str]:
    added = instance.get_dynamic_partitions(asset.set_name)
    there: Set[str] = {*added}
    return [*added, *(key for key in new_keys if key not in there)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult:
    """The result of a tick; `errors` are those that excluded some files of the landing."""

    registered: Registered
    planned: Planned
    sync: SyncPlan
    errors: tuple[PipelineError, ...] = ()


TICKS_PER_FULL_SYNC = 120


@dataclass(slots=True)
class _Memory:
    """Results of previous ticks.

    `landing` knows the files of the meta table that was started at `table_start`. With the publish
    counts `published`, every manifest had its manifest file. `checked` is the inventory that was
    found as new as the storage.
    """

    partitions: PartitionSync
    landing: PolledLanding | None = None
    table_start: datetime | None = None
    published: Mapping[int, int] | None = None
    checked: CheckedInventory = field(default_factory=CheckedInventory)


class SyncState:
    """The state of a stream that a process keeps between ticks; one tick at a time uses it.

    Every `full_every`-th tick compares everything, because partitions, events and rows can be
    removed by hand, and a database can be restored from a backup.
    """

    def __init__(self, *, in_ticks: bool = True, full_every: int = TICKS_PER_FULL_SYNC) -> None:
        self._full_every = full_every
        self._in_ticks = in_ticks
        self._lock = threading.Lock()
        self._ticks = 0
        self._memory = _Memory(partitions=PartitionSync(in_ticks=in_ticks))

    @contextmanager
    def locked(self) -> Iterator[_Memory]:
        """Yield the state while holding its lock."""
        with self._lock:
            if self._ticks % self._full_every == 0:
                self._reset()
            self._ticks += 1
            yield self._memory

    def _reset(self) -> None:
        previous = self._memory
        self._memory = _Memory(partitions=PartitionSync(in_ticks=self._in_ticks))
        if previous.landing is not None:
            previous.landing.forget()
            self._memory.landing = previous.landing
            self._memory.table_start = previous.table_start


def register_and_plan(
    pipeline: Pipeline,
    stream: Stream,
    instance: dg.DagsterInstance,
    *,
    drain: bool,
    state: SyncState | None = None,
    filesystem: FileSystem | None = None,
) -> TickResult:
    """Register new files, plan batches, and compare the inventory with what Dagster knows.

    Changes only the inventory, never a user's own meta table; the caller adds partitions and
    reports events. `drain` waits for files that are being written and plans even a small last
    batch. `filesystem` replaces that of the landing's URI.

    Raises:
        InventoryOlderError: the storage has manifests that the inventory does not know.
    """
    with (state or SyncState(in_ticks=False)).locked() as memory:
        _reconcile(pipeline, stream, memory)
        table = pipeline.meta_table(stream)
        registered = Registered(found=0, new_items=0)
        errors: tuple[PipelineError, ...] = ()
        if not isinstance(table, UserMetaTable):  # the rows of a user's table are the items
            landing = _landing(pipeline, stream, table, memory, wait=drain, filesystem=filesystem)
            registered = table.register(landing.found_files(), cutter=pipeline.cutter(stream))
            registered = landing.settled(registered)
            errors = (*landing.troubles,)
        planned = pipeline.database.batches.plan(table, stream.limits, drain=drain)
        sync = memory.partitions.diff(pipeline, stream, batches_of(stream), instance)
    return TickResult(registered=registered, planned=planned, sync=sync, errors=errors)


def sync_partitions(
    pipeline: Pipeline,
    stream: Stream,
    asset: PartitionedAsset,
    instance: dg.DagsterInstance,
    state: SyncState | None = None,
) -> SyncPlan:
    """Compare the batches of an asset with what Dagster knows, without planning any.

    Raises:
        InventoryOlderError: the storage has manifests that the inventory does not know.
    """
    with (state or SyncState(in_ticks=False)).locked() as memory:
        _reconcile(pipeline, stream, memory)
        return memory.partitions.diff(pipeline, stream, asset, instance)


def _reconcile(pipeline: Pipeline, stream: Stream, memory: _Memory) -> None:
    """Close attempts that crashes left open, and write missing manifest files after a publish.

    Raises:
        InventoryOlderError: the storage has manifests that the inventory does not know.
    """
    ensure_inventory_current(pipeline.database, stream, memory.checked)
    database = pipeline.database
    counts = database.change_feed.publish_counts(stream.name)
    if counts == memory.published:
        database.attempts.close_dead(stream.name)
        return
    result = reconcile(stream.name, database.attempts, database.manifests, pipeline.storage(stream))
    for error in result.troubles:  # the hourly job fails; registering and planning go on
        logging.getLogger("batch_pipeline").warning("%s: %s", stream.name, error)
    memory.published = counts


def _landing(
    pipeline: Pipeline,
    stream: Stream,
    table: OwnMetaTable,
    memory: _Memory,
    *,
    wait: bool,
    filesystem: FileSystem | None,
) -> PolledLanding:
    """Return the landing of the last tick, or a new one if the meta table was restarted since."""
    table_start = table.first_registered_at()
    landing = memory.landing
    if landing is None or table_start != memory.table_start:
        landing = pipeline.watched_landing(stream, wait=wait, filesystem=filesystem)
        memory.landing, memory.table_start = landing, table_start
    return landing
