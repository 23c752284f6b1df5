"""Synchronization of the inventory with Dagster's partitions and materializations."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from time import monotonic

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.instance.private_api import latest_tags, materialized_keys
from batch_pipeline.defs.metadata import batch_materialization, latest_generation
from batch_pipeline.defs.names import DATA_VERSION_TAG
from batch_pipeline.defs.partitions import KeyOrder, PartitionedAsset
from batch_pipeline.defs.runs import unfinished_runs
from batch_pipeline.inventory.change_feed import Cursor
from batch_pipeline.inventory.meta_tables.sources import UserMetaTable
from batch_pipeline.model.batch import Batch, BatchStatus
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.item import Registered
from batch_pipeline.model.planning import Planned
from batch_pipeline.pipeline.reconcile import (
    CheckedInventory,
    ensure_inventory_current,
    reconcile,
)
from batch_pipeline.storage.filesystem import FileSystem
from batch_pipeline.storage.landing_poll import PolledLanding

MAX_KEYS_PER_TICK = 10_000  # adding this many takes Postgres half a second
MAX_EVENTS_PER_TICK = 500
_MOST_SECONDS_PER_TICK = 15  # for events; Dagster discards a tick that takes 60 s
TICKS_PER_FULL_SYNC = 120
# For more keys, reading all from Dagster is cheaper than a query for each.
_MAX_KEYS_PER_LOOKUP = 500
_MAX_KEYS_ONE_BY_ONE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlan:
    """The batches of an asset, and the partitions and events that Dagster is missing.

    `statuses` has at least the batches that are due, and can be iterated once. `new_keys` are
    partitions to add, in order, and `order` has all keys after that. `unseen` are materializations
    of published batches that Dagster lacks because of a crash, each of the newest generation.
    """

    statuses: Iterable[BatchStatus]
    new_keys: Sequence[str]
    order: KeyOrder
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult:
    """The result of a tick; `errors` are those that excluded some files of the landing."""

    registered: Registered
    planned: Planned
    sync: SyncPlan
    errors: tuple[PipelineError, ...] = ()


class PartitionSync:
    """A comparison of an asset's batches with Dagster that keeps state between calls.

    With `in_ticks`, a plan is limited to what one sensor tick can process and to the batches that
    are due; otherwise it is complete: it waits for files that are being written, and plans even a
    small last batch. Every `full_every`-th call compares everything, because
    partitions, events and rows can be removed by hand, and a database can be restored from a
    backup. One call at a time uses the state.
    """

    def __init__(
        self,
        asset: PartitionedAsset,
        *,
        in_ticks: bool = True,
        full_every: int = TICKS_PER_FULL_SYNC,
    ) -> None:
        self._asset = asset
        self._stream = asset.stream
        self._in_ticks = in_ticks
        self._full_every = full_every
        self._lock = threading.Lock()
        self._calls = 0
        # The landing knows the files of the meta table that was started at `_table_start`.
        self._landing: PolledLanding | None = None
        self._table_start: datetime | None = None
        self._reset()

    def _reset(self) -> None:
        self._cursors: Mapping[int, Cursor] = {}
        self._keys: dict[str, None] = {}  # planned, and not known to be partitions yet
        # Published, with the newest generation, and not known to be materialized in Dagster yet.
        self._events: dict[str, tuple[Batch, int]] = {}
        self._checked = CheckedInventory()
        self._published: Mapping[int, int] | None = None  # counts with no missing manifest files
        if self._landing is not None:
            self._landing.forget()

    @contextmanager
    def _reconciled(self, pipeline: Pipeline) -> Iterator[None]:
        """Close attempts that crashes left open, and write manifest files that are missing.

        Raises:
            InventoryOlderError: the storage has manifests that the inventory does not know.
        """
        with self._lock:
            if self._calls and self._calls % self._full_every == 0:
                self._reset()
            self._calls += 1
            database, stream = pipeline.database, self._stream
            ensure_inventory_current(database, stream, self._checked)
            counts = database.change_feed.publish_counts(stream.name)
            if counts == self._published:
                database.attempts.close_dead(stream.name)
            else:
                storage = pipeline.storage(stream)
                result = reconcile(stream.name, database.attempts, database.manifests, storage)
                for error in result.troubles:  # the hourly job fails; registering continues
                    logging.getLogger("batch_pipeline").warning("%s: %s", stream.name, error)
                self._published = counts
            yield

    def register_and_plan(
        self,
        pipeline: Pipeline,
        instance: dg.DagsterInstance,
        *,
        filesystem: FileSystem | None = None,
    ) -> TickResult:
        """Register new files, plan batches, and compare the inventory with what Dagster knows.

        Changes only the inventory, never a user's own meta table; the caller adds partitions and
        reports events. `filesystem` replaces that of the landing's URI.

        Raises:
            InventoryOlderError: the storage has manifests that the inventory does not know.
        """
        stream, is_complete = self._stream, not self._in_ticks
        with self._reconciled(pipeline):
            table = pipeline.meta_table(stream)
            registered = Registered(found=0, new_items=0)
            errors: tuple[PipelineError, ...] = ()
            if not isinstance(table, UserMetaTable):  # the rows of a user's table are the items
                table_start = table.first_registered_at()
                if self._landing is None or table_start != self._table_start:
                    self._landing = pipeline.watched_landing(
                        stream, wait=is_complete, filesystem=filesystem
                    )
                    self._table_start = table_start
                landing = self._landing
                registered = table.register(landing.found_files(), cutter=pipeline.cutter(stream))
                registered = landing.settled(registered)
                errors = (*landing.troubles,)
            planned = pipeline.database.batches.plan(table, stream.limits, drain=is_complete)
            sync = self.diff(pipeline, instance)
        return TickResult(registered=registered, planned=planned, sync=sync, errors=errors)

    def reconcile_and_diff(self, pipeline: Pipeline, instance: dg.DagsterInstance) -> SyncPlan:
        """Compare the batches of the asset with what Dagster knows, without planning any.

        Raises:
            InventoryOlderError: the storage has manifests that the inventory does not know.
        """
        with self._reconciled(pipeline):
            return self.diff(pipeline, instance)

    def diff(self, pipeline: Pipeline, instance: dg.DagsterInstance) -> SyncPlan:
        """Compute the partitions and events that Dagster is missing; change nothing."""
        asset, name, feed = self._asset, self._stream.name, pipeline.database.change_feed
        changes = feed.since(name, asset.kinds, self._cursors)
        self._keys |= dict.fromkeys(asset.key_of(batch) for batch in changes.planned)
        self._events |= {
            asset.key_of(batch): (batch, changes.generations[batch.id])
            for batch in changes.published
        }
        self._cursors = changes.cursors
        for key in _existing_keys(instance, asset, self._keys):
            self._keys.pop(key, None)
        new_keys = list(islice(self._keys, MAX_KEYS_PER_TICK if self._in_ticks else None))
        unseen = self._unseen(pipeline, instance)
        due = feed.due(name, asset.kinds) if self._in_ticks else asset.statuses(pipeline.database)
        return SyncPlan(
            statuses=due,
            new_keys=new_keys,
            order=asset.order(instance, new_keys),
            unseen=unseen,
        )

    def _unseen(
        self, pipeline: Pipeline, instance: dg.DagsterInstance
    ) -> list[dg.AssetMaterialization]:
        asset = self._asset
        for key in _up_to_date_keys(instance, asset, self._events):
            del self._events[key]
        if not self._events:
            return []
        # Unfinished runs, and runs about to be repeated, report the batches that they published.
        runs = unfinished_runs(instance, asset.job, asset.asset_key, or_repeated=True)
        reported = runs.keys(asset.order(instance))
        events: list[dg.AssetMaterialization] = []
        missing = [key for key in self._events if key not in reported]
        manifests, storage = pipeline.database.manifests, pipeline.storage(self._stream)
        until = monotonic() + _MOST_SECONDS_PER_TICK
        for key in missing[: MAX_EVENTS_PER_TICK if self._in_ticks else None]:
            if events and self._in_ticks and monotonic() > until:
                break
            manifest = manifests.of_batch(self._events[key][0])
            # Without a manifest, a worker of the library published a result of its own.
            if manifest is None or manifest.generation <= latest_generation(
                instance, asset.asset_key, key
            ):
                del self._events[key]
                continue
            manifest = manifests.with_origin(manifest)
            events.append(batch_materialization(asset, manifest, storage.pointer_uri(manifest)))
        return events


def _existing_keys(
    instance: dg.DagsterInstance, asset: PartitionedAsset, keys: Collection[str]
) -> Collection[str]:
    if len(keys) > _MAX_KEYS_ONE_BY_ONE:
        return instance.get_dynamic_partitions(asset.set_name)
    return [key for key in keys if instance.has_dynamic_partition(asset.set_name, key)]


def _up_to_date_keys(
    instance: dg.DagsterInstance,
    asset: PartitionedAsset,
    published: Mapping[str, tuple[Batch, int]],
) -> list[str]:
    """Return the keys whose newest generation Dagster shows, without reading any event.

    For a batch that was published once, any materialization suffices. For others, the data version
    of the latest event is its generation; an event without one counts as generation 1.
    """
    if not published:
        return []
    is_many = len(published) > _MAX_KEYS_PER_LOOKUP
    materialized = materialized_keys(instance, asset.asset_key, None if is_many else published)
    shown = {key: 1 for key in materialized if key in published}
    later = [key for key in shown if published[key][1] > 1]
    if later:
        some = None if len(later) > _MAX_KEYS_PER_LOOKUP else later
        versions = latest_tags(instance, asset.asset_key, DATA_VERSION_TAG, some)
        shown |= {key: int(versions[key]) for key in later if versions.get(key, "").isdecimal()}
    return [key for key, generation in shown.items() if published[key][1] <= generation]
