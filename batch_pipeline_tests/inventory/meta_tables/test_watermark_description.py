"""What people read of a ceiling: how high it is, and whom to ask when it does not rise."""

import pytest

from batch_pipeline.inventory.meta_tables.watermarks import (
    LockHolder,
    WatermarkReading,
    describe_reading,
)
from batch_pipeline.model.stream import Strategy


def locks(value: int | None, *held_by: LockHolder) -> WatermarkReading:
    """A reading on Postgres."""
    return WatermarkReading(value=value, strategy=Strategy.LOCKS, held_by=held_by)


def holder(
    application: str = "psql", pid: int | None = 4711, age_seconds: float | None = 73.4
) -> LockHolder:
    """A transaction of psql that is 73 s old."""
    return LockHolder(pid=pid, application=application, age_seconds=age_seconds)


def test_ceiling_that_somebody_holds_is_described_with_who_and_how_long() -> None:
    """Expect process, application and age in seconds."""
    described = describe_reading(locks(1200, holder()))
    assert described == "high watermark 1200 (locks); held back by pid 4711 (psql) for 73 s"


def test_ceiling_that_several_hold_is_described_with_the_oldest() -> None:
    """Expect the first holder by name and the number of the others."""
    described = describe_reading(locks(1200, holder(), holder("job"), holder("job")))
    assert (
        described
        == "high watermark 1200 (locks); held back by pid 4711 (psql) for 73 s, and 2 more"
    )


@pytest.mark.parametrize("strategy", [Strategy.LOCKS, Strategy.SQLITE, Strategy.REGISTRAR])
def test_ceiling_that_nobody_holds_is_described_as_free(strategy: Strategy) -> None:
    """Expect it to be said where the database would tell."""
    described = describe_reading(WatermarkReading(value=1200, strategy=strategy))
    assert described == f"high watermark 1200 ({strategy}); nothing holds it back"


def test_ceiling_before_anything_is_known_is_described_as_none() -> None:
    """Expect no number where there is none, and still the reason."""
    described = describe_reading(locks(None, holder()))
    assert described == "no high watermark yet (locks); held back by pid 4711 (psql) for 73 s"


def test_ceiling_by_a_locking_read_is_not_described_as_free() -> None:
    """Expect no promise where the database does not name the writers that were met."""
    described = describe_reading(WatermarkReading(value=7, strategy=Strategy.LOCKING_READ))
    assert described == (
        "high watermark 7 (locking_read); the database does not name who may hold it back"
    )


def test_ceiling_by_age_is_described_with_its_rule() -> None:
    """Expect it to be said that young rows wait."""
    described = describe_reading(WatermarkReading(value=7, strategy=Strategy.SETTLE))
    assert described == "high watermark 7 (settle); rows younger than its delay are left alone"


def test_prepared_transaction_is_described_by_its_name() -> None:
    """Expect no process where there is none."""
    described = describe_reading(
        locks(9, holder("prepared transaction late", pid=None, age_seconds=5.0))
    )
    assert described == "high watermark 9 (locks); held back by prepared transaction late for 5 s"


def test_holder_whose_name_and_age_are_hidden_is_described_by_its_process() -> None:
    """Expect no empty brackets and no made-up age."""
    described = describe_reading(locks(9, holder("", age_seconds=None)))
    assert described == "high watermark 9 (locks); held back by pid 4711"


@pytest.mark.parametrize(
    "hostile",
    ["ps\x1b]0;owned\x07ql", "ps\nql", "ps\r\tql", "ps\u202eql", "ps\u2028ql", "ps\x9bql", "\x00"],
)
def test_application_name_cannot_steer_a_terminal_or_break_the_line(hostile: str) -> None:
    """Expect whatever cannot be printed to be left out of a name."""
    described = describe_reading(locks(9, holder(hostile)))
    assert described.isprintable()
    assert described.startswith("high watermark 9 (locks); held back by pid 4711")


def test_long_application_name_is_cut() -> None:
    """Expect 80 characters of a name at most."""
    described = describe_reading(locks(9, holder("x" * 81)))
    assert described == f"high watermark 9 (locks); held back by pid 4711 ({'x' * 80}…) for 73 s"
