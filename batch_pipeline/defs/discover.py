"""Stations 1 to 4 for Dagster: register, plan, and show every batch as a partition."""

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from batch_pipeline.defs.metadata import batch_materialization
from batch_pipeline.defs.names import batches_key, partitions
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
class Discovered:
    """What one look at the landing brought.

    `new_keys` are partitions to add, in order; `unseen` are materializations that a crash kept from
    Dagster although their batches are published.
    """

    registered: Registered
    planned: Planned
    statuses: Sequence[BatchStatus]
    new_keys: Sequence[str]
    unseen: Sequence[dg.AssetMaterialization]


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
    statuses = database.batches.statuses(stream.name)
    known = set(instance.get_dynamic_partitions(str(partitions(stream).name)))
    return Discovered(
        registered=registered,
        planned=planned,
        statuses=statuses,
        new_keys=[
            status.batch.key
            for status in statuses
            if status.batch.key not in known and status.state is not BatchState.SUPERSEDED
        ],
        unseen=_unseen(pipeline, stream, instance, statuses),
    )


def _unseen(
    pipeline: Pipeline,
    stream: Stream,
    instance: dg.DagsterInstance,
    statuses: Sequence[BatchStatus],
) -> list[dg.AssetMaterialization]:
    published = [status for status in statuses if status.state is BatchState.PUBLISHED]
    if not published:
        return []
    seen = instance.get_materialized_partitions(batches_key(stream))
    events = []
    for status in published:
        if status.batch.key not in seen:
            manifest = pipeline.database.manifests.of_batch(status.batch)
            if manifest is not None:
                pointer_uri = pipeline.storage(stream).point_to(manifest)
                events.append(batch_materialization(stream, manifest, pointer_uri))
    return events
