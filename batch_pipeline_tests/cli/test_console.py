"""Formatting of ages and counts, and exit codes of errors."""

from datetime import timedelta
from typing import Any

import click
import pytest

from batch_pipeline.cli.console import ago, at, exit_code, exit_on_errors, lasting, print_error, say
from batch_pipeline.cli.run import _record_counts
from batch_pipeline.model.errors import (
    BatchDataError,
    ConfigurationError,
    ConflictError,
    PipelineError,
    RetryableError,
    StreamStoppedError,
)
from batch_pipeline_tests.factories import NOON, manifest


@pytest.mark.parametrize(
    ("duration", "words"),
    [
        (timedelta(seconds=-5), "under 2 minutes"),
        (timedelta(seconds=119), "under 2 minutes"),
        (timedelta(minutes=119), "119 minutes"),
        (timedelta(hours=47), "47 hours"),
        (timedelta(days=2), "2 days"),
        (timedelta(days=1_234, hours=23), "1,234 days"),
    ],
)
def test_duration_is_rounded_down_to_whole_units(duration: timedelta, words: str) -> None:
    assert lasting(duration) == words


def test_time_is_shown_with_its_age() -> None:
    assert ago(NOON, NOON + timedelta(minutes=5)) == "5 minutes ago"
    assert ago(NOON, NOON + timedelta(seconds=5)) == "just now"
    assert at(NOON, NOON + timedelta(days=3)) == f"{NOON:%Y-%m-%d} 12:00:00 UTC, 3 days ago"


def test_text_between_colons_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Not as the emoji of that name: it may be a part of a path."""
    say("/out:100:/[a]")
    print_error("call :phone: 1")
    assert capsys.readouterr() == ("/out:100:/[a]\n", "Error: call :phone: 1\n")


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({"records_read": 6, "records_quarantined": 1}, "6 read = 5 written + 1 quarantined"),
        (
            {"records_read": 9, "records_filtered": 4},
            "9 read = 5 written + 4 filtered + 0 quarantined",
        ),
        (
            {"records_read": 9, "records_filtered": 1, "records_transformed": 8},
            "9 read = 8 transformed + 1 filtered + 0 quarantined; 5 written",
        ),
    ],
)
def test_records_that_were_read_are_all_accounted_for(counts: dict[str, Any], text: str) -> None:
    """The manifest's part file has five records."""
    assert _record_counts([manifest(**counts)]) == f"records: {text}"


STOPPED = StreamStoppedError("orders", "no such thing", "/logs/errors.log")


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([RetryableError("later")], 75),
        ([ConflictError("later")], 75),
        ([STOPPED, RetryableError("later")], 3),
        ([RetryableError("later"), STOPPED, ConfigurationError("now")], 1),
        ([BatchDataError("now")], 1),
    ],
)
def test_exit_code_is_that_of_the_most_urgent_error(errors: list[PipelineError], code: int) -> None:
    assert exit_code(errors) == code


@pytest.mark.parametrize("step", ["", "Run: reprocess --until 2026-03-01"])
def test_interrupted_command_prints_one_next_step(
    capsys: pytest.CaptureFixture[str], step: str
) -> None:
    """A command may have a better one than to start over."""

    @click.command()
    def interrupted() -> None:
        raise KeyboardInterrupt(*filter(None, [step]))

    with pytest.raises(SystemExit, match="130"), exit_on_errors("Run it again."):
        interrupted.main([], standalone_mode=False)
    assert capsys.readouterr().err.strip() == f"Error: Interrupted. {step or 'Run it again.'}"
