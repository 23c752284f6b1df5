"""Plan a part of a job's items again, as a separate job to acquire batches from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from batch_pipeline.client.options import AcquireOptions
from batch_pipeline.client.session import SESSIONS
from batch_pipeline.model.backfill import Backfill, Estimate, Selection
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.planning import Planned


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
            bisect=self.bisect,
        )


def plan_backfill(  # noqa: PLR0913, PLR0917 - a call with names, of which two are needed
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

    All batches become visible together. Only existing items are planned, and each only once: the
    same call again adds the items that are new since. The parent job continues meanwhile.

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
