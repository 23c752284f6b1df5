"""Detect an inventory that was restored from a backup, and pause its streams."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sqlalchemy as sa

from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.tables import job
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.manifest_file import HELD

BatchGeneration: TypeAlias = tuple[str, IdRange, int]  # job, range of a batch, generation

# Restoring a dump creates new tables, a copy is another database, and restoring files requires a
# start of the server.
_FINGERPRINT = sa.text("""
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
class RestoreCheck:
    """Checks whether the inventory is older than the storages of its streams."""

    engine: sa.Engine

    def fingerprint(self) -> tuple[object, ...]:
        """Return values that change if the database is restored or its server is restarted."""
        with transaction(self.engine) as connection:
            return tuple(connection.execute(_FINGERPRINT).one())

    def job_names(self, stream: str) -> tuple[set[str], set[str]]:
        """Read the names of the jobs of a stream, and of all other jobs."""
        query = sa.select(job.c.stream, job.c.name)
        with transaction(self.engine) as connection:
            rows = connection.execute(query).all()
        mine = {row.name for row in rows if row.stream == stream}
        return mine, {row.name for row in rows} - mine

    def unknown_generations(
        self, stream: str, generations: Sequence[BatchGeneration]
    ) -> Collection[BatchGeneration]:
        """Return the generations that no attempt of the stream's jobs has published.

        Pass a few thousand at a time.
        """
        values = {
            "stream": stream,
            "jobs": [name for name, _, _ in generations],
            "firsts": [ids.first_id for _, ids, _ in generations],
            "lasts": [ids.last_id for _, ids, _ in generations],
            "generations": [generation for _, _, generation in generations],
        }
        with transaction(self.engine) as connection:
            return {
                generations[position - 1]
                for position in connection.execute(_UNKNOWN, values).scalars()
            }

    def pause_stream(self, stream: str, reason: str) -> None:
        """Pause all jobs of a stream that are not paused."""
        update = sa.update(job).where(job.c.stream == stream, job.c.paused_at.is_(None))
        values = {"paused_at": sa.func.clock_timestamp(), "paused_reason": reason}
        with transaction(self.engine) as connection:
            connection.execute(update.values(values))

    def resume_stream(self, stream: str) -> None:
        """Resume the jobs that `pause_stream` paused."""
        is_paused_by_check = sa.and_(job.c.stream == stream, job.c.paused_reason.startswith(HELD))
        values = {"paused_at": sa.null(), "paused_reason": sa.null()}
        with transaction(self.engine) as connection:
            # A login with only the worker role may not update jobs.
            if connection.execute(sa.select(sa.exists().where(is_paused_by_check))).scalar_one():
                connection.execute(sa.update(job).where(is_paused_by_check).values(values))

    def raise_publish_counts(self, numbers: Mapping[str, int], stream: str) -> None:
        """Raise the publish counts of a stream's jobs to at least the given numbers, by name."""
        with transaction(self.engine) as connection:
            for name, number in numbers.items():
                count = sa.func.greatest(job.c.publish_count, number)
                update = sa.update(job).where(job.c.stream == stream, job.c.name == name)
                connection.execute(update.values(publish_count=count))

    def publish_counts(self, stream: str) -> dict[str, int]:
        """Return the publish counts of a stream's jobs by name."""
        query = sa.select(job.c.name, job.c.publish_count).where(job.c.stream == stream)
        with transaction(self.engine) as connection:
            return {row.name: row.publish_count for row in connection.execute(query)}
