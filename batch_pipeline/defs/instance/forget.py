"""Forgetting a stream: inventory, partitions and events. For the demo, which starts over."""

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.instance.home import open_instance
from batch_pipeline.defs.names import late_key, meta_table_key
from batch_pipeline.defs.partitioned import backfills_of, batches_of
from batch_pipeline.model.stream import Stream


def forget_stream(pipeline: Pipeline, stream: Stream) -> None:
    """Delete all that is remembered of a stream; its files stay."""
    pipeline.database.delete_stream(stream.name)
    partitioned = (batches_of(stream), backfills_of(stream))
    with open_instance(pipeline.home) as instance:
        for name in (asset.set_name for asset in partitioned):
            for key in instance.get_dynamic_partitions(name):
                instance.delete_dynamic_partition(name, key)
        keys = [asset.asset_key for asset in partitioned]
        _wipe(instance, [meta_table_key(stream), late_key(stream), *keys])


def _wipe(instance: dg.DagsterInstance, keys: list[dg.AssetKey]) -> None:
    known = [key for key in keys if instance.has_asset_key(key)]
    if known:
        instance.wipe_assets(known)
