"""How far long work is: what is told, how often, and to nobody where nobody listens."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batch_pipeline.model.progress import is_enabled, log, start_step, track


class Listener(logging.Handler):
    """Keeps what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, Any, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text, how much is done, and of how much."""
        facts = record.__dict__
        self.heard.append((record.getMessage(), facts.get("done"), facts["total"]))


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Somebody who listens."""
    one, level = Listener(), log.level
    log.addHandler(one)
    log.setLevel(logging.INFO)
    yield one
    log.removeHandler(one)
    log.setLevel(level)


def ticking(*times: float) -> Callable[[], float]:
    """Make a clock that shows these times, one a look."""
    left = iter(times)
    return lambda: next(left)


def test_things_that_are_counted_come_as_they_are(listener: Listener) -> None:
    assert [*track("abc", "eating letters", total=3)] == ["a", "b", "c"]
    assert listener.heard[0] == ("eating letters", 0, 3)
    assert listener.heard[-1] == ("eating letters", 3, 3)


def test_count_is_told_ten_times_a_second_at_most(listener: Listener) -> None:
    clock = ticking(0, 0.05, 0.1, 0.1, 0.19, 0.2, 0.2)
    assert len([*track(range(4), "counting", now=clock)]) == 4
    assert [done for _, done, _ in listener.heard] == [0, 2, 4, 4]


def test_thing_may_count_for_several(listener: Listener) -> None:
    assert [*track(["ab", "cde"], "reading", size=len)] == ["ab", "cde"]
    assert listener.heard[-1] == ("reading", 5, None)


def test_turn_of_a_stream_is_told_with_its_steps(listener: Listener) -> None:
    start_step("orders", "encoding 50 %", total=7)
    assert listener.heard == [("encoding 50 %", None, 7)]


def test_nothing_is_counted_for_nobody() -> None:
    """Expect the very things back, so that nobody pays for it."""
    things = [1, 2]
    assert not is_enabled()
    assert track(things, "counting") is things
