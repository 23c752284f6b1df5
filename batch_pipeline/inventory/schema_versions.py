"""Schema versions of a stream's records, with the changes of each version and their cause."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.jobs import of_stream
from batch_pipeline.inventory.tables import job, schema_version
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.schema import Column, Misfit, RecordSchema, changes_between, with_declared


@dataclass(frozen=True, slots=True)
class SchemaVersions:
    """The schema versions of all streams, counted from 1; a stream's backfills share them."""

    engine: sa.Engine

    def latest(self, stream: str) -> tuple[int, RecordSchema]:
        """Return the newest version; `(0, empty)` before the first."""
        with transaction(self.engine) as connection:
            return _latest(connection, stream)

    def has_published(self, stream: str) -> bool:
        """Return whether a batch has been published with a schema of the stream."""
        published = sa.exists().where(job.c.stream == stream, job.c.publish_count > 0)
        with transaction(self.engine) as connection:
            return bool(connection.execute(sa.select(published)).scalar_one())

    def widen(
        self,
        stream: str,
        seen: Sequence[Column],
        *,
        text_source: bool,
        because: Sequence[Misfit] = (),
    ) -> tuple[int, RecordSchema]:
        """Add a version that includes the columns `seen`, unless the newest one already does.

        Stores the changes, with the records of `because` that caused them. Locks the job's row, so
        that versions of concurrent attempts form one sequence.
        """
        widened = partial(RecordSchema.widened, seen=seen, text_source=text_source)
        with transaction(self.engine) as connection:
            return _insert_version(connection, stream, widened, because=because)

    def declare(self, stream: str, declared: RecordSchema) -> tuple[int, RecordSchema]:
        """Add a version that includes the declared columns, unless the newest one already does.

        The declaration is stored with the version, and the next declaration is compared with it.

        Raises:
            ConfigurationError: a column is declared narrower than before, or with a type that
                contradicts the records.
        """
        with transaction(self.engine) as connection:

            def extended(known: RecordSchema) -> RecordSchema:
                return with_declared(stream, known, _declared(connection, stream), declared)

            version, schema = _latest(connection, stream)
            if version and extended(schema) == schema:
                return version, schema  # the usual case, without a lock
            return _insert_version(connection, stream, extended, declared=declared)


def _insert_version(
    connection: sa.Connection,
    stream: str,
    widened: Callable[[RecordSchema], RecordSchema],
    *,
    because: Sequence[Misfit] = (),
    declared: RecordSchema | None = None,
) -> tuple[int, RecordSchema]:
    # FOR NO KEY UPDATE, since planning holds a key share lock.
    lock = sa.select(job.c.id).where(of_stream(stream)).with_for_update(key_share=True)
    job_id = connection.execute(lock).scalar_one()
    version, schema = _latest(connection, stream)
    wider = widened(schema)
    if wider == schema and version:
        return version, schema
    changes = changes_between(schema, wider, because)
    values: dict[str, Any] = {
        "job_id": job_id,
        "version": version + 1,
        "columns": wider.to_json(),
        "changes": [change.to_json() for change in changes],
    }
    first = next((change for change in changes if change.location is not None), None)
    if first is not None:
        values |= {"item_id": first.item_id, "location": first.location, "line": first.line}
    if declared is not None:
        values["declared"] = declared.to_json()
    connection.execute(sa.insert(schema_version).values(values))
    failpoint("schema.before_commit")
    return version + 1, wider


def _latest(connection: sa.Connection, stream: str) -> tuple[int, RecordSchema]:
    row = connection.execute(_newest(stream)).one_or_none()
    if row is None:
        return 0, RecordSchema()
    return row.version, RecordSchema.from_json(row.columns)


def _declared(connection: sa.Connection, stream: str) -> RecordSchema | None:
    """Read the newest stored declaration."""
    query = _newest(stream).where(schema_version.c.declared.is_not(None))
    row = connection.execute(query).one_or_none()
    return None if row is None else RecordSchema.from_json(row.declared)


def _newest(stream: str) -> sa.Select[Any]:
    versions = sa.select(schema_version).join(job).where(of_stream(stream))
    return versions.order_by(schema_version.c.version.desc()).limit(1)
