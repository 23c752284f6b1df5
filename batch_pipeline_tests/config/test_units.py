"""Parsing and formatting of sizes and durations."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.config.units import format_bytes, format_duration, parse_bytes, parse_duration
from batch_pipeline.model.errors import InvalidValueError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (512, 512),
        ("7B", 7),
        ("1KB", 1_000),
        ("64 mib", 67_108_864),
        ("1.5GiB", 1_610_612_736),
        ("1.5 PiB", 1_688_849_860_263_936),
        ("0.3KiB", 307),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_parse_bytes_with_known_unit(text: str | int, size: int) -> None:
    """KB to TB are powers of 1000, KiB to PiB of 1024; a fraction is rounded down."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *("", "MiB", "-1", -1, "1.5", "1.5B", "64M", "64XB"),
        *("1e3", "1,5GB", "٣", True, "8EiB", "9bit"),
    ],
)
def test_parse_bytes_rejects_invalid_text(text: str | int) -> None:
    with pytest.raises(InvalidValueError, match=r"expected a size such as 64MiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "8388608TiB", "9" * 21])
def test_parse_bytes_rejects_sizes_beyond_64_bits(text: str) -> None:
    """A size must fit a Postgres bigint."""
    with pytest.raises(InvalidValueError, match=r"below 8EiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("250ms", timedelta(milliseconds=250)),
        (30, timedelta(seconds=30)),
        (0.5, timedelta(milliseconds=500)),
        ("5m", timedelta(minutes=5)),
        ("1.5 h", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("0", timedelta(0)),
    ],
)
def test_parse_duration_with_known_unit(text: str | float, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "m", "5M", "5min", "-5m", "1h30m", "5 m m", True, "36501d"])
def test_parse_duration_rejects_invalid_text(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"expected a duration such as 5m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1 MiB"),
        (5000 * 2**40, "5000 TiB"),
        (-2048, "-2 KiB"),
    ],
)
def test_format_bytes_uses_the_largest_unit(size: int, text: str) -> None:
    """At most one decimal; a size is never printed as 1024 of a unit."""
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(milliseconds=850), "850ms"),
        (timedelta(seconds=12.34), "12.3s"),
        (timedelta(seconds=59.99), "1m"),
        (timedelta(seconds=303), "5m 3s"),
        (timedelta(hours=1, minutes=5, seconds=59), "1h 5m"),
        (timedelta(days=2, minutes=4), "2d"),
        (timedelta(seconds=-3), "-3s"),
    ],
)
def test_format_duration_uses_the_two_largest_units(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


@given(st.integers(min_value=0, max_value=2**63 - 2**54))
def test_parse_bytes_inverts_format_bytes_up_to_rounding(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.05)
