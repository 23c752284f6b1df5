"""Looking at jobs and steering them, from Python: what the commands do, as functions.

`meta_table_name` is needed only where jobs of several meta tables share a name.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from batch_pipeline.domain.audit import Audit
from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.job import JobReport, JobStatus
from batch_pipeline.inventory.jobs.job_control import Cancelled
from batch_pipeline.inventory.jobs.standing import standing
from batch_pipeline.library.asked import Asked
from batch_pipeline.library.session import SESSIONS

__all__ = [
    "audit_job",
    "cancel_job",
    "job_status",
    "jobs",
    "pause_job",
    "resume_job",
    "retry_job",
]

_WEEK = timedelta(days=7)
_BATCHES = "the number, range `first..last` or key of a batch, or a list of these"


def jobs() -> list[JobReport]:
    """Read all jobs in the order of their names, with their batches by state and what waits.

    Raises:
        RetryableError: the inventory does not answer.
    """
    return SESSIONS.current().database.jobs.jobs()


def job_status(  # noqa: PLR0913 - what acquire_batch is called with
    job: str,
    meta_table_name: str,
    meta_table_cols: Mapping[str, str | None] | None = None,
    where: list[Any] | dict[str, Any] | None = None,
    *,
    ceiling: str | None = None,
    settle_by: str | tuple[str, timedelta] | None = None,
    on_bad_weight: int | None = None,
) -> JobStatus:
    """Tell where a job stands: batches by state, what is not planned, what holds the ceiling.

    Takes what `acquire_batch` is called with, and changes nothing; a job that nobody has acquired
    from yet has all of the table before it. Counting what is not planned reads all of that.

    Raises:
        JobChangedError: the job has another filter, other columns or another database.
        ConfigurationError: the table or its columns are not what was asked for.
        RetryableError: a database does not answer.
    """
    asked = Asked(**locals())
    return SESSIONS.current().on_source(
        asked,
        lambda database, source: standing(database.engine, asked.terms(source), source),
    )


def audit_job(
    job: str, meta_table_name: str | None = None, *, since: timedelta | None = _WEEK
) -> Audit:
    """Compare published batches with what the meta table holds now, and plan what came late.

    The table is read as the job's last batch was. Looks at batches published within `since`, a week
    unless told, None for all. Late items are handed out by `acquire_batch` of the same job, before
    new ones; each is planned once, however often one audits.

    Raises:
        UnknownJobError, AmbiguousJobError: the job is not there, or several are.
        ConfigurationError: the meta table cannot be read any more.
        RetryableError: a database does not answer.
    """
    session = SESSIONS.current()
    one = session.job(job, meta_table_name)
    if since is not None and since <= timedelta(0):
        raise InvalidValueError("since", since, "a positive timedelta, or None")
    return session.database.late_arrivals.audit(one.name, session.table_of(one), since=since)


def pause_job(job: str, reason: str = "", meta_table_name: str | None = None) -> None:
    """Let nothing of a job be handed out until it is resumed; batches that are held go on.

    Raises:
        UnknownJobError, AmbiguousJobError: the job is not there, or several are.
    """
    session = SESSIONS.current()
    session.database.jobs.pause(job, reason, session.job(job, meta_table_name).meta_table)


def resume_job(job: str, meta_table_name: str | None = None) -> None:
    """Let a paused job go on.

    Raises:
        UnknownJobError, AmbiguousJobError: the job is not there, or several are.
    """
    session = SESSIONS.current()
    session.database.jobs.resume(job, session.job(job, meta_table_name).meta_table)


def cancel_job(
    job: str, batch: int | str | None = None, meta_table_name: str | None = None
) -> Cancelled:
    """Call off all batches of a job that are not published, or one of them; who holds one loses it.

    A batch is named by its number, its range `first..last` or its key. What is published stays,
    and new items are acquired as before.

    Raises:
        UnknownJobError, AmbiguousJobError: the job is not there, or several are.
        UnknownJobBatchError: it has no such batch.
    """
    session = SESSIONS.current()
    control, table = session.database.jobs, session.job(job, meta_table_name).meta_table
    return control.cancel(job, table) if batch is None else control.cancel_batch(job, batch, table)


def retry_job(
    job: str,
    batches: int | str | Iterable[int | str] | None = None,
    meta_table_name: str | None = None,
) -> int:
    """Let failed, dead and cancelled batches of a job be tried again, all or some; gives how many.

    Their attempts count anew, and they are handed out before new batches. `batches` names one batch
    or several, each as `cancel_job` does.

    Raises:
        InvalidValueError: `batches` names nothing that can be a batch.
        UnknownJobError, AmbiguousJobError: the job is not there, or several are.
        UnknownJobBatchError: it has no such batch.
    """
    session = SESSIONS.current()
    table = session.job(job, meta_table_name).meta_table
    chosen = None if batches is None else _named(batches)
    return session.database.jobs.retry(job, batches=chosen, meta_table=table)


def _named(batches: int | str | Iterable[int | str]) -> list[int | str]:
    """Return the names of batches, also of one that comes without a list around it."""
    several = isinstance(batches, Iterable) and not isinstance(batches, str)
    found: list[Any] = list(batches) if several else [batches]  # type: ignore[arg-type] # checked
    for one in found:
        if not isinstance(one, int | str) or isinstance(one, bool):
            raise InvalidValueError("batches", one, _BATCHES)
    return found
