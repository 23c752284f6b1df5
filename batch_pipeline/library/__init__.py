"""The library: acquire batches of any meta table from your own Python, without Dagster or Spark.

    from batch_pipeline import acquire_batch

    batch = acquire_batch("orders", "ops.files", {"uid": "id"}, batch_weight=64_000_000)
    if batch is not None:
        batch.process(my_function)

Nothing is opened at import; the first use connects. Here are the functions that acquire: what a
batch can do is in `batch`, what may be asked in `asked`, the connections in `session`, backfills in
`past`, what steers jobs in `control`.
"""

import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.library.asked import LEASE, Asked
from batch_pipeline.library.batch import Batch
from batch_pipeline.library.control import (
    audit_job,
    cancel_job,
    job_status,
    jobs,
    pause_job,
    resume_job,
    retry_job,
)
from batch_pipeline.library.past import estimate_backfill, plan_backfill
from batch_pipeline.library.session import SESSIONS, own_names
from batch_pipeline.settings.environment import load_settings

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
    """Choose the databases: `settings` win over the environment, that over the dot-env file given.

    Then comes the file that BATCH_PIPELINE_ENV_FILE names, then the defaults. Without a call, the
    first use does this by itself. Connections of an earlier configuration are closed, and batches
    acquired with it are free for others. Nothing is connected yet.

    Raises:
        InvalidValueError: `dot_env` is no path, or `settings` is no dict; nothing is changed.
        SettingError: a value cannot be used, or a name is unknown; nothing is changed.
    """
    given: object = dot_env
    if given is not None and not isinstance(given, str | Path):
        expected = "the path of a dot-env file; a dict of settings goes to settings=…"
        raise InvalidValueError("dot_env", type(given).__name__, expected)
    loaded = load_settings(
        dot_env=None if dot_env is None else Path(dot_env),
        settings=None if settings is None else own_names(settings),
        environment=os.environ,
    )
    SESSIONS.replace(loaded)


def acquire_batch(  # noqa: PLR0913, PLR0917 - a call with names, of which two are needed
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
    lease: timedelta = LEASE,
) -> Batch | None:
    """Acquire the next batch of a job on a meta table; None when nothing is left.

    Batches that wait (of a process that died, of late arrivals) come first, then new items in id
    order, then failed batches until each was tried `max_attempts` times; with `bisect` those are
    then split until the bad item is alone.

    Args:
        job: name of the bookmark; the table is part of it, however its name is written.
        meta_table_name: `table` or `schema.table`, a view too.
        meta_table_cols: names of the columns that are `uid`, `item` and `weight`; None for
            `weight` when items have none.
        job_identifier: kept with the attempt, for people.
        batch_id_min: lowest id to look at.
        batch_id_max: highest id to look at.
        batch_weight: most that the items of a batch may weigh; a heavier item is alone in its own.
        batch_count: most items of a batch.
        where: filter as lists and dicts, `[{"column": …, "operator": "=", "value": …}]`; it never
            changes for a job.
        max_attempts: how often a batch is tried.
        bisect: whether a batch that was tried that often is split.
        ceiling: how ids that may still appear are told; chosen by the database if left out.
        settle_by: column with insert times, or (column, timedelta), for `ceiling="settle"`.
        on_bad_weight: what an item counts whose weight is NULL or negative; refused if left out.
        lease: how long a process may be silent before its batch is handed out again; 5 minutes
            unless told.

    Raises:
        InvalidValueError: an argument cannot be used.
        ConfigurationError: the table, its columns or the job are not what was asked for.
        RetryableError: a database does not answer, or the job is paused. Nothing was acquired.
    """
    asked = Asked(**locals())
    return SESSIONS.current().acquire(asked)


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
    lease: timedelta = LEASE,
) -> Iterator[Batch]:
    """Give up to `iterations` batches, or all that are left; each is acquired when asked for.

    Takes what `acquire_batch` takes, and raises the same.
    """
    given = dict(locals())
    del given["iterations"]
    if iterations is not None and (not isinstance(iterations, int) or iterations < 0):
        raise InvalidValueError("iterations", iterations, "a whole number from 0, or None")
    return _acquired(Asked(**given), iterations)


def _acquired(asked: Asked, iterations: int | None) -> Iterator[Batch]:
    count = 0
    while iterations is None or count < iterations:
        batch = SESSIONS.current().acquire(asked)
        if batch is None:
            return
        count += 1
        yield batch
        del batch  # else a batch that was forgotten would be held until the next is there


def close() -> None:
    """Close all connections; the next use configures itself from the environment."""
    SESSIONS.close()
