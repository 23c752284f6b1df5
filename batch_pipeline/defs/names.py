"""Names of Dagster objects: the only place where they are built.

Names of a stream's objects start with the stream, all others with `batch_pipeline_`, so that they
do not collide with those of the project that loads them.
"""

import dagster as dg

from batch_pipeline.model.stream import Stream, checked_name

STREAM_TAG = "batch_pipeline/stream"
RANGE_START_TAG = "dagster/asset_partition_range_start"  # Dagster's tags of a run over a range
RANGE_END_TAG = "dagster/asset_partition_range_end"
DRAIN_TAG = "batch_pipeline/drain"  # value: the home whose lock the process of the run holds
PARTITION_TAG = "dagster/partition"
DATA_VERSION_TAG = "dagster/data_version"
DAGSTER_BACKFILL_TAG = "dagster/backfill"  # value: the id of the Dagster backfill that launched it
PRIORITY_TAG = "dagster/priority"
RETRY_TAG = "dagster/retry_number"  # on a run that repeats a run whose process died
RESUME_TAG = "dagster/is_resume_retry"  # on a run that repeats only failed steps of another run
ASSET_RESUME_TAG = "dagster/is_asset_resume_retry"  # on one that repeats unmaterialized assets
WILL_RETRY_TAG = "dagster/will_retry"  # value `true` on a failed run: Dagster will repeat it
AUTO_RETRY_TAG = "dagster/auto_retry_run_id"  # on a failed run: Dagster has repeated it
MAX_RETRIES_TAG = "dagster/max_retries"
LAUNCH_TAG = "batch_pipeline/launch"  # value `new`: skip batches that are published already
BACKFILL_TAG = "batch_pipeline/backfill"  # value: the name of the backfill
CLOSED_TAG = "batch_pipeline/closed"  # value: the run whose batches were cancelled

PLAN_BACKFILL_JOB = "batch_pipeline_plan_backfill"
CHECK_STREAMS_JOB = "batch_pipeline_check_streams"
RECONCILE_JOB = "batch_pipeline_reconcile"
COLLECT_GARBAGE_JOB = "batch_pipeline_collect_garbage"
STREAM_FILES_SENSOR = "batch_pipeline_stream_files"
RUN_ENDS_SENSOR = "batch_pipeline_run_ends"

# Keys of resources; definitions take them as parameters of these names.
PIPELINE_RESOURCE = "batch_pipeline"
SPARK_RESOURCE = "batch_pipeline_spark"
S3_RESOURCE = "batch_pipeline_s3"
CHECKS_RESOURCE = "batch_pipeline_checks"


def batches_of(stream: str) -> dg.AssetKey:
    """Return the key of the asset whose partitions are a stream's batches, for `deps`.

    Raises:
        InvalidValueError: the name cannot be that of a stream.
    """
    return dg.AssetKey([checked_name(stream), "batches"])


def partitions_of(stream: str) -> dg.DynamicPartitionsDefinition:
    """Return the partitions definition of a stream's batches, for `partitions_def`.

    Keys are added in the order in which batches are planned, and never removed.

    Raises:
        InvalidValueError: the name cannot be that of a stream.
    """
    return dg.DynamicPartitionsDefinition(name=f"{checked_name(stream)}.batches")


def backfill_partitions_of(stream: str) -> dg.DynamicPartitionsDefinition:
    """Return the partitions definition of a stream's backfills; keys name backfill and range."""
    return dg.DynamicPartitionsDefinition(name=f"{stream}.backfill")


def files_key(stream: Stream) -> dg.AssetKey:
    """Return the key of the asset for the stream's meta table."""
    return dg.AssetKey([stream.name, "files"])


def backfill_asset_key(stream: Stream) -> dg.AssetKey:
    """Return the key of the asset whose partitions are the batches of the stream's backfills."""
    return dg.AssetKey([stream.name, "backfill"])


def loaded_key(stream: Stream) -> dg.AssetKey:
    """Return the key of the asset whose partitions are the stream's batches in its targets."""
    return dg.AssetKey([stream.name, "loaded"])


def group(stream: Stream) -> str:
    """Return the name of the stream's asset group."""
    return stream.dagster.group or stream.identifier


def pool(stream: Stream) -> str:
    """Return the name of the pool that limits the stream's encoding runs."""
    return stream.dagster.pool or stream.identifier


def register_job(stream: Stream) -> str:
    """Return the name of the Dagster job that registers files and plans batches."""
    return f"{stream.identifier}_register"


def encode_job(stream: Stream) -> str:
    """Return the name of the Dagster job that encodes batches."""
    return f"{stream.identifier}_encode"


def encode_backfill_job(stream: Stream) -> str:
    """Return the name of the Dagster job that encodes batches of backfills."""
    return f"{stream.identifier}_encode_backfill"


def load_job(stream: Stream) -> str:
    """Return the name of the Dagster job that loads pending batches."""
    return f"{stream.identifier}_load"


def run_tags(stream: Stream, first_key: str, last_key: str) -> dict[str, str]:
    """Return the tags of a run that encodes all batches from one partition key to another."""
    return {STREAM_TAG: stream.name, RANGE_START_TAG: first_key, RANGE_END_TAG: last_key}
