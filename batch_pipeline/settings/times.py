"""Points in time as people write them. A pure function from text to a value."""

from datetime import UTC, date, datetime

from batch_pipeline.model.errors import InvalidValueError

_EXPECTED = "a time with its zone such as 2026-03-01T12:00:00+01:00, or a date such as 2026-03-01"


def parse_time(text: str, *, name: str = "time") -> datetime:
    """Read an ISO 8601 time with a zone; a date is its first moment in UTC.

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
    except ValueError:
        raise InvalidValueError(name, text, _EXPECTED) from None
    if time.tzinfo is None or not _is_in_calendar(time):
        raise InvalidValueError(name, text, _EXPECTED)
    return time


def _is_in_calendar(time: datetime) -> bool:
    """Tell whether a time is one in UTC, too: the first and the last hours are not always."""
    try:
        time.astimezone(UTC)
    except OverflowError:
        return False
    return True
