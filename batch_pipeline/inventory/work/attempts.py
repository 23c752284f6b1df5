"""The fenced attempt protocol: claim with a token and a lease, publish or fail by token only."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa

from batch_pipeline.domain.batch import Attempt, AttemptStatus, Batch
from batch_pipeline.domain.encode import Encoded
from batch_pipeline.domain.errors import AttemptRunningError, FencedError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.seen import Seen
from batch_pipeline.domain.stream import Stream
from batch_pipeline.inventory.locks import OWNER_IS_GONE
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import (
    attempt,
    batch_state,
    job,
)
from batch_pipeline.inventory.upkeep.migrate import check_still
from batch_pipeline.inventory.work import batch_states
from batch_pipeline.inventory.work.encoded_rows import insert_files, seen_of
from batch_pipeline.inventory.work.heartbeat import Heartbeat
from batch_pipeline.inventory.work.manifests import Manifests
from batch_pipeline.inventory.work.publish_statement import PUBLISH, publish_values
from batch_pipeline.inventory.work.stored_text import storable

_MAX_TEXT = 4_000


@dataclass(frozen=True, slots=True)
class FencedAttempts:
    """The attempts of all batches. Lease arithmetic uses the database clock only."""

    engine: sa.Engine
    heartbeat: Heartbeat

    @contextmanager
    def claim(self, one: Batch, *, run_id: str, lease: timedelta) -> Iterator[Attempt]:
        """Start attempt n+1 and keep its lease alive until the block ends.

        Locks the batch's state while the attempt is written.
        """
        token = uuid4()
        with self.heartbeat.claiming(token, lease):
            with transaction(self.engine) as connection:
                check_still(connection)
                batch_states.lock(connection, one.id)
                batch_states.repair_locked(connection, [one.id])
                _close_dead(connection, attempt.c.batch_id == one.id)
                _refuse_if_running(connection, one)
                self.heartbeat.hold()
                claimed = self.start(connection, one, token, run_id=run_id, lease=lease)
                failpoint("claim.before_commit")
            failpoint("claim.after_commit")
        try:
            yield claimed
        finally:
            self.heartbeat.leave(token)

    def start(
        self, connection: sa.Connection, one: Batch, token: UUID, *, run_id: str, lease: timedelta
    ) -> Attempt:
        """Write attempt n+1 of a batch whose state the transaction has locked."""
        number, generation = batch_states.started(connection, one)
        values = {
            "batch_id": one.id,
            "number": number,
            "token": token,
            "liveness_key": self.heartbeat.liveness_key,
            "status": AttemptStatus.RUNNING.value,
            "run_id": run_id,
            "lease_until": sa.func.clock_timestamp() + lease,
        }
        insert = sa.insert(attempt).values(values).returning(attempt.c.id)
        attempt_id: int = connection.execute(insert).scalar_one()
        return Attempt(id=attempt_id, batch=one, number=number, token=token, generation=generation)

    def holds(self, claimed: Attempt) -> bool:
        """Tell whether the attempt is still this process's, as far as is known; asks nobody."""
        return self.heartbeat.keeps(claimed.token)

    def check_running(self, claimed: Attempt) -> None:
        """Ask the inventory whether the attempt still holds the batch.

        Raises:
            FencedError: it does not.
        """
        with transaction(self.engine) as connection:
            if _status(connection, claimed) != AttemptStatus.RUNNING:
                raise FencedError(claimed.batch.job, claimed.batch.label, claimed.number)

    def publish(self, claimed: Attempt, encoded: Encoded, stream: Stream) -> Manifest:
        """Make the attempt's files the batch's next generation in one transaction.

        Takes the job's row lock, so publish numbers follow commit order.
        """
        facts = {
            "schema_version": encoded.schema_version,
            "encoding": {
                "format": stream.encoding.format.value,
                "compression": stream.encoding.compression.value,
            },
            "key_properties": list(stream.message_keys),
            "facts": encoded.facts(),
            "seen": seen_of(claimed.batch, encoded),
        }
        try:
            with transaction(self.engine) as connection:
                _publish(connection, claimed, facts)
                insert_files(connection, claimed.id, encoded.result)
                failpoint("publish.before_commit")
        except FencedError:
            if self._generation(claimed) is None:
                raise
        failpoint("publish.after_commit")
        manifests = Manifests(self.engine)
        return manifests.with_origin(manifests.of_attempt(claimed.id))

    def succeed(
        self, claimed: Attempt, *, result: object = None, logging: str | None, seen: Seen | None
    ) -> int:
        """Publish an attempt whose work was done elsewhere, and give its generation.

        `result` is what `json` made: it becomes the row's `job_result_item`. Asking again for the
        same attempt changes nothing.

        Raises:
            FencedError: the attempt no longer holds the batch; nothing was changed.
        """
        facts = {
            "result": result,
            "logging": None if logging is None else storable(logging),
            "seen": None if seen is None else seen.to_json(),
        }
        try:
            with transaction(self.engine) as connection:
                generation = _publish(connection, claimed, facts)
                failpoint("succeed.before_commit")
        except FencedError:
            earlier = self._generation(claimed)
            if earlier is None:
                raise
            generation = earlier
        failpoint("succeed.after_commit")
        self.heartbeat.end(claimed.token)
        return generation

    def _generation(self, claimed: Attempt) -> int | None:
        """Give what an attempt was published as, None when it was not."""
        query = sa.select(attempt.c.generation).where(attempt.c.token == claimed.token)
        with transaction(self.engine) as connection:
            found: int | None = connection.execute(query).scalar_one_or_none()
        return found

    def pointed(self, manifest: Manifest, uri: str) -> None:
        """Remember where the pointer file of a published manifest is."""
        update = sa.update(attempt).where(attempt.c.token == manifest.token).values(pointer_uri=uri)
        with transaction(self.engine) as connection:
            connection.execute(update)

    def fail(
        self,
        claimed: Attempt,
        error: str,
        status: AttemptStatus,
        *,
        counts: bool = True,
        result: object = None,
        logging: str | None = None,
    ) -> bool:
        """Close a running attempt with a status and tell that it is not published.

        An abandoned one that does not count leaves its batch as many tries as it had before.
        `result` is what `json` made, as of `succeed`.
        """
        facts = {
            "result": sa.null() if result is None else result,
            "logging": None if logging is None else storable(logging),
        }
        with transaction(self.engine) as connection:
            batch_states.lock(connection, claimed.batch.id)
            mine = attempt.c.token == claimed.token
            close(connection, mine, status, error, counts=counts, facts=facts)
            unpublished = _status(connection, claimed) != AttemptStatus.SUCCEEDED
            failpoint("fail.before_commit")
        failpoint("fail.after_commit")
        self.heartbeat.end(claimed.token)
        return unpublished

    def close_dead(self, stream: str) -> int:
        """Close running attempts of a stream whose process is gone; gives their number."""
        with transaction(self.engine) as connection:
            batch_states.repair(connection, job.c.stream == stream)
            return close_dead(connection, job.c.stream == stream)


