"""Cron lines: five fields of numbers, names, ranges, lists and steps, checked without a scheduler.

What this module accepts every scheduler reads alike; extensions of some (`L`, `#`, `@daily`) are
refused. When a line fires next is not known here.
"""

import re

from batch_pipeline.domain.errors import InvalidValueError

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
    """Check that a line is one and that a time comes at which it fires.

    Raises:
        InvalidValueError: it is not, or there is none; says which field is wrong.
    """
    texts = line.lower().split()
    if len(texts) != len(_FIELDS):
        expected = "a cron line of five fields, for example 0 6 * * *"
        raise InvalidValueError(name, line, expected)
    values = []
    for (field, lowest, highest, names), text in zip(_FIELDS, texts, strict=True):
        found = [_values(part, lowest, highest, names) for part in text.split(",")]
        if not all(found):
            expected = f"a cron line whose {field}, {text!r}, is within {lowest} to {highest}"
            raise InvalidValueError(name, line, expected)
        values.append(set().union(*found))
    _, _, days, months, _ = values
    if texts[4] == "*" and all(min(days) > _DAYS[month - 1] for month in months):
        raise InvalidValueError(name, line, "a cron line with a day that its months have")


def _values(part: str, lowest: int, highest: int, names: dict[str, int]) -> set[int]:
    """Give what a part of a field stands for; nothing when it, or its step, is out of range."""
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
