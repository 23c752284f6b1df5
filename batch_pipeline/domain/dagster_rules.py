"""How a stream appears and runs in Dagster: plain values, checked without Dagster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from batch_pipeline.domain.errors import InvalidValueError

_OWNER = re.compile(r"team:[A-Za-z0-9_.-]+|[^@\s]+@[^@\s]+\.[^@\s]+")
_GROUP = re.compile(r"[A-Za-z0-9_]+")
_FIELDS_OF_CRON = 5


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

    partitions_per_run: int = 16
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
        for owner in self.owners:
            if not _OWNER.fullmatch(owner):
                raise InvalidValueError("dagster.owners", owner, "an e-mail address or team:name")
        if self.schedule is not None and len(self.schedule.split()) != _FIELDS_OF_CRON:
            expected = "a cron line of five fields, for example 0 6 * * *"
            raise InvalidValueError("dagster.schedule", self.schedule, expected)
        if not 0 <= self.max_quarantined_ratio <= 1:
            ratio = self.max_quarantined_ratio
            raise InvalidValueError("dagster.max_quarantined_ratio", ratio, "0 to 1")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            expected = "a name of the tz database, for example Europe/Berlin"
            raise InvalidValueError("dagster.timezone", self.timezone, expected) from error
