"""A part of a job's past once more: planned as a job of its own, which then is acquired from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from batch_pipeline.domain.backfill import Backfill, Estimate, Selection
from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.planning import Planned
from batch_pipeline.library.asked import Asked
from batch_pipeline.library.session import SESSIONS

__all__ = ["estimate_backfill", "plan_backfill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past(Asked):
    """The arguments of `plan_backfill`, as given."""

    parent: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    time_column: str | None = None
    items: Iterable[int] | None = None
    failed_only: bool = False

    def request(self) -> Backfill:
        """Say which part of the past is meant."""
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
            name=self.checked_job(),
            limits=self.limits(),
            selection=selection,
            parent=self.parent,
            max_attempts=self.checked_attempts(),
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
    """Plan a part of the past as batches of a job of its own; `acquire_batch` then hands them out.

    All batches become visible together. Only what is there now is planned, and never twice: the
    same call again adds what has come since. The job whose past it is goes on meanwhile.

    Args:
        job: name of the backfill, which no other work has.
        meta_table_name: as of `acquire_batch`, like the arguments that are not told here.
        batch_weight: most that the items of a batch may weigh, for this backfill.
        parent: name of the job whose past it is; needed for `failed_only`.
        since: first moment that is taken, by `time_column`.
        until: first moment that is no longer taken.
        time_column: column of the times; one without a zone is taken as UTC.
        items: ids, one by one, in place of windows and times.
        failed_only: only the items of the parent's failed and dead batches.

    Raises:
        InvalidValueError: an argument cannot be used, or does not go with another.
        JobChangedError: the name is taken by other work, or the backfill was planned otherwise.
        UnknownItemsError: an item that was named is not there.
        UnknownJobError: there is no such parent.
        ConfigurationError: the table or its columns are not what was asked for.
        RetryableError: a database does not answer. Nothing was planned.
    """
    asked = _Past(**locals())
    request = asked.request()
    return SESSIONS.current().on_source(
        asked, lambda database, source: database.backfills.plan(request, source)
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
    """Tell what `plan_backfill` would plan, and how long one worker would take; nothing is stored.

    The pace is that of the backfill's own attempts, else of the parent's. Takes and raises what
    `plan_backfill` does.
    """
    asked = _Past(**locals())
    request = asked.request()
    return SESSIONS.current().on_source(
        asked, lambda database, source: database.backfills.estimate(request, source)
    )


def _item_id(item: object) -> int:
    if not isinstance(item, int) or isinstance(item, bool):
        raise InvalidValueError("items", item, "whole numbers, the ids of items")
    return item
