"""Schema versions of a stream's records."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.schema import Column, RecordSchema
from batch_pipeline.inventory.jobs.jobs import of_stream
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import job, schema_version


@dataclass(frozen=True, slots=True)
class SchemaVersions:
    """The schema versions of all streams, counted from 1; their backfills share them."""

    engine: sa.Engine

    def latest(self, stream: str) -> tuple[int, RecordSchema]:
        """Read the newest version; `(0, empty)` before the first."""
        with transaction(self.engine) as connection:
            return _latest(connection, stream)

    def widen(
        self, stream: str, seen: Sequence[Column], *, text_source: bool
    ) -> tuple[int, RecordSchema]:
        """Add a version that also holds `seen`, unless the newest one already does.

        Locks the job's row, so versions of concurrent attempts form one line.
        """
        with transaction(self.engine) as connection:
            # Not the key: planning holds a share of that as long as it lasts.
            row = sa.select(job.c.id).where(of_stream(stream))
            lock = row.with_for_update(key_share=True)
            job_id = connection.execute(lock).scalar_one()
            version, schema = _latest(connection, stream)
            wider = schema.widened(seen, text_source=text_source)
            if wider == schema and version:
                return version, schema
            values = {"job_id": job_id, "version": version + 1, "columns": wider.to_json()}
            connection.execute(sa.insert(schema_version).values(values))
            failpoint("schema.before_commit")
            return version + 1, wider


def _latest(connection: sa.Connection, stream: str) -> tuple[int, RecordSchema]:
    query = (
        sa.select(schema_version.c.version, schema_version.c.columns)
        .join(job)
        .where(of_stream(stream))
        .order_by(schema_version.c.version.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return (
        (0, RecordSchema()) if row is None else (row.version, RecordSchema.from_json(row.columns))
    )
