"""Files in, published BATCH manifests out: each file exactly once, in batches of bounded weight.

The walk of the data, and the room where each station is:

1. arrive    a landing listing finds a file            files/landing.py
2. register  the file becomes an item with an id       inventory/meta/meta_table.py
3. plan      items become batches of bounded weight    domain/planning.py
4. name      a batch becomes a partition in Dagster    domain/partition_key.py, defs/
5. claim     an attempt starts, with token and lease   inventory/work/attempts.py
6. encode    the items' records become part files      spark/task.py
7. publish   the attempt's row makes them count        steps/encode.py
8. say       SCHEMA, BATCH and STATE lines             singer/messages.py
9. load      a target takes them and acknowledges      steps/load.py

Where do I go to …

- change what a stream file may say?      settings/stream_attributes.py
- read another file format?               spark/read/formats.py, then a reader for readers.py
- write another encoding?                 domain/encoding.py, then spark/write/outputs.py
- change what a record may be?            spark/check/, domain/schema.py
- tell a Spark cluster something else?    spark/clusters/conf.py
- find why an executor is unfit?          spark/clusters/fitness.py
- change how records are mapped?          spark/map/
- add a column to the inventory?          inventory/tables.py, inventory/upkeep/migrations/versions/
- change what people see in Dagster?      defs/metadata.py, defs/assets/
- change the component of dg projects?    defs/component.py, defs/scaffold.py
- let Prometheus know something else?     metrics/, then inventory/work/work_counts.py
- change what is checked afterwards?      domain/judgement.py, steps/verify.py, defs/checks/
- change when batches are launched?       defs/sensors/, steps/plan.py
- change what is garbage?                 domain/garbage.py, steps/collect_garbage.py
- add a command?                          cli/, then COMMANDS in cli/__init__.py
- say what `status` says another way?     cli/status.py, cli/explain.py
- change the pages of the docs?           docs/; stream_file.md is made from the models
- propose a stream for a folder?          settings/own_files/, then defs/project.py
- know what a restored backup lacks?      steps/newer.py, steps/discard.py
- name a new failure?                     domain/errors/
- acquire batches without Dagster?        library/, then inventory/work/acquire.py
- read a user's table another way?        inventory/meta/reflected_table.py
- know better which ids may still come?   inventory/meta/ceilings/
- take history once more?                 inventory/jobs/backfills.py, defs/sensors/backfills.py
- know what a cancelled run means?        inventory/jobs/run_ends.py, defs/sensors/run_ends.py
- find what came too late?                inventory/jobs/late_arrivals.py
- move a batch to another state?          inventory/work/batch_states.py, the only place that does
- give a role a right?                    inventory/roles.sql
- say something else in a message?         singer/messages.py, singer/bookmarks.py
- offer batches to Singer another way?    singer/tap/stream.py, then cli/tap.py
- read part files back as records?        singer/part_records.py, singer/part_lines.py
- load into a target another way?         steps/load.py, singer/running/loader.py
- see which BATCH files a target reads?   singer/running/capabilities.py
- load into Postgres another way?         postgres/loader.py, then postgres/writing.py
- let one job read another's results?     inventory/meta/published.py
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batch_pipeline.defs.build import build_definitions
    from batch_pipeline.defs.component import BatchStream
    from batch_pipeline.domain.errors import (
        BatchDataError,
        ConfigurationError,
        ConflictError,
        InvariantError,
        PipelineError,
        RetryableError,
    )
    from batch_pipeline.library import (
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
    from batch_pipeline.settings.stream_file import describe_stream

__all__ = [
    "Batch",
    "BatchDataError",
    "BatchStream",
    "ConfigurationError",
    "ConflictError",
    "InvariantError",
    "PipelineError",
    "RetryableError",
    "acquire_batch",
    "acquire_batches",
    "audit_job",
    "build_definitions",
    "cancel_job",
    "configure",
    "describe_stream",
    "estimate_backfill",
    "job_status",
    "jobs",
    "pause_job",
    "plan_backfill",
    "resume_job",
    "retry_job",
]


_ERRORS = "batch_pipeline.domain.errors"
_ELSEWHERE = {
    "BatchDataError": _ERRORS,
    "BatchStream": "batch_pipeline.defs.component",
    "ConfigurationError": _ERRORS,
    "ConflictError": _ERRORS,
    "InvariantError": _ERRORS,
    "PipelineError": _ERRORS,
    "RetryableError": _ERRORS,
    "build_definitions": "batch_pipeline.defs.build",
    "describe_stream": "batch_pipeline.settings.stream_file",
}


def __getattr__(name: str) -> object:
    """Load a part when its name is first asked for: the library without Dagster, the rest with."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "batch_pipeline.library")), name)


def __dir__() -> list[str]:
    """Name what is not loaded yet, too: Dagster looks here for components."""
    return sorted({*globals(), *__all__})
