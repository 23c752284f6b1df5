"""Stations 1 to 4 for Dagster: register, plan, and show every batch as a partition."""

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from batch_pipeline.defs.metadata import batch_materialization
from batch_pipeline.defs.partitioned import Partitioned, backfills_of, batches_of
from batch_pipeline.domain.batch import BatchState, BatchStatus
from batch_pipeline.domain.item import Registered
from batch_pipeline.domain.planning import Planned
from batch_pipeline.domain.stream import Stream
from batch_pipeline.inventory.meta.user_meta_table import UserMetaTable
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.steps.plan import plan
from batch_pipeline.steps.reconcile import reconcile
from batch_pipeline.steps.register import register


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The batches of an asset, and what Dagster does not know of them yet.

    `new_keys` are partitions to add, in order, and `order` all keys once they are added; `unseen`
    are materializations that a crash kept from Dagster although their batches are published.
    """

    statuses: Sequence[BatchStatus]
    new_keys: Sequence[str]
    order: Sequence[str]
    unseen: Sequence[dg.AssetMaterialization]


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """What one look at the landing brought."""

    registered: Registered
    planned: Planned
    known: Known


def discover(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance, *, drain: bool
) -> Discovered:
    """Look for new files, plan them, and compare the inventory with what Dagster knows.

    Changes the inventory only, never a user's own meta table; the caller adds partitions and
    reports events. `drain` waits for files that are being written and plans even a small last
    batch.
    """
    database = pipeline.database
    reconcile(stream.name, database.attempts, database.manifests, pipeline.storage(stream))
    table = pipeline.meta_table(stream)
    registered = Registered(found=0, new_items=0)
    if not isinstance(table, UserMetaTable):  # the rows of a user's table are the items
        registered = register(pipeline.landing(stream, wait=drain), table)
    planned = plan(database.batches, table, stream, drain=drain)
    known = compare(pipeline, stream, batches_of(stream), instance)
    return Discovered(registered=registered, planned=planned, known=known)


def look_at_backfills(pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance) -> Known:
    """Close what a crash left open, and compare the backfills of a stream with Dagster's keys."""
    database = pipeline.database
    reconcile(stream.name, database.attempts, database.manifests, pipeline.storage(stream))
    return compare(pipeline, stream, backfills_of(stream), instance)


def compare(
    pipeline: Pipeline, stream: Stream, asset: Partitioned, instance: dg.DagsterInstance
) -> Known:
    """Compare the inventory with what Dagster knows of an asset; nothing is added or reported."""
    statuses = asset.statuses(pipeline.database)
    added = instance.get_dynamic_partitions(asset.set_name)
    there = {*added}
    live = (one.batch for one in statuses if one.state is not BatchState.SUPERSEDED)
    new_keys = [key for key in map(asset.key_of, live) if key not in there]
    return Known(
        statuses=statuses,
        new_keys=new_keys,
        order=[*added, *new_keys],
        unseen=_unseen(pipeline, stream, asset, instance, statuses),
    )


def _unseen(
    pipeline: Pipeline,
    stream: Stream,
    asset: Partitioned,
    instance: dg.DagsterInstance,
    statuses: Sequence[BatchStatus],
) -> list[dg.AssetMaterialization]:
    published = [status for status in statuses if status.state is BatchState.PUBLISHED]
    if not published:
        return []
    seen = instance.get_materialized_partitions(asset.asset_key)
    events = []
    for status in published:
        if asset.key_of(status.batch) not in seen:
            manifest = pipeline.database.manifests.of_batch(status.batch)
            if manifest is not None:
                pointer_uri = pipeline.storage(stream).point_to(manifest)
                events.append(batch_materialization(stream, asset, manifest, pointer_uri))
    return events
