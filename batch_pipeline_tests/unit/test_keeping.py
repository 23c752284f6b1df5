"""Parts that have to stay up: started again when they end, and given up when that does not help."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from batch_pipeline.defs.instance.bounded_log import LIMIT_BYTES
from batch_pipeline.defs.instance.keeping import keep
from batch_pipeline.domain.errors import SparkUnavailableError


@dataclass
class Candle:
    """A part that says of each look whether it is lit; `stop` is set after the last look."""

    looks: list[bool]
    stop: Event
    relights: bool = True
    lit: int = 0
    said: list[str] = field(default_factory=list)
    name: str = "candle"

    def trouble(self) -> str | None:
        """Say that it is out, when it is."""
        is_lit = self.looks.pop(0)
        if not self.looks:
            self.stop.set()
        return None if is_lit else "blown out"

    def restore(self) -> None:
        """Light it."""
        self.lit += 1
        if not self.relights:
            raise SparkUnavailableError("the wick", "it is wet")


def kept(candle: Candle) -> str | None:
    """Keep one part until its last look."""
    return keep([candle], candle.stop, candle.said.append, pause_seconds=0)


def test_part_that_ended_is_started_again_and_people_are_told() -> None:
    """Expect one start for one end, and to hear of both."""
    candle = Candle([True, False, True, True], Event())
    assert kept(candle) is None
    assert candle.lit == 1
    assert candle.said == ["candle: blown out; starting it again", "candle: up again"]


def test_log_that_grows_too_long_is_put_aside_while_parts_are_kept(tmp_path: Path) -> None:
    """Expect who waits for parts that end to have an eye on what they write, too."""
    log = tmp_path / "dagster.log"
    log.touch()
    os.truncate(log, LIMIT_BYTES + 1)
    candle = Candle([True], Event())
    assert keep([candle], candle.stop, candle.said.append, pause_seconds=0, logs=[log]) is None
    assert log.stat().st_size == 0
    assert (tmp_path / "dagster.old.log").stat().st_size == LIMIT_BYTES + 1


def test_part_that_does_not_start_is_tried_again() -> None:
    """Expect the reason, and another try at the next look."""
    candle = Candle([False, False, True], Event(), relights=False)
    assert kept(candle) is None
    assert candle.lit == 2
    assert "it is wet" in candle.said[1]


def test_part_that_ends_again_and_again_is_given_up() -> None:
    """Expect the sixth end within minutes to be the last, with what to do."""
    candle = Candle([False] * 9, Event())
    told = kept(candle)
    assert candle.lit == 5
    assert told is not None
    assert told.startswith("The candle was started again 5 times within minutes")
    assert "mend what ends it, then start again" in told
