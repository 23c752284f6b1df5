"""Inspect, control and backfill jobs from Python, as the commands do.

`meta_table_name` of the control functions is needed only if jobs of several meta tables have the
same name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from batch_pipeline.client.session import SESSIONS, AcquireOptions
from batch_pipeline.inventory.job_control import Cancelled
from batch_pipeline.inventory.status import read_job_status
from batch_pipeline.model.audit import Audit
from batch_pipeline.model.backfill import Backfill, Estimate, Selection
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.job import JobReport, JobStatus
from batch_pipeline.model.planning import MAX_DURATION, Planned

_WEEK = timedelta(days=7)
_BATCHES = "the number, range `first..last` or key of a batch, or a list of these"


def jobs() -> list[JobReport]:
    """Return all jobs by name, with their batches by state and their pending items.

    Raises:
        RetryableError: the inventory does not answer.
    """
    return SESSIONS.current().database.jobs.jobs()


def job_status(  # noqa: PLR0913 - the arguments of acquire_batch
    job: str,
    meta_table_name: str,
    meta_table_cols: Mapping[str, str | None] | None = None,
    where: list[Any] | dict[str, Any] | None = None,
    *,
    ceiling: str | None = None,
    settle_by: str | tuple[str, timedelta] | None = None,
    on_bad_weight: int | None = None,
) -> JobStatus:
    """Return the status of a job: batches by state, unplanned items, and the high watermark.

    The arguments are those of `acquire_batch`. Nothing is changed. For a new job, all items of
    the table are unplanned. Counting unplanned items reads them all.

    Raises:
        JobChangedError: the job has another filter, other columns or another database.
        ConfigurationError: the table or its columns do not match the arguments.
        RetryableError: a database does not answer.
    """
    options = AcquireOptions(**locals())
    return SESSIONS.current().use_source(
        options,
        lambda database, source: read_job_status(database.engine, options.terms(source), source),
    )


def audit_job(
    job: str, meta_table_name: str | None = None, *, since: timedelta | None = _WEEK
) -> Audit:
    """Compare published batches with the meta table, and plan items that arrived late.

    The table is read as for the job's last batch. `since` selects batches published within that
    time, by default one week; None selects all. `acquire_batch` of the same job hands out late
    items before new ones. Each late item is planned once, even if the audit is repeated.

    Raises:
        InvalidValueError: `since` is not a positive timedelta up to 36,500 days.
        UnknownJobError, AmbiguousJobError: there is no such job, or several.
        ConfigurationError: the meta table can no longer be read.
        RetryableError: a database does not answer.
    """
    session = SESSIONS.current()
    stored_job = session.job(job, meta_table_name)
    is_timedelta = isinstance(since, timedelta)
    if since is not None and not (is_timedelta and timedelta(0) < since <= MAX_DURATION):
        raise InvalidValueError("since", since, "a positive timedelta up to 36,500 days, or None")
    return session.database.late_arrivals.audit(
        stored_job.name, session.table_of(stored_job), since=since
    )


def pause_job(job: str, reason: str = "", meta_table_name: str | None = None) -> None:
    """Pause a job: no batch is handed out until it is resumed; running batches continue.

    Raises:
        UnknownJobError, AmbiguousJobError: there is no such job, or several.
    """
    session = SESSIONS.current()
    session.database.jobs.pause(job, reason, session.job(job, meta_table_name).meta_table)


def resume_job(job: str, meta_table_name: str | None = None) -> None:
    """Resume a paused job.

    Raises:
        UnknownJobError, AmbiguousJobError: there is no such job, or several.
    """
    session = SESSIONS.current()
    session.database.jobs.resume(job, session.job(job, meta_table_name).meta_table)


def cancel_job(
    job: str, batch: int | str | None = None, meta_table_name: str | None = None
) -> Cancelled:
    """Cancel one or all unpublished batches of a job, including running ones.

    A batch is identified by its number, its range `first..last` or its key. Published batches stay,
    and new items are acquired as before.

    Raises:
        UnknownJobError, AmbiguousJobError: there is no such job, or several.
        UnknownBatchError: the job has no such batch.
    """
    session = SESSIONS.current()
    table = session.job(job, meta_table_name).meta_table
    batches = () if batch is None else (batch,)
    return session.database.jobs.cancel(job, *batches, meta_table=table)


def retry_job(
    job: str,
    batches: int | str | Iterable[int | str] | None = None,
    meta_table_name: str | None = None,
) -> int:
    """Retry failed, dead and cancelled batches of a job, all or some; return their number.

    Their attempts are counted from zero, and they are handed out before new batches. `batches` is
    one batch or several, each identified as for `cancel_job`.

    Raises:
        InvalidValueError: an element of `batches` cannot name a batch.
        UnknownJobError, AmbiguousJobError: there is no such job, or several.
        UnknownBatchError: the job has no such batch.
    """
    session = SESSIONS.current()
    table = session.job(job, meta_table_name).meta_table
    chosen = None if batches is None else _named(batches)
    return session.database.jobs.retry(job, batches=chosen, meta_table=table)


def _named(batches: int | str | Iterable[int | str]) -> list[int | str]:
    """Return a list of batch names from one name or several."""
    several = isinstance(batches, Iterable) and not isinstance(batches, str)
    names: list[Any] = list(batches) if several else [batches]  # type: ignore[arg-type] # checked
    for name in names:
        if not isinstance(name, int | str) or isinstance(name, bool):
            raise InvalidValueError("batches", name, _BATCHES)
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions(AcquireOptions):
    """The arguments of `plan_backfill`."""

    parent: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    time_column: str | None = None
    items: Iterable[int] | None = None
    failed_only: bool = False

    def request(self) -> Backfill:
        """Return the backfill to plan."""
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None and not isinstance(time, datetime):
                raise InvalidValueError(name, time, "a datetime with a zone")
        selection = Selection(
            ids=self.window(),
            since=self.since,
            until=self.until,
            time_column=self.time_column,
            item_ids=None if self.items is None else tuple(map(_item_id, self.items)),
            failed_only=self.failed_only,
        )
        return Backfill(
            name=self.job_name(),
            limits=self.limits(),
            selection=selection,
            parent=self.parent,
            max_attempts=self.attempt_limit(),
            bisect=self.does_bisect(),
        )


def plan_backfill(  # noqa: D417, PLR0913, PLR0917 - called with keywords, two of them required
    job: str,
    meta_table_name: str,
    meta_table_cols: Mapping[str, str | None] | None = None,
    batch_id_min: int | None = None,
    batch_id_max: int | None = None,
    batch_weight: float | None = None,
    batch_count: int | None = None,
    where: list[Any] | dict[str, Any] | None = None,
    *,
    parent: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    time_column: str | None = None,
    items: Iterable[int] | None = None,
    failed_only: bool = False,
    max_attempts: int = 3,
    bisect: bool = False,
    ceiling: str | None = None,
    settle_by: str | tuple[str, timedelta] | None = None,
    on_bad_weight: int | None = None,
) -> Planned:
    """Plan existing items again as batches of a separate job, for `acquire_batch` to hand out.

    All batches become visible together. Only existing items are planned, and each only once:
    repeating the call adds the items that are new since. The parent job continues concurrently.

    Args:
        job: name of the backfill; no other job may have it.
        meta_table_name: as for `acquire_batch`, like all arguments not listed here.
        batch_weight: maximum weight of a batch of this backfill.
        parent: name of the job to backfill; required for `failed_only`.
        since: start of the period in `time_column`, inclusive.
        until: end of the period, exclusive.
        time_column: column of the times; times without a zone are UTC.
        items: ids of single items, instead of an id range or a period.
        failed_only: plan only the items of the parent's failed and dead batches.
        max_attempts: replaced by that of each later `acquire_batch`, like `bisect`.

    Raises:
        InvalidValueError: an argument is not valid or cannot be combined with another.
        JobChangedError: another job has the name, or the backfill was planned with other arguments.
        ConfigurationError: a listed item does not exist, or the table or its columns do not match.
        UnknownJobError: the parent does not exist.
        RetryableError: a database does not answer. Nothing was planned.
    """
    options = BackfillOptions(**locals())
    request = options.request()
    return SESSIONS.current().use_source(
        options, lambda database, source: database.backfills.plan(request, source)
    )


def estimate_backfill(  # noqa: PLR0913, PLR0917 - as plan_backfill
    job: str,
    meta_table_name: str,
    meta_table_cols: Mapping[str, str | None] | None = None,
    batch_id_min: int | None = None,
    batch_id_max: int | None = None,
    batch_weight: float | None = None,
    batch_count: int | None = None,
    where: list[Any] | dict[str, Any] | None = None,
    *,
    parent: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    time_column: str | None = None,
    items: Iterable[int] | None = None,
    failed_only: bool = False,
    max_attempts: int = 3,
    bisect: bool = False,
    ceiling: str | None = None,
    settle_by: str | tuple[str, timedelta] | None = None,
    on_bad_weight: int | None = None,
) -> Estimate:
    """Return what `plan_backfill` would plan and how long one worker would take; store nothing.

    The duration is derived from the attempts of the backfill, else of its parent. The arguments and
    errors are those of `plan_backfill`.
    """
    options = BackfillOptions(**locals())
    request = options.request()
    return SESSIONS.current().use_source(
        options, lambda database, source: database.backfills.estimate(request, source)
    )


def _item_id(item: object) -> int:
    if not isinstance(item, int) or isinstance(item, bool):
        raise InvalidValueError("items", item, "whole numbers, the ids of items")
    return item
