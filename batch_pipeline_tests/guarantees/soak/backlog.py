"""What waits, and how large the database is, asked in SQL of its own. Judges nothing."""

from contextlib import suppress
from dataclasses import dataclass

import psycopg

from batch_pipeline_tests.acceptance.live_dev import LiveDev

_LIVE = """
batch_pipeline.batch b
JOIN batch_pipeline.batch_state s ON s.batch_id = b.id
JOIN batch_pipeline.job j ON j.id = b.job_id AND j.kind = 'incremental'
"""
_ASKED = f"""
SELECT (SELECT count(*) FROM batch_pipeline.item),
  (SELECT coalesce(sum(b.item_count), 0)::bigint FROM {_LIVE} WHERE s.state = 'published'),
  (SELECT count(*) FROM {_LIVE} JOIN batch_pipeline.attempt a
      ON a.batch_id = b.id AND a.generation = s.generation
    WHERE j.name = ANY(%s) AND s.state = 'published' AND NOT EXISTS (
      SELECT FROM batch_pipeline.load l
       WHERE l.attempt_id = a.id AND l.status = 'succeeded' AND l.voided_at IS NULL)),
  (SELECT count(*) FROM runs WHERE status NOT IN ('SUCCESS', 'FAILURE', 'CANCELED')),
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
  (SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables),
  (SELECT coalesce(sum(n_live_tup), 0)::bigint FROM pg_stat_user_tables),
  pg_database_size(current_database())
"""  # noqa: S608 - the only thing put in is the text above


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits at one moment, and what the database holds."""

    registered: int
    published: int
    not_loaded: int
    unfinished_runs: int
    connections: int
    dead_rows: int
    live_rows: int
    database_bytes: int

    @property
    def unpublished(self) -> int:
        """Items that are registered and not published."""
        return self.registered - self.published


def backlog(dev: LiveDev, loaded: list[str]) -> Backlog | None:
    """Ask for what waits; `loaded` are streams with a target. None while the database is down."""
    with suppress(psycopg.Error, OSError, IndexError):
        [row] = dev.query(_ASKED, loaded)
        names = Backlog.__slots__
        return Backlog(**dict(zip(names, row, strict=True)))
    return None
