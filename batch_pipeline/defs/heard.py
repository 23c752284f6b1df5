"""What Dagster has not heard of yet of an asset's batches: partitions to add, events to report.

The inventory says what is new since the last look, and Dagster is asked about nothing else. What is
remembered lives in one process and may be lost at any time: then everything is compared. A key or
an event is remembered as missing until Dagster itself shows it: that a tick asked for it proves
nothing. An event of a batch stands for the generation that it tells of, and for those before it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.key_order import KeyOrder
from batch_pipeline.defs.metadata import batch_materialization, generation_of
from batch_pipeline.defs.names import DATA_VERSION_TAG
from batch_pipeline.defs.partitioned import Partitioned
from batch_pipeline.defs.sensors.run_keys import reporting_runs
from batch_pipeline.inventory.change_feed import Cursor
from batch_pipeline.model.batch import Batch, BatchStatus
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.reconcile import pointer_of

MOST_KEYS = 10_000  # adding so many takes Postgres half a second
MOST_EVENTS = 500
_FEW = 500  # above, reading all that Dagster knows is cheaper than asking for each


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The batches of an asset, and what Dagster does not know of them yet.

    `statuses` has at least the batches that are due. `new_keys` are partitions to add, in order,
    and `order` all keys once they are added; `unseen` are materializations that a crash kept from
    Dagster although their batches are published, each of the newest generation.
    """

    statuses: Iterable[BatchStatus]
    new_keys: Sequence[str]
    order: Sequence[str]
    unseen: Sequence[dg.AssetMaterialization]


@dataclass(frozen=True, slots=True)
class _Published:
    """A published batch and its newest generation."""

    batch: Batch
    generation: int


@dataclass(slots=True)
class Heard:
    """What one process remembers of an asset; not for two threads at once.

    With `in_ticks` a look gives what one tick of a sensor takes and the batches that are due, else
    all there is.
    """

    in_ticks: bool
    _marks: Mapping[int, Cursor] = field(default_factory=dict)
    _keys: dict[str, None] = field(default_factory=dict)
    _events: dict[str, _Published] = field(default_factory=dict)

    def look(
        self, pipeline: Pipeline, stream: Stream, asset: Partitioned, instance: dg.DagsterInstance
    ) -> Known:
        """Compare what is new in the inventory with Dagster; nothing is added or reported."""
        self._read(pipeline, stream, asset)
        there = _there(instance, asset, self._keys)
        for key in there:
            self._keys.pop(key, None)
        new_keys = list(islice(self._keys, MOST_KEYS if self.in_ticks else None))
        unseen = self._unseen(pipeline, stream, asset, instance)
        due = _Due(pipeline, stream, asset)
        return Known(
            statuses=due if self.in_ticks else asset.statuses(pipeline.database),
            new_keys=new_keys,
            order=KeyOrder(lambda: _order(instance, asset, new_keys)),
            unseen=unseen,
        )

    def _read(self, pipeline: Pipeline, stream: Stream, asset: Partitioned) -> None:
        news = pipeline.database.change_feed.since(stream.name, asset.kind, self._marks)
        self._keys |= dict.fromkeys(asset.key_of(one) for one in news.planned)
        published = (_Published(one, news.generations[one.id]) for one in news.published)
        self._events |= {asset.key_of(one.batch): one for one in published}
        self._marks = news.cursors

    def _unseen(
        self, pipeline: Pipeline, stream: Stream, asset: Partitioned, instance: dg.DagsterInstance
    ) -> list[dg.AssetMaterialization]:
        for key in _shown(instance, asset, self._events):
            del self._events[key]
        if not self._events:
            return []
        # A run that is under way, or repeated, reports what it has published by its end.
        at_work = reporting_runs(instance, asset).keys(KeyOrder(lambda: _order(instance, asset)))
        events = []
        missing = [key for key in self._events if key not in at_work]
        for key in missing[: MOST_EVENTS if self.in_ticks else None]:
            manifest = pipeline.database.manifests.of_batch(self._events[key].batch)
            # Without a manifest, a worker of the library published a result of its own.
            if manifest is None or manifest.generation <= _told(instance, asset, key):
                del self._events[key]
                continue
            manifests, storage = pipeline.database.manifests, pipeline.storage(stream)
            pointer_uri = pointer_of(manifest, manifests, storage)
            manifest = manifests.with_origin(manifest)
            events.append(batch_materialization(stream, asset, manifest, pointer_uri))
        return events


@dataclass(frozen=True, slots=True)
class _Due:
    """The batches of an asset that are due, read page by page as they are asked for."""

    pipeline: Pipeline
    stream: Stream
    asset: Partitioned

    def __iter__(self) -> Iterator[BatchStatus]:
        return self.pipeline.database.change_feed.due(self.stream.name, self.asset.kind)


def _there(
    instance: dg.DagsterInstance, asset: Partitioned, keys: Collection[str]
) -> Collection[str]:
    if not keys:
        return ()
    if len(keys) > _FEW:
        return instance.get_dynamic_partitions(asset.set_name)
    return instance.get_existing_dynamic_partitions(asset.set_name, list(keys))


def _shown(
    instance: dg.DagsterInstance, asset: Partitioned, published: Mapping[str, _Published]
) -> list[str]:
    """Give the keys of what Dagster shows in its newest generation, without reading any event.

    Of a batch that was published once, any materialization tells; an event without a data version
    says nothing of later generations here.
    """
    there = [key for key in _materialized(instance, asset, published) if key in published]
    later = [key for key in there if published[key].generation > 1]
    told = _data_versions(instance, asset, later)
    return [key for key in there if published[key].generation <= told.get(key, 1)]


def _data_versions(
    instance: dg.DagsterInstance, asset: Partitioned, keys: Sequence[str]
) -> dict[str, int]:
    """Give the data versions that are generations, as the last events of partitions have them."""
    if not keys:
        return {}
    found = instance.event_log_storage.get_latest_tags_by_partition(
        asset.asset_key,
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        [DATA_VERSION_TAG],
        asset_partitions=None if len(keys) > _FEW else keys,
    )
    versions = {key: tags[DATA_VERSION_TAG] for key, tags in found.items()}
    return {key: int(text) for key, text in versions.items() if text.isdecimal()}


def _told(instance: dg.DagsterInstance, asset: Partitioned, key: str) -> int:
    """Read the generation that the last event of a partition tells of; 0 without one."""
    of_key = dg.AssetRecordsFilter(asset_key=asset.asset_key, asset_partitions=[key])
    found = instance.fetch_materializations(of_key, limit=1).records
    return generation_of(found[0].asset_materialization) if found else 0


def _materialized(
    instance: dg.DagsterInstance, asset: Partitioned, keys: Collection[str]
) -> Collection[str]:
    if not keys:
        return ()
    if len(keys) > _FEW:
        return instance.get_materialized_partitions(asset.asset_key)
    return instance.event_log_storage.get_latest_storage_id_by_partition(
        asset.asset_key, dg.DagsterEventType.ASSET_MATERIALIZATION, partitions={*keys}
    )


def _order(
    instance: dg.DagsterInstance, asset: Partitioned, new_keys: Sequence[str] = ()
) -> list[str]:
    added = instance.get_dynamic_partitions(asset.set_name)
    there: Set[str] = {*added}
    return [*added, *(key for key in new_keys if key not in there)]
