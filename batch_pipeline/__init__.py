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

Where do I go to …

- change what a stream file may say?      settings/stream_attributes.py
- read another file format?               spark/read/formats.py, then a reader for readers.py
- write another encoding?                 domain/encoding.py, then spark/write/outputs.py
- change what a record may be?            spark/check/, domain/schema.py
- change how records are mapped?          spark/map/
- add a column to the inventory?          inventory/tables.py, inventory/upkeep/migrations/versions/
- change what people see in Dagster?      defs/metadata.py, defs/assets.py
- change when batches are launched?       defs/sensors.py, steps/plan.py
- add a command?                          cli/
- name a new failure?                     domain/errors.py
- acquire batches without Dagster?        library/, then inventory/work/acquire.py
- read a user's table another way?        inventory/meta/reflected_table.py
- know better which ids may still come?   inventory/meta/ceilings/
- take history once more?                 inventory/jobs/backfills.py, defs/backfill.py
- know what a cancelled run means?        inventory/jobs/run_ends.py, defs/run_ends.py
- find what came too late?                inventory/jobs/late_arrivals.py
- move a batch to another state?          inventory/work/batch_states.py, the only place that does
- give a role a right?                    inventory/upkeep/rights.py
- let one job read another's results?     inventory/meta/published.py
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

__all__ = [
    "Batch",
    "acquire_batch",
    "acquire_batches",
    "audit_job",
    "cancel_job",
    "configure",
    "estimate_backfill",
    "job_status",
    "jobs",
    "pause_job",
    "plan_backfill",
    "resume_job",
    "retry_job",
]


def __getattr__(name: str) -> object:
    """Load the library when one of its names is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from batch_pipeline import library

    return getattr(library, name)