def close_dead(connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
    """Close running attempts of some jobs whose process is gone; gives their number.

    Batches that somebody else is just starting or ending are left to them.
    """
    check_still(connection)
    orphans = (
        sa.select(batch_state.c.batch_id)
        .join(job, job.c.id == batch_state.c.job_id)
        .join(attempt, attempt.c.batch_id == batch_state.c.batch_id)
        .where(
            which,
            batch_state.c.state == sa.literal_column("'running'"),
            attempt.c.status == AttemptStatus.RUNNING,
            OWNER_IS_GONE,
        )
        .with_for_update(of=batch_state, skip_locked=True)
    )
    batch_ids = list(connection.execute(orphans).scalars())
    return _close_dead(connection, attempt.c.batch_id.in_(batch_ids)) if batch_ids else 0


def _close_dead(connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
    reason = "its process ended without a word"
    return close(connection, sa.and_(which, OWNER_IS_GONE), AttemptStatus.ABANDONED, reason)


def close(
    connection: sa.Connection,
    which: sa.ColumnElement[bool],
    status: AttemptStatus,
    error: str,
    *,
    counts: bool = True,
    facts: Mapping[str, Any] | None = None,
) -> int:
    """Close running attempts, which fences them; the states of their batches are locked already."""
    closing = (
        sa.update(attempt)
        .where(which, attempt.c.status == AttemptStatus.RUNNING)
        .values(
            status=status.value,
            finished_at=sa.func.clock_timestamp(),
            error=storable(error)[:_MAX_TEXT],
            **(facts or {}),
        )
        .returning(attempt.c.id)
    )
    closed = list(connection.execute(closing).scalars())
    if closed:
        batch_states.ended(connection, closed, counts=counts)
    return len(closed)


def _refuse_if_running(connection: sa.Connection, one: Batch) -> None:
    query = sa.select(attempt.c.number, attempt.c.run_id).where(
        attempt.c.batch_id == one.id, attempt.c.status == AttemptStatus.RUNNING
    )
    row = connection.execute(query).one_or_none()
    if row is not None:
        raise AttemptRunningError(one.job, one.label, row.number, row.run_id)


def _status(connection: sa.Connection, claimed: Attempt) -> str | None:
    query = sa.select(attempt.c.status).where(attempt.c.token == claimed.token)
    return connection.execute(query).scalar_one_or_none()


def _publish(connection: sa.Connection, claimed: Attempt, facts: Mapping[str, Any]) -> int:
    """Publish a running attempt and give its generation."""
    values = publish_values(claimed, facts)
    generation: int | None = connection.execute(PUBLISH, values).scalar_one_or_none()
    if generation is None:
        raise FencedError(claimed.batch.job, claimed.batch.label, claimed.number)
    return generation
