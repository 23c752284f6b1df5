"""How a stream appears and runs in Dagster: plain values, checked without Dagster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from batch_pipeline.domain.cron import check_cron
from batch_pipeline.domain.errors import InvalidValueError

_ADDRESS = r"[A-Za-z0-9_][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}"
_OWNER = re.compile(rf"team:[A-Za-z0-9_.-]+|{_ADDRESS}")
_TAG = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")
_GROUP = re.compile(r"[A-Za-z0-9_]+")
_POOL = re.compile(r"\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DagsterRules:
    """The `dagster` section of a stream file.

    `partitions_per_run` are batches that share a run, and `runs_at_once` the runs that sensors keep
    queued or running. `schedule` is a cron line, in `timezone`, that says when to look for new
    files; without one they are looked for all the time. `pool` names the Dagster pool whose limit
    holds for the runs. `max_backlog_age` is how long the oldest item may wait, and
    `max_quarantined_ratio` the share of quarantined records, before a check says so.

    Raises:
        InvalidValueError: a value that Dagster would refuse.
    """

    partitions_per_run: int = 50
    runs_at_once: int = 10
    group: str | None = None
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    schedule: str | None = None
    timezone: str = "UTC"
    pool: str | None = None
    max_backlog_age: timedelta = timedelta(hours=1)
    max_quarantined_ratio: float = 0.0

    def __post_init__(self) -> None:
        for name in ("partitions_per_run", "runs_at_once"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"dagster.{name}", getattr(self, name), "at least 1")
        if self.group is not None and not _GROUP.fullmatch(self.group):
            raise InvalidValueError("dagster.group", self.group, "letters, digits and '_'")
        if self.pool is not None and not _POOL.fullmatch(self.pool):
            raise InvalidValueError("dagster.pool", self.pool, "a name without spaces")
        for owner in self.owners:
            if not _OWNER.fullmatch(owner):
                raise InvalidValueError("dagster.owners", owner, "an e-mail address or team:name")
        for tag, value in self.tags.items():
            if not (_TAG.fullmatch(tag) and _TAG_VALUE.fullmatch(value)):
                expected = "letters, digits, '_', '.' and '-', at most 63 in the name and the value"
                raise InvalidValueError("dagster.tags", f"{tag}: {value}", expected)
        if self.schedule is not None:
            check_cron(self.schedule, name="dagster.schedule")
        if not 0 <= self.max_quarantined_ratio <= 1:
            ratio = self.max_quarantined_ratio
            raise InvalidValueError("dagster.max_quarantined_ratio", ratio, "0 to 1")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            expected = "a name of the tz database, for example Europe/Berlin"
            raise InvalidValueError("dagster.timezone", self.timezone, expected) from error
