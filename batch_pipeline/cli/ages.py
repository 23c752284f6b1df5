"""Ages in words, as exactly as one wants to hear them."""

from datetime import UTC, datetime, timedelta

from batch_pipeline.domain.words import count_of

_UNITS = (
    (timedelta(days=1), "day", 2),
    (timedelta(hours=1), "hour", 2),
    (timedelta(minutes=1), "minute", 1),
)


def lasting(duration: timedelta) -> str:
    """Say how long something lasts: `under a minute`, `5 minutes`, `47 hours`, `2 days`."""
    for unit, name, least in _UNITS:
        count = duration // unit
        if count >= least:
            return count_of(count, name, grouped=True)
    return "under a minute"


def ago(moment: datetime, now: datetime) -> str:
    """Say how long ago something was: `just now`, `5 minutes ago`."""
    age = now - moment
    return "just now" if age < timedelta(minutes=1) else f"{lasting(age)} ago"


def at(moment: datetime, now: datetime) -> str:
    """Write a time to the second in UTC, with how long ago it was."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {ago(moment, now)}"
