"""The `dagster` section of a stream file, with the validation of cron schedules.

`check_cron` accepts five fields of numbers, names, ranges, lists and steps, which all schedulers
interpret alike; extensions (`L`, `#`, `@daily`) are rejected. The next firing time is not computed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from batch_pipeline.model.errors import InvalidValueError, require

_ADDRESS = r"[A-Za-z0-9_][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}"
_OWNER = re.compile(rf"team:[A-Za-z0-9_.-]+|{_ADDRESS}")
_TAG = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")
_GROUP = re.compile(r"[A-Za-z0-9_]+")
_NAMES = (
    ("group", _GROUP, "letters, digits and '_'"),
    ("pool", re.compile(r"\S+"), "a name without spaces"),
    ("spark_resource", _GROUP, "the key of a resource: letters, digits and '_'"),
)


class Automation(StrEnum):
    """Default status of sensors and schedules."""

    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class DagsterRules:
    """Values of the `dagster` section of a stream file.

    `automation` is None if the code location decides. `spark_resource` is the key of a resource of
    the project's own with a Spark session. With `backfills` the stream has an asset for
    the batches of its backfills.
    `partitions_per_run` is the number of batches per run, `runs_at_once` the number of runs that
    sensors keep queued or running. `schedule` is a cron line in `timezone` for polling the landing;
    without it the landing is polled continuously. `pool` is the Dagster pool that limits the runs.
    `max_backlog_age` of the oldest item and `max_quarantined_ratio` of records are the thresholds
    of the checks.

    Raises:
        InvalidValueError: Dagster would reject a value.
    """

    automation: Automation | None = None
    backfills: bool = False
    spark_resource: str | None = None
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
        for name, pattern, expected in _NAMES:
            value = getattr(self, name)
            require(value is None or pattern.fullmatch(value), f"dagster.{name}", value, expected)
        ratio = self.max_quarantined_ratio
        require(0 <= ratio <= 1, "dagster.max_quarantined_ratio", ratio, "0 to 1")
        for owner in self.owners:
            expected = "an e-mail address or team:name"
            require(_OWNER.fullmatch(owner), "dagster.owners", owner, expected)
        for tag, value in self.tags.items():
            fits = _TAG.fullmatch(tag) and _TAG_VALUE.fullmatch(value)
            expected = "letters, digits, '_', '.' and '-', at most 63 in the name and the value"
            require(fits, "dagster.tags", f"{tag}: {value}", expected)
        if self.schedule is not None:
            check_cron(self.schedule, name="dagster.schedule")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            expected = "a name of the tz database, for example Europe/Berlin"
            raise InvalidValueError("dagster.timezone", self.timezone, expected) from error


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    ("day of the week", 0, 6, {name: number for number, name in enumerate(_WEEKDAYS)}),
)
_PART = re.compile(r"(?:\*|(?P<first>[0-9a-z]+)(?:-(?P<last>[0-9a-z]+))?)(?:/(?P<step>[0-9]+))?")
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def check_cron(line: str, *, name: str) -> None:
    """Check that a cron line is valid and fires at some time.

    Raises:
        InvalidValueError: the line is not valid or never fires; the message names the field.
    """
    texts = line.lower().split()
    expected = "a cron line of five fields, for example 0 6 * * *"
    require(len(texts) == len(_FIELDS), name, line, expected)
    values = []
    for (cron_field, lowest, highest, names), text in zip(_FIELDS, texts, strict=True):
        parts = [_values(part, lowest, highest, names) for part in text.split(",")]
        expected = f"a cron line whose {cron_field}, {text!r}, is within {lowest} to {highest}"
        require(all(parts), name, line, expected)
        values.append(set().union(*parts))
    _, _, days, months, _ = values
    fires = texts[4] != "*" or any(min(days) <= _DAYS[month - 1] for month in months)
    require(fires, name, line, "a cron line with a day that its months have")


def _values(part: str, lowest: int, highest: int, names: dict[str, int]) -> set[int]:
    """Return the values of a part of a field, empty if it or its step is out of range."""
    match = _PART.fullmatch(part)
    if match is None:
        return set()
    first, last, step = match["first"], match["last"], int(match["step"] or 1)
    if match["step"] and first and not last:
        return set()  # `5/10` means different things to different schedulers
    start = lowest if first is None else _number(first, names)
    end = highest if first is None else start if last is None else _number(last, names)
    is_step = (
        1 <= step <= (highest - lowest if last is None else end)
    )  # a range from 0 to 0 is none
    if not is_step or not lowest <= start <= end <= highest:
        return set()
    return set(range(start, end + 1, step))


def _number(text: str, names: dict[str, int]) -> int:
    return int(text) if text.isdecimal() else names.get(text, -1)
