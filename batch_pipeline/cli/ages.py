"""Ages in words, as exactly as one wants to hear them."""

from datetime import UTC, datetime, timedelta

_UNITS = (
    (timedelta(days=1), "days"),
    (timedelta(hours=1), "hours"),
    (timedelta(minutes=1), "minutes"),
)


def lasting(duration: timedelta) -> str:
    """Say how long something lasts: `under 2 minutes`, `5 minutes`, `47 hours`, `2 days`."""
    for unit, name in _UNITS:
        count = duration // unit
        if count >= 2:
            return f"{count:,} {name}"
    return "under 2 minutes"


def ago(moment: datetime, now: datetime) -> str:
    """Say how long ago something was: `just now`, `5 minutes ago`."""
    age = now - moment
    return "just now" if age < timedelta(minutes=1) else f"{lasting(age)} ago"


def at(moment: datetime, now: datetime) -> str:
    """Write a time to the second in UTC, with how long ago it was."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {ago(moment, now)}"
