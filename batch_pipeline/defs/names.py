"""Names of a stream's Dagster objects: the one place where they are made."""

import re

import dagster as dg

from batch_pipeline.model.stream import Stream

STREAM_TAG = "batch_pipeline/stream"
RANGE_START_TAG = "dagster/asset_partition_range_start"  # Dagster's own tags of a run over a range
RANGE_END_TAG = "dagster/asset_partition_range_end"
DRAIN_TAG = "batch_pipeline/drain"  # its value: the home whose lock the run's process holds
PARTITION_TAG = "dagster/partition"
DATA_VERSION_TAG = "dagster/data_version"
PRIORITY_TAG = "dagster/priority"
RETRY_TAG = "dagster/retry_number"  # on a run that Dagster made to repeat one that died
WILL_RETRY_TAG = "dagster/will_retry"  # on a run that failed, its value `true`: Dagster repeats it
MAX_RETRIES_TAG = "dagster/max_retries"
LAUNCH_TAG = "batch_pipeline/launch"  # its value `new`: leave out what is published already
BACKFILL_TAG = "batch_pipeline/backfill"  # its value: the name of the backfill
CLOSED_TAG = "batch_pipeline/closed"  # its value `cancelled`: its batches were called off
PLAN_BACKFILL_JOB = "plan_backfill"
CHECK_STREAMS_JOB = "check_streams"
CHECK_CHECKSUMS_JOB = "check_checksums"
RECONCILE_JOB = "reconcile"
COLLECT_GARBAGE_JOB = "collect_garbage"
STREAM_FILES_SENSOR = "stream_files"


def identifier(stream: Stream) -> str:
    """Write a stream's name with the characters that Dagster allows in names of its own."""
    return re.sub(r"[^A-Za-z0-9_]", "_", stream.name)


def group(stream: Stream) -> str:
    """Name of the asset group of the stream's assets."""
    return stream.dagster.group or identifier(stream)


def pool(stream: Stream) -> str:
    """Name of the pool whose limit holds for the stream's runs that encode."""
    return stream.dagster.pool or identifier(stream)


def meta_table_key(stream: Stream) -> dg.AssetKey:
    """Key of the asset that stands for the stream's meta table."""
    return dg.AssetKey([stream.name, "meta_table"])


def batches_of(stream: str) -> dg.AssetKey:
    """Return the key of the asset whose partitions are a stream's batches, for `deps`."""
    return dg.AssetKey([stream, "batches"])


def partitions_of(stream: str) -> dg.DynamicPartitionsDefinition:
    """Return the partition set of a stream's batches, for `partitions_def`.

    It is a projection of the inventory: keys are added in id order and never removed.
    """
    return dg.DynamicPartitionsDefinition(name=f"{stream}.batches")


def batches_key(stream: Stream) -> dg.AssetKey:
    """Key of the asset whose partitions are the stream's batches."""
    return batches_of(stream.name)


def backfill_asset_key(stream: Stream) -> dg.AssetKey:
    """Key of the asset whose partitions are the batches of the stream's backfills."""
    return dg.AssetKey([stream.name, "backfill"])


def late_key(stream: Stream) -> dg.AssetKey:
    """Key of the asset that stands for the stream's late arrivals."""
    return dg.AssetKey([stream.name, "late"])


def loaded_key(stream: Stream) -> dg.AssetKey:
    """Key of the asset whose partitions are the stream's batches in its targets."""
    return dg.AssetKey([stream.name, "loaded"])


def partitions(stream: Stream) -> dg.DynamicPartitionsDefinition:
    """The partition set of the stream's batches."""
    return partitions_of(stream.name)


def backfill_partitions(stream: Stream) -> dg.DynamicPartitionsDefinition:
    """The partition set of backfills: keys name backfill and range; added to, never taken from."""
    return dg.DynamicPartitionsDefinition(name=f"{stream.name}.backfill")


def meta_table_job(stream: Stream) -> str:
    """Name of the Dagster job that registers and plans."""
    return f"{identifier(stream)}_register"


def batches_job(stream: Stream) -> str:
    """Name of the Dagster job that encodes batches."""
    return f"{identifier(stream)}_encode"


def backfill_job(stream: Stream) -> str:
    """Name of the Dagster job that encodes batches of backfills."""
    return f"{identifier(stream)}_encode_backfill"


def late_job(stream: Stream) -> str:
    """Name of the Dagster job that encodes batches of late arrivals."""
    return f"{identifier(stream)}_late"


def load_job(stream: Stream) -> str:
    """Name of the Dagster job that loads all that is due."""
    return f"{identifier(stream)}_load"


def run_tags(stream: Stream, first_key: str, last_key: str) -> dict[str, str]:
    """Tags of a run that encodes all batches from one partition key to another."""
    return {STREAM_TAG: stream.name, RANGE_START_TAG: first_key, RANGE_END_TAG: last_key}
