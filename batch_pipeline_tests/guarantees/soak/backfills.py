"""Backfills of published partitions, launched through the webserver as its pages do.

One that is refused because a part is down at that moment is not repeated. How they end is judged
elsewhere.
"""

import random
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.error import URLError

import psycopg

from batch_pipeline_tests.acceptance.live_dev import LiveDev

_MOST_PARTITIONS = 4
_PUBLISHED = """
SELECT lpad(b.first_id::text, 8, '0') || '-' || lpad(b.last_id::text, 8, '0')
FROM batch_pipeline.batch b
JOIN batch_pipeline.batch_state s ON s.batch_id = b.id
JOIN batch_pipeline.job j ON j.id = b.job_id
WHERE j.name = %s AND j.kind = 'incremental' AND s.state = 'published' ORDER BY b.first_id
"""


@dataclass(slots=True)
class Backfills:
    """Launches a backfill of a few neighbours, of one stream after the other."""

    dev: LiveDev
    streams: tuple[str, ...]
    every_seconds: float
    until_seconds: float
    seed: int
    launched: int = 0
    refused: int = 0
    partitions: int = 0
    _turn: int = 1
    _choose: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._choose = random.Random(self.seed)  # noqa: S311 - a load, no secrets

    def catch_up(self, seconds: float) -> None:
        """Launch the next one, if it is due and anything is published."""
        if seconds < self._turn * self.every_seconds or seconds > self.until_seconds:
            return
        stream = self.streams[self._turn % len(self.streams)]
        self._turn += 1
        chosen = self._neighbours(stream)
        if not chosen:
            return
        try:
            self.dev.launch(stream, chosen)
        except (URLError, OSError, AssertionError, KeyError, TypeError):
            self.refused += 1
        else:
            self.launched += 1
            self.partitions += len(chosen)

    def _neighbours(self, stream: str) -> list[str]:
        with suppress(psycopg.Error, OSError, IndexError):
            keys = [key for (key,) in self.dev.query(_PUBLISHED, stream)]
            first = self._choose.randrange(len(keys)) if keys else 0
            return keys[first : first + self._choose.randint(1, _MOST_PARTITIONS)]
        return []
