"""Where bars, lines and ticks of charts go."""

from datetime import timedelta

import pytest

from batch_pipeline.report import words
from batch_pipeline.report.chart import (
    HEIGHT,
    WIDTH,
    Axis,
    Chart,
    Measured,
    bars,
    rows,
    short_times,
    steps,
    tick_step,
)
from batch_pipeline_tests.factories import NOON
from batch_pipeline_tests.report_scene import MINUTE

AXIS = Axis(name="records", text=words.number)
BYTES = Axis(name="bytes", text=words.size, binary=True)


def measured(*values: float) -> list[Measured]:
    """A value a minute, from noon on."""
    return [
        Measured(at=NOON + place * MINUTE, value=value, name=f"batch-{place}")
        for place, value in enumerate(values)
    ]


def texts(chart: Chart) -> list[str]:
    """Give what stands at the axis that goes up."""
    return [tick.text for tick in chart.up]


@pytest.mark.parametrize(
    ("top", "step"), [(4, 1), (5, 2), (80, 20), (81, 50), (0.04, 0.01), (0, 1), (1e15, 5e14)]
)
def test_ticks_are_round_numbers(top: float, step: float) -> None:
    """Expect 1, 2 or 5 times a power of ten, at most four of them."""
    assert tick_step(top) == pytest.approx(step)


def test_ticks_of_bytes_are_powers_of_two() -> None:
    """Expect whole KiB and MiB; of whole numbers no fractions."""
    assert tick_step(3 * 1024**2, binary=True) == 1024**2
    assert tick_step(1024**2, binary=True) == 256 * 1024
    assert tick_step(2, whole=True) == 1


def test_bars_reach_as_high_as_their_value() -> None:
    """Expect half the value to be half as high, the axis to reach the top, and no bar outside."""
    chart = bars("Pace", AXIS, measured(100, 50, 0))
    heights = [bar.height for bar in chart.bars]
    assert heights[1] == pytest.approx(heights[0] / 2, abs=0.02)
    assert heights[2] == 0
    assert texts(chart) == ["0", "50", "100"]
    assert all(chart.left <= bar.x and bar.x + bar.width <= chart.right for bar in chart.bars)
    assert all(bar.y + bar.height == pytest.approx(chart.bottom) for bar in chart.bars)
    assert chart.bars[0].told == "batch-0, 2026-03-01 12:00:00: 100"


def test_bars_of_a_thousand_batches_stay_apart() -> None:
    """Expect each of them to begin where the one before has ended, with five times below."""
    chart = bars("Pace", AXIS, measured(*range(1000)))
    ends = [bar.x + bar.width for bar in chart.bars]
    assert all(bar.x >= end - 0.02 for bar, end in zip(chart.bars[1:], ends, strict=False))
    assert len(chart.along) == 5


def test_bars_of_zeros_have_an_axis() -> None:
    """Expect an axis from zero to one."""
    assert texts(bars("Share", AXIS, measured(0.0, 0.0))) == ["0", "1"]
    assert bars("Share", AXIS, []).told == "no values"


def test_steps_keep_a_value_until_the_next() -> None:
    """Expect corners at the times of change, from the left edge to the right one."""
    chart = steps("Backlog", BYTES, measured(1024, 0, 0))
    assert chart.line[:3] == ((78.0, 30.0), (392.0, 30.0), (392.0, 196.0))
    assert chart.line[-1] == (706.0, 196.0)
    assert (chart.left, chart.right, chart.bottom) == (78, 706, 196)
    assert texts(chart) == ["0 B", "256 B", "512 B", "768 B", "1 KiB"]
    assert chart.told == "bytes: 3 values from 0 B to 1 KiB, the last 0 B"


def test_steps_of_one_moment_are_drawn() -> None:
    """Expect a single point to be no division by zero."""
    assert steps("Backlog", BYTES, measured(5)).line[0][0] == 78


def test_rows_have_their_number_beside_them() -> None:
    """Expect the longest to leave room for its number, and no row to be without one."""
    chart = rows("States", "batches", [("planned", 10), ("dead", 0)])
    assert [text for _, _, text in chart.numbers] == ["10", "0"]
    assert chart.numbers[0][0] < WIDTH - 60
    assert (chart.bars[1].width, chart.height) == (0, 60)
    assert chart.height < HEIGHT


def test_times_are_as_short_as_their_span_allows() -> None:
    """Expect seconds within minutes, the date where it changes, and days of long spans."""
    minute, hours = timedelta(minutes=1), timedelta(hours=13)
    assert short_times([NOON, NOON + minute]) == ["01 Mar 12:00:00", "12:01:00"]
    assert short_times([NOON, NOON + hours]) == ["01 Mar 12:00", "02 Mar 01:00"]
    assert short_times([NOON, NOON + 20 * hours]) == ["01 Mar", "12 Mar"]
    assert short_times([NOON, NOON + 800 * hours]) == ["2026-03-01", "2027-05-08"]
    assert short_times([]) == []
