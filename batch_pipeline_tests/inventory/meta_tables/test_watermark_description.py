"""The text that describes a high watermark and what holds it back."""

import pytest

from batch_pipeline.inventory.meta_tables.watermarks import (
    LockHolder,
    WatermarkReading,
    describe_reading,
)
from batch_pipeline.model.stream import Strategy


def locks(value: int | None, *held_by: LockHolder) -> WatermarkReading:
    return WatermarkReading(value=value, strategy=Strategy.LOCKS, held_by=held_by)


def holder(
    application: str = "psql", pid: int | None = 4711, age_seconds: float | None = 73.4
) -> LockHolder:
    return LockHolder(pid=pid, application=application, age_seconds=age_seconds)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (
            locks(1200, holder()),
            "high watermark 1200 (locks); held back by pid 4711 (psql) for 73 s",
        ),
        (
            locks(1200, holder(), holder("job"), holder("job")),
            "high watermark 1200 (locks); held back by pid 4711 (psql) for 73 s, and 2 more",
        ),
        (
            WatermarkReading(value=1200, strategy=Strategy.LOCKS),
            "high watermark 1200 (locks); nothing holds it back",
        ),
        (
            WatermarkReading(value=1200, strategy=Strategy.SQLITE),
            "high watermark 1200 (sqlite); nothing holds it back",
        ),
        (
            WatermarkReading(value=1200, strategy=Strategy.REGISTRAR),
            "high watermark 1200 (registrar); nothing holds it back",
        ),
        (
            locks(None, holder()),
            "no high watermark yet (locks); held back by pid 4711 (psql) for 73 s",
        ),
        (
            WatermarkReading(value=7, strategy=Strategy.LOCKING_READ),
            "high watermark 7 (locking_read); the database does not name who may hold it back",
        ),
        (
            WatermarkReading(value=7, strategy=Strategy.SETTLE),
            "high watermark 7 (settle); rows younger than its delay are left alone",
        ),
        (
            locks(9, holder("prepared transaction late", pid=None, age_seconds=5.0)),
            "high watermark 9 (locks); held back by prepared transaction late for 5 s",
        ),
        (locks(9, holder("", age_seconds=None)), "high watermark 9 (locks); held back by pid 4711"),
        (
            locks(9, holder("x" * 81)),
            f"high watermark 9 (locks); held back by pid 4711 ({'x' * 80}…) for 73 s",
        ),
    ],
)
def test_reading_is_described_in_one_line(reading: WatermarkReading, expected: str) -> None:
    assert describe_reading(reading) == expected


@pytest.mark.parametrize(
    "hostile",
    ["ps\x1b]0;owned\x07ql", "ps\nql", "ps\r\tql", "ps\u202eql", "ps\u2028ql", "ps\x9bql", "\x00"],
)
def test_application_name_cannot_steer_a_terminal_or_break_the_line(hostile: str) -> None:
    """Expect whatever cannot be printed to be left out of a name."""
    described = describe_reading(locks(9, holder(hostile)))
    assert described.isprintable()
    assert described.startswith("high watermark 9 (locks); held back by pid 4711")
