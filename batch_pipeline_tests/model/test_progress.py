"""Progress reports of long operations: content, rate limit, and no cost without a listener."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from batch_pipeline.model.progress import is_enabled, log, start_step, track


class Listener(logging.Handler):
    """A handler that records progress reports."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[tuple[str, Any, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Record the text, the amount done and the total."""
        facts = record.__dict__
        self.reports.append((record.getMessage(), facts.get("done"), facts["total"]))


@pytest.fixture
def listener() -> Iterator[Listener]:
    """A listener to progress reports."""
    handler, level = Listener(), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


def test_track_yields_the_same_elements_and_reports_their_sizes(listener: Listener) -> None:
    assert [*track(["ab", "cde"], "reading", total=5, size=len)] == ["ab", "cde"]
    assert listener.reports[0] == ("reading", 0, 5)
    assert listener.reports[-1] == ("reading", 5, 5)


def test_track_reports_at_most_ten_times_a_second(listener: Listener) -> None:
    times = iter([0, 0.05, 0.1, 0.1, 0.19, 0.2, 0.2])
    assert len([*track(range(4), "counting", now=lambda: next(times))]) == 4
    assert listener.reports == [("counting", done, None) for done in (0, 2, 4, 4)]


def test_start_step_reports_total(listener: Listener) -> None:
    start_step("orders", "encoding 50 %", total=7)
    assert listener.reports == [("encoding 50 %", None, 7)]


def test_track_without_listener_returns_its_argument() -> None:
    elements = [1, 2]
    assert not is_enabled()
    assert track(elements, "counting") is elements
