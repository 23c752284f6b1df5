"""Exactly-once ingestion of files: each file is in one published batch of bounded weight.

The lifecycle of a file, and the module of each step:

1. land      a listing of the landing returns the file     storage/landing.py
2. register  the file becomes an item of the meta table    inventory/meta_tables/own_table.py
3. plan      items become batches of bounded weight        model/planning.py
4. partition a batch is a partition of a Dagster asset     model/batch.py, defs/
5. claim     an attempt starts, with a token and a lease   inventory/attempts.py
6. encode    records become part files                     encode/task.py, spark/encoder.py
7. publish   the manifest becomes visible                  pipeline/attempt.py
8. emit      SCHEMA, BATCH and STATE messages              singer/messages.py
9. load      a target receives the records                 pipeline/load.py, load/

Where to change what:

- which class implements what           app.py
- keys of the stream file               config/stream_attributes.py
- a source format                       encode/readers/formats.py, then a module beside it
- an object store                       storage/filesystem.py, then a module like storage/local.py
- which files count as landed           storage/landing.py, storage/landing_poll.py
- an output format                      model/encoding.py, then a module in storage/part_formats/
- which records are valid               encode/validation/, model/schema.py
- stream maps                           encode/mapping/
- the configuration of a Spark cluster  spark/driver.py
- why an executor cannot run tasks      spark/diagnostics.py
- the tables of the inventory           inventory/tables.py, inventory/migrations/versions/
- rights of database roles              inventory/roles.sql
- high watermarks of meta tables        inventory/meta_tables/watermarks.py
- reading a user's meta table           inventory/meta_tables/reflected_table.py
- states of a batch                     inventory/batch_states.py, the only writer
- columns of an attempt                 inventory/attempts.py, inventory/acquire.py and its SQL
- backfills                             inventory/backfills.py, defs/sensors.py
- late arrivals                         inventory/late_arrivals.py
- assets and their metadata             defs/assets.py, defs/metadata.py
- what sensors add and launch           defs/partition_sync.py, defs/sensors.py
- checks of published batches           model/checks.py, pipeline/verify.py, defs/checks.py
- what garbage collection removes       model/garbage.py, pipeline/collect_garbage.py
- restored backups                      pipeline/reconcile.py
- acquiring batches without Dagster     client/, inventory/acquire.py
- reading published batches             pipeline/published_batches.py, defs/batch_reader.py
- commands                              cli/, COMMANDS in cli/__init__.py
- history of a file or batch            cli/explain.py, inventory/manifests.py
- `init`                                config/stream_proposal.py, defs/scaffold.py
- messages and bookmarks of Singer      singer/messages.py
- the tap                               singer/tap.py, cli/tap.py
- the target                            singer/target/target.py, singer/target/sink.py
- loading into Postgres                 load/postgres.py, load/copy.py
- loading through a Singer target       load/singer_loader.py, load/singer_capabilities.py
- metrics for Prometheus                metrics.py, inventory/status.py
- errors                                model/errors.py
- docs                                  docs/
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batch_pipeline.client import (
        Batch,
        acquire_batch,
        acquire_batches,
        audit_job,
        cancel_job,
        configure,
        estimate_backfill,
        job_status,
        jobs,
        pause_job,
        plan_backfill,
        resume_job,
        retry_job,
    )
    from batch_pipeline.config.stream_file import describe_stream
    from batch_pipeline.defs.batch_reader import BatchReader
    from batch_pipeline.defs.build import build_definitions
    from batch_pipeline.defs.component import BatchResources, BatchStream
    from batch_pipeline.defs.names import batches_of, partitions_of
    from batch_pipeline.defs.resources import PipelineResource, SparkResource
    from batch_pipeline.model.errors import (
        AmbiguousJobError,
        BadWeightError,
        BatchDataError,
        BatchNotPublishedError,
        BatchReleasedError,
        ConfigurationError,
        ConflictError,
        DatabaseUnreachableError,
        FencedError,
        InvalidValueError,
        InvariantError,
        JobChangedError,
        JobPausedError,
        MetaTableError,
        MetaTableRestartedError,
        MetaUnreachableError,
        PipelineError,
        RetryableError,
        SettingError,
        StreamFileError,
        TransformError,
        UnknownBatchError,
        UnknownJobError,
        UnknownMetaTableError,
        UnknownStreamError,
    )
    from batch_pipeline.pipeline.published_batches import PublishedBatches
    from batch_pipeline.singer.parser import MessageError

__all__ = [
    "AmbiguousJobError",
    "BadWeightError",
    "Batch",
    "BatchDataError",
    "BatchNotPublishedError",
    "BatchReader",
    "BatchReleasedError",
    "BatchResources",
    "BatchStream",
    "ConfigurationError",
    "ConflictError",
    "DatabaseUnreachableError",
    "FencedError",
    "InvalidValueError",
    "InvariantError",
    "JobChangedError",
    "JobPausedError",
    "MessageError",
    "MetaTableError",
    "MetaTableRestartedError",
    "MetaUnreachableError",
    "PipelineError",
    "PipelineResource",
    "PublishedBatches",
    "RetryableError",
    "SettingError",
    "SparkResource",
    "StreamFileError",
    "TransformError",
    "UnknownBatchError",
    "UnknownJobError",
    "UnknownMetaTableError",
    "UnknownStreamError",
    "acquire_batch",
    "acquire_batches",
    "audit_job",
    "batches_of",
    "build_definitions",
    "cancel_job",
    "configure",
    "describe_stream",
    "estimate_backfill",
    "job_status",
    "jobs",
    "partitions_of",
    "pause_job",
    "plan_backfill",
    "resume_job",
    "retry_job",
]


__version__: str  # of the installed package

_ERRORS = "batch_pipeline.model.errors"
_ELSEWHERE = {
    **{name: _ERRORS for name in __all__ if name.endswith("Error")},
    "BatchReader": "batch_pipeline.defs.batch_reader",
    "BatchResources": "batch_pipeline.defs.component",
    "BatchStream": "batch_pipeline.defs.component",
    "PipelineResource": "batch_pipeline.defs.resources",
    "PublishedBatches": "batch_pipeline.pipeline.published_batches",
    "SparkResource": "batch_pipeline.defs.resources",
    "batches_of": "batch_pipeline.defs.names",
    "partitions_of": "batch_pipeline.defs.names",
    "MessageError": "batch_pipeline.singer.parser",
    "build_definitions": "batch_pipeline.defs.build",
    "describe_stream": "batch_pipeline.config.stream_file",
}


def __getattr__(name: str) -> object:
    """Import a name on first use, so that the library does not import Dagster."""
    if name == "__version__":
        from importlib.metadata import version

        return version("batch-pipeline")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "batch_pipeline.client")), name)


def __dir__() -> list[str]:
    """Include names that are not imported yet: Dagster searches components here."""
    return sorted({*globals(), *__all__})
