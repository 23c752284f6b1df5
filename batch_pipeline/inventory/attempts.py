"""The fenced attempt protocol: claim with a token and a lease, publish or fail by token only."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

import sqlalchemy as sa

from batch_pipeline.domain.batch import Attempt, AttemptStatus, Batch
from batch_pipeline.domain.errors import AttemptRunningError, FencedError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.stream import Stream
from batch_pipeline.inventory.engine import transaction
from batch_pipeline.inventory.heartbeat import Heartbeat
from batch_pipeline.inventory.locks import OWNER_IS_GONE, liveness_key
from batch_pipeline.inventory.manifests import Manifests
from batch_pipeline.inventory.tables import attempt, attempt_item, batch, job, part_file
from batch_pipeline.ports import Encoded

_MAX_ERROR = 4_000


@dataclass(frozen=True, slots=True)
class FencedAttempts:
    """The attempts of all batches. Lease arithmetic uses the database clock only."""

    engine: sa.Engine

    @contextmanager
    def claim(self, one: Batch, *, run_id: str, lease: timedelta) -> Iterator[Attempt]:
        """Start attempt n+1 and keep its lease alive until the block ends.

        Locks the batch's row while the attempt is written.
        """
        token = uuid4()
        heartbeat = Heartbeat(self.engine, token, lease)
        try:
            with transaction(self.engine) as connection:
                lock = sa.select(batch.c.id).where(batch.c.id == one.id).with_for_update()
                connection.execute(lock)
                _close_dead(connection, attempt.c.batch_id == one.id)
                _refuse_if_running(connection, one)
                heartbeat.hold()
                claimed = _insert(connection, one, token, run_id=run_id, lease=lease)
                failpoint("claim.before_commit")
            failpoint("claim.after_commit")
            heartbeat.start()
            yield claimed
        finally:
            heartbeat.end()

    def publish(self, claimed: Attempt, encoded: Encoded, stream: Stream) -> Manifest:
        """Make the attempt's files the batch's next generation in one transaction.

        Takes the job's row lock, so publish numbers follow commit order.
        """
        with transaction(self.engine) as connection:
            if _status(connection, claimed) != AttemptStatus.SUCCEEDED:
                if not _mark_published(connection, claimed, encoded, stream):
                    raise FencedError(stream.name, claimed.batch.key, claimed.number)
                _insert_files(connection, claimed, encoded)
                failpoint("publish.before_commit")
        failpoint("publish.after_commit")
        return Manifests(self.engine).of_attempt(claimed.id)

    def pointed(self, manifest: Manifest, uri: str) -> None:
        """Remember where the pointer file of a published manifest is."""
        update = sa.update(attempt).where(attempt.c.token == manifest.token).values(pointer_uri=uri)
        with transaction(self.engine) as connection:
            connection.execute(update)

    def fail(self, claimed: Attempt, error: str, status: AttemptStatus) -> bool:
        """Close a running attempt with a status and tell that it is not published."""
        with transaction(self.engine) as connection:
            _close(connection, attempt.c.token == claimed.token, status, error)
            return _status(connection, claimed) != AttemptStatus.SUCCEEDED

    def close_dead(self, job_name: str) -> int:
        """Close running attempts of a job whose process is gone; gives their number."""
        of_job = sa.select(batch.c.id).join(job).where(job.c.name == job_name).scalar_subquery()
        with transaction(self.engine) as connection:
            return _close_dead(connection, attempt.c.batch_id.in_(of_job))


def _close_dead(connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
    reason = "its process ended without a word"
    return _close(connection, sa.and_(which, OWNER_IS_GONE), AttemptStatus.ABANDONED, reason)


def _close(
    connection: sa.Connection, which: sa.ColumnElement[bool], status: AttemptStatus, error: str
) -> int:
    closing = (
        sa.update(attempt)
        .where(which, attempt.c.status == AttemptStatus.RUNNING)
        .values(
            status=status.value,
            finished_at=sa.func.clock_timestamp(),
            error=_storable(error)[:_MAX_ERROR],
        )
    )
    return connection.execute(closing).rowcount


def _refuse_if_running(connection: sa.Connection, one: Batch) -> None:
    query = sa.select(attempt.c.number, attempt.c.run_id).where(
        attempt.c.batch_id == one.id, attempt.c.status == AttemptStatus.RUNNING
    )
    row = connection.execute(query).one_or_none()
    if row is not None:
        raise AttemptRunningError(one.job, one.key, row.number, row.run_id)


def _insert(
    connection: sa.Connection, one: Batch, token: UUID, *, run_id: str, lease: timedelta
) -> Attempt:
    earlier = sa.select(sa.func.coalesce(sa.func.max(attempt.c.number), 0)).where(
        attempt.c.batch_id == one.id
    )
    row = connection.execute(
        sa.insert(attempt)
        .values(
            batch_id=one.id,
            number=earlier.scalar_subquery() + 1,
            token=token,
            liveness_key=liveness_key(token),
            status=AttemptStatus.RUNNING.value,
            run_id=run_id,
            lease_until=sa.func.clock_timestamp() + lease,
        )
        .returning(attempt.c.id, attempt.c.number)
    ).one()
    return Attempt(id=row.id, batch=one, number=row.number, token=token)


def _status(connection: sa.Connection, claimed: Attempt) -> str | None:
    query = sa.select(attempt.c.status).where(attempt.c.token == claimed.token)
    return connection.execute(query).scalar_one_or_none()


def _mark_published(
    connection: sa.Connection, claimed: Attempt, encoded: Encoded, stream: Stream
) -> bool:
    counter = (
        sa.update(job)
        .where(job.c.name == claimed.batch.job)
        .values(publish_count=job.c.publish_count + 1)
        .returning(job.c.publish_count)
    )
    publish_number = connection.execute(counter).scalar_one()
    mine = attempt.alias("mine")
    generation = sa.select(sa.func.coalesce(sa.func.max(mine.c.generation), 0) + 1).where(
        mine.c.batch_id == claimed.batch.id
    )
    encoding = {
        "format": stream.encoding.format.value,
        "compression": stream.encoding.compression.value,
    }
    update = (
        sa.update(attempt)
        .where(attempt.c.token == claimed.token, attempt.c.status == AttemptStatus.RUNNING)
        .values(
            status=AttemptStatus.SUCCEEDED.value,
            finished_at=sa.func.clock_timestamp(),
            generation=generation.scalar_subquery(),
            publish_number=publish_number,
            schema_version=encoded.schema_version,
            encoding=encoding,
            key_properties=list(stream.key_properties),
            facts=encoded.facts(),
        )
    )
    return connection.execute(update).rowcount == 1


def _insert_files(connection: sa.Connection, claimed: Attempt, encoded: Encoded) -> None:
    files = [
        {
            "attempt_id": claimed.id,
            "quarantine": quarantine,
            "position": position,
            "uri": part.uri,
            "records": part.records,
            "size_bytes": part.size_bytes,
            "sha256": part.sha256,
        }
        for quarantine, parts in (
            (False, encoded.result.part_files),
            (True, encoded.result.quarantine_files),
        )
        for position, part in enumerate(parts)
    ]
    items = [
        {
            "attempt_id": claimed.id,
            "item_id": item.item_id,
            "read": item.read,
            "written": item.written,
            "filtered": item.filtered,
            "quarantined": item.quarantined,
            "bad_file": None if item.bad_file is None else _storable(item.bad_file),
        }
        for item in encoded.result.items
    ]
    if files:
        connection.execute(sa.insert(part_file), files)
    if items:
        connection.execute(sa.insert(attempt_item), items)


def _storable(text: str) -> str:
    """Spell out what Postgres cannot store in a text: NUL, and bytes of names that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
