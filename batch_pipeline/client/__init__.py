"""The library: acquire batches of any meta table in your own Python code, without Dagster or Spark.

    from batch_pipeline import acquire_batch

    batch = acquire_batch("orders", "ops.files", {"uid": "id"}, batch_weight=64_000_000)
    if batch is not None:
        batch.process(my_function)

Nothing is opened at import; the first use connects. This module acquires batches. `batch` has
the class that callers work with, `session` validates arguments and holds the connections, and
`job_control` inspects, controls and backfills jobs.
"""

import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from batch_pipeline.client.batch import Batch
from batch_pipeline.client.job_control import (
    audit_job,
    cancel_job,
    estimate_backfill,
    job_status,
    jobs,
    pause_job,
    plan_backfill,
    resume_job,
    retry_job,
)
from batch_pipeline.client.session import DEFAULT_LEASE, SESSIONS, AcquireOptions, setting_names
from batch_pipeline.config.environment import load_settings
from batch_pipeline.model.errors import InvalidValueError

__all__ = [
    "Batch",
    "acquire_batch",
    "acquire_batches",
    "audit_job",
    "cancel_job",
    "close",
    "configure",
    "estimate_backfill",
    "job_status",
    "jobs",
    "pause_job",
    "plan_backfill",
    "resume_job",
    "retry_job",
]


def configure(
    dot_env: str | Path | None = None, settings: Mapping[str, object] | None = None
) -> None:
    """Configure the databases, without connecting.

    `settings` override the environment, which overrides the file `dot_env`, then the file that
    BATCH_PIPELINE_ENV_FILE names, then the defaults. Without a call, the first use configures the
    library. Connections of an earlier configuration are closed, and its unreleased batches are
    handed out again.

    Raises:
        InvalidValueError: `dot_env` is not a path, or `settings` is not a dict. Nothing is changed.
        SettingError: a value is not valid, or a name is unknown. Nothing is changed.
    """
    path: object = dot_env
    if path is not None and not isinstance(path, str | Path):
        expected = "the path of a dot-env file; a dict of settings goes to settings=…"
        raise InvalidValueError("dot_env", type(path).__name__, expected)
    loaded = load_settings(
        dot_env=None if dot_env is None else Path(dot_env),
        settings=None if settings is None else setting_names(settings),
        environment=os.environ,
    )
    SESSIONS.replace(loaded)


def acquire_batch(  # noqa: PLR0913, PLR0917 - called with keywords, two of them required
    job: str,
    meta_table_name: str,
    meta_table_cols: Mapping[str, str | None] | None = None,
    job_identifier: str | None = None,
    batch_id_min: int | None = None,
    batch_id_max: int | None = None,
    batch_weight: float | None = None,
    batch_count: int | None = None,
    where: list[Any] | dict[str, Any] | None = None,
    *,
    max_attempts: int = 3,
    bisect: bool = False,
    ceiling: str | None = None,
    settle_by: str | tuple[str, timedelta] | None = None,
    on_bad_weight: int | None = None,
    lease: timedelta = DEFAULT_LEASE,
) -> Batch | None:
    """Acquire the next batch of a job on a meta table; return None if nothing is left.

    Waiting batches (of a process that died, of late arrivals) come first, then new items in id
    order, then failed batches up to `max_attempts` attempts each. With `bisect`, batches that still
    fail are split until the bad item is alone.

    Args:
        job: name of the bookmark; jobs of different meta tables may share a name.
        meta_table_name: `table` or `schema.table`; may be a view.
        meta_table_cols: names of the `uid`, `item` and `weight` columns; None for `weight` if items
            have no weight.
        job_identifier: text stored with the attempt.
        batch_id_min: lowest id to acquire.
        batch_id_max: highest id to acquire.
        batch_weight: maximum weight of a batch; a heavier item is a batch of its own.
        batch_count: maximum number of items of a batch.
        where: filter as lists and dicts, `[{"column": …, "operator": "=", "value": …}]`; it cannot
            be changed for a job.
        max_attempts: maximum number of attempts on a batch.
        bisect: whether a batch is split after that many attempts.
        ceiling: strategy of the high watermark; by default the database's.
        settle_by: column with insert times, or (column, timedelta), for `ceiling="settle"`.
        on_bad_weight: weight of an item whose weight is NULL or negative; by default an error.
        lease: how long a process may be silent before its batch is handed out again, by default 5
            minutes.

    Raises:
        InvalidValueError: an argument is not valid.
        ConfigurationError: the table, its columns or the job do not match the arguments.
        RetryableError: a database does not answer, or the job is paused. Nothing was acquired.
    """
    options = AcquireOptions(**locals())
    return SESSIONS.current().acquire(options)


def acquire_batches(  # noqa: PLR0913, PLR0917 - as acquire_batch
    job: str,
    meta_table_name: str,
    meta_table_cols: Mapping[str, str | None] | None = None,
    job_identifier: str | None = None,
    batch_id_min: int | None = None,
    batch_id_max: int | None = None,
    batch_weight: float | None = None,
    batch_count: int | None = None,
    where: list[Any] | dict[str, Any] | None = None,
    iterations: int | None = None,
    *,
    max_attempts: int = 3,
    bisect: bool = False,
    ceiling: str | None = None,
    settle_by: str | tuple[str, timedelta] | None = None,
    on_bad_weight: int | None = None,
    lease: timedelta = DEFAULT_LEASE,
) -> Iterator[Batch]:
    """Yield up to `iterations` batches, or all that are left; each is acquired when it is needed.

    The other arguments and the errors are those of `acquire_batch`.
    """
    arguments = dict(locals())
    del arguments["iterations"]
    if iterations is not None and (not isinstance(iterations, int) or iterations < 0):
        raise InvalidValueError("iterations", iterations, "a whole number of at least 0, or None")
    return _acquire_each(AcquireOptions(**arguments), iterations)


def _acquire_each(options: AcquireOptions, iterations: int | None) -> Iterator[Batch]:
    for _ in count() if iterations is None else range(iterations):
        batch = SESSIONS.current().acquire(options)
        if batch is None:
            return
        yield batch
        del batch  # releases a forgotten batch before the next one is acquired


def close() -> None:
    """Close all connections; the next use configures the library from the environment."""
    SESSIONS.close()
