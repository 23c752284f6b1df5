"""Parsing and formatting of sizes and durations for people.

Pure functions from text to values and back, independent of the purpose of a value.
"""

import re
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

from pydantic import ByteSize, TypeAdapter

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.planning import MAX_DURATION

MAX_BYTES = 2**63 - 1
_MAX_MICROSECONDS = MAX_DURATION // timedelta(microseconds=1)

# Stricter than pydantic, which reads `1,5GB` as 1 byte and accepts bits.
_SIZE = re.compile(
    r"[0-9]{1,20}\s*B?|[0-9]{1,20}(?:\.[0-9]{1,20})?\s*[KMGTP]i?B", re.ASCII | re.IGNORECASE
)
_BYTE_SIZE = TypeAdapter(ByteSize)
_MICROSECONDS = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_QUANTITY = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)\s*", re.ASCII)
_EXPECTED_BYTES = (
    "a size such as 64MiB, 1.5GB or 1000 (units B, KB to PB, KiB to PiB; "
    "a plain whole number is bytes; below 8EiB)"
)
_EXPECTED_DURATION = (
    "a duration such as 5m, 1.5h or 30 (units ms, s, m, h, d; a plain number is seconds; "
    "at most 36500d)"
)


def parse_bytes(text: str | int, *, name: str = "size") -> int:
    """Read a size in bytes: `64MiB`, `1.5 GB`, `1000`.

    Units are case-insensitive; KB to PB are powers of 1000, KiB to PiB powers of 1024. A fraction
    of a unit is rounded down to whole bytes, a fraction of a byte is refused.

    Raises:
        InvalidValueError: it is not a valid size, or does not fit a 64-bit integer.
    """
    written = "" if isinstance(text, bool) else str(text).strip()
    size = _BYTE_SIZE.validate_python(written) if _SIZE.fullmatch(written) else None
    if size is None or size > MAX_BYTES:
        raise InvalidValueError(name, text, _EXPECTED_BYTES)
    return int(size)


def parse_duration(text: str | float, *, name: str = "duration") -> timedelta:
    """Read a duration: `5m`, `1.5h`, `250ms`, `30` (seconds); rounded down to microseconds.

    Units are lower case, because `M` could mean months as well.

    Raises:
        InvalidValueError: it is not a valid duration, or longer than 36,500 days.
    """
    match = None if isinstance(text, bool) else _QUANTITY.fullmatch(str(text))
    factor = _MICROSECONDS.get(match[2] or "s") if match else None
    if match is None or factor is None or Fraction(match[1]) * factor > _MAX_MICROSECONDS:
        raise InvalidValueError(name, text, _EXPECTED_DURATION)
    return timedelta(microseconds=int(Fraction(match[1]) * factor))


def format_bytes(size_bytes: int) -> str:
    """Format a size for people: `0 B`, `1.5 KiB`, `64 MiB`; at most one decimal."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes} B"
    value, units = size_bytes / 1024, ["TiB", "GiB", "MiB", "KiB"]
    while len(units) > 1 and abs(round(value, 1)) >= 1024:
        value /= 1024
        units.pop()
    return f"{value:.1f}".removesuffix(".0") + f" {units[-1]}"


def format_duration(duration: timedelta) -> str:
    """Format a duration in its two largest units: `850ms`, `12.3s`, `5m 3s`, `2d 4h`."""
    if duration < timedelta(0):
        return f"-{format_duration(-duration)}"
    milliseconds = round(duration / timedelta(milliseconds=1))
    if milliseconds < 1_000:
        return "0s" if milliseconds == 0 else f"{milliseconds}ms"
    tenths = round(milliseconds / 100)
    if tenths < 600:
        return f"{tenths / 10:.1f}".removesuffix(".0") + "s"
    minutes, seconds = divmod(round(milliseconds / 1_000), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    while parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count)


_EXPECTED = "a time with its zone such as 2026-03-01T12:00:00+01:00, or a date such as 2026-03-01"


def parse_time(text: str, *, name: str = "time") -> datetime:
    """Read an ISO 8601 time with a zone; a date means midnight UTC.

    Raises:
        InvalidValueError: it is neither, or a time without a zone.
    """
    written = text.strip()
    try:
        return datetime.combine(date.fromisoformat(written), datetime.min.time(), UTC)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(written)
        time.astimezone(UTC)  # the first and the last hours of the calendar may not exist in UTC
    except (ValueError, OverflowError):
        raise InvalidValueError(name, text, _EXPECTED) from None
    if time.tzinfo is None:
        raise InvalidValueError(name, text, _EXPECTED)
    return time
