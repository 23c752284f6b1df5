"""Forgetting a stream: inventory, partitions and events. For the demo, which starts over."""

import dagster as dg

from batch_pipeline.defs.instance import open_instance
from batch_pipeline.defs.names import batches_key, meta_table_key, partitions
from batch_pipeline.domain.stream import Stream
from batch_pipeline.settings.pipeline import Pipeline


def forget_stream(pipeline: Pipeline, stream: Stream) -> None:
    """Delete all that is remembered of a stream; its files stay."""
    pipeline.database.forget(stream.name)
    set_name = str(partitions(stream).name)
    with open_instance(pipeline.home) as instance:
        for key in instance.get_dynamic_partitions(set_name):
            instance.delete_dynamic_partition(set_name, key)
        _wipe(instance, [meta_table_key(stream), batches_key(stream)])


def _wipe(instance: dg.DagsterInstance, keys: list[dg.AssetKey]) -> None:
    known = [key for key in keys if instance.has_asset_key(key)]
    if known:
        instance.wipe_assets(known)
