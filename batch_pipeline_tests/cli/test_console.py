"""Ages in words."""

from datetime import timedelta

import pytest

from batch_pipeline.cli.console import ago, at, lasting
from batch_pipeline_tests.factories import NOON


@pytest.mark.parametrize(
    ("duration", "words"),
    [
        (timedelta(seconds=-5), "under 2 minutes"),
        (timedelta(seconds=59), "under 2 minutes"),
        (timedelta(seconds=119), "under 2 minutes"),
        (timedelta(minutes=119), "119 minutes"),
        (timedelta(hours=2), "2 hours"),
        (timedelta(hours=47), "47 hours"),
        (timedelta(days=2), "2 days"),
        (timedelta(days=1_234, hours=23), "1,234 days"),
    ],
)
def test_age_is_told_in_the_largest_unit_that_says_enough(duration: timedelta, words: str) -> None:
    """Expect whole units, and no day before there are two of them."""
    assert lasting(duration) == words


def test_moment_is_told_with_its_age() -> None:
    """Expect the time in UTC and how long ago it was."""
    assert ago(NOON, NOON + timedelta(minutes=5)) == "5 minutes ago"
    assert ago(NOON, NOON + timedelta(seconds=5)) == "just now"
    assert at(NOON, NOON + timedelta(days=3)) == f"{NOON:%Y-%m-%d} 12:00:00 UTC, 3 days ago"
