"""Detects an inventory that was restored from a backup, and pauses its streams."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sqlalchemy as sa

from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.restored import HELD
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import job

Asked: TypeAlias = tuple[str, IdRange, int]  # job, range of a batch, generation

# A dump that is put back makes tables anew, a copy is another database, and putting files back
# takes a start of the server.
_MARK = sa.text("""
SELECT pg_postmaster_start_time(), d.oid::bigint, t.oid::bigint, t.relfilenode::bigint
  FROM pg_catalog.pg_database d, pg_catalog.pg_class t
 WHERE d.datname = current_database() AND t.oid = 'batch_pipeline.attempt'::regclass
""")
_UNKNOWN = sa.text("""
SELECT asked.position
  FROM unnest(CAST(:jobs AS text[]), CAST(:firsts AS bigint[]), CAST(:lasts AS bigint[]),
              CAST(:generations AS bigint[]))
       WITH ORDINALITY AS asked (job, first_id, last_id, generation, position)
 WHERE NOT EXISTS (
       SELECT FROM batch_pipeline.job j
         JOIN batch_pipeline.batch b ON b.job_id = j.id
         JOIN batch_pipeline.attempt a ON a.batch_id = b.id
        WHERE j.stream = :stream AND j.name = asked.job AND b.first_id = asked.first_id
          AND b.last_id = asked.last_id AND a.generation = asked.generation)
""")


@dataclass(frozen=True, slots=True)
class RestoredInventory:
    """The inventory as one that may be older than the storages of its streams."""

    engine: sa.Engine

    def mark(self) -> tuple[object, ...]:
        """Give what changes when the database is put back, and when its server is started."""
        with transaction(self.engine) as connection:
            return tuple(connection.execute(_MARK).one())

    def job_names(self, stream: str) -> tuple[set[str], set[str]]:
        """Read the names of the jobs of a stream, and of all other jobs."""
        query = sa.select(job.c.stream, job.c.name)
        with transaction(self.engine) as connection:
            rows = connection.execute(query).all()
        mine = {row.name for row in rows if row.stream == stream}
        return mine, {row.name for row in rows} - mine

    def unknown(self, stream: str, asked: Sequence[Asked]) -> Collection[Asked]:
        """Pick those generations of batches that no attempt of the stream's jobs was published as.

        Some thousand at a time are right.
        """
        values = {
            "stream": stream,
            "jobs": [name for name, _, _ in asked],
            "firsts": [ids.first_id for _, ids, _ in asked],
            "lasts": [ids.last_id for _, ids, _ in asked],
            "generations": [generation for _, _, generation in asked],
        }
        with transaction(self.engine) as connection:
            return {asked[at - 1] for at in connection.execute(_UNKNOWN, values).scalars()}

    def hold(self, stream: str, reason: str) -> None:
        """Pause all jobs of a stream that nobody has paused."""
        update = sa.update(job).where(job.c.stream == stream, job.c.paused_at.is_(None))
        values = {"paused_at": sa.func.clock_timestamp(), "paused_reason": reason}
        with transaction(self.engine) as connection:
            connection.execute(update.values(values))

    def release(self, stream: str) -> None:
        """Resume the jobs that `hold` has paused."""
        held = sa.and_(job.c.stream == stream, job.c.paused_reason.startswith(HELD))
        values = {"paused_at": sa.null(), "paused_reason": sa.null()}
        with transaction(self.engine) as connection:
            # A login that is only a worker may not update jobs.
            if connection.execute(sa.select(sa.exists().where(held))).scalar_one():
                connection.execute(sa.update(job).where(held).values(values))

    def count_past(self, numbers: Mapping[str, int], stream: str) -> None:
        """Let jobs of a stream never give publish numbers again that were given, by their names."""
        with transaction(self.engine) as connection:
            for name, number in numbers.items():
                count = sa.func.greatest(job.c.publish_count, number)
                update = sa.update(job).where(job.c.stream == stream, job.c.name == name)
                connection.execute(update.values(publish_count=count))

    def publish_counts(self, stream: str) -> dict[str, int]:
        """Read how often each job of a stream has published."""
        query = sa.select(job.c.name, job.c.publish_count).where(job.c.stream == stream)
        with transaction(self.engine) as connection:
            return {row.name: row.publish_count for row in connection.execute(query)}
