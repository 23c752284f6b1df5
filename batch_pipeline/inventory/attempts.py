"""Attempts on batches: claim with a fencing token and a lease, publish or fail by token only.

`Heartbeat` renews the leases of this process, on one connection and one thread.
"""

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, NamedTuple, cast
from uuid import UUID, uuid4

import psycopg
import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.inventory import batch_states
from batch_pipeline.inventory.connection import (
    OWNER_IS_GONE,
    copy_rows,
    fetch_value,
    is_connection_dead,
    named_statement,
    transaction,
)
from batch_pipeline.inventory.manifests import Manifests
from batch_pipeline.inventory.migrate import ensure_revision_unchanged
from batch_pipeline.inventory.tables import (
    attempt,
    attempt_item,
    batch_state,
    is_any_of,
    job,
    load,
    part_file,
)
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch
from batch_pipeline.model.encode_request import Encoded, EncodeResult
from batch_pipeline.model.errors import (
    ConfigurationError,
    ConflictError,
    DatabaseUnreachableError,
    FencedError,
    RetryableError,
)
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.item import ItemIdSet
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.stream import Stream

_RENEWAL_SECONDS = 15.0
_UNCONFIRMED_SECONDS = 60.0
log = logging.getLogger(__name__)


class _Lease(NamedTuple):
    duration: timedelta
    renewed_at: float  # on the monotonic clock


class Heartbeat:
    """The liveness lock of this process, and the renewal of its leases.

    The lock is a session-level advisory lock: if the process dies, the server releases it at once,
    and others need not wait for the leases to expire. Leases are renewed every 15 s, or after a
    third of the shortest lease; each renewal also replaces a lost connection.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.liveness_key = secrets.randbits(63)
        self._engine = engine
        self._mutex = threading.RLock()
        self._connection: sa.Connection | None = None
        self._is_locked = False
        self._leases: dict[UUID, _Lease] = {}
        self._to_expire: dict[UUID, float] = {}  # until when to try, on the monotonic clock
        self._to_release: deque[UUID] = deque()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closed = False

    def take_lock(self) -> sa.Connection:
        """Take the liveness lock if it is not held; return the connection for renewals.

        Required before an attempt becomes visible. If the network failed, the server may not have
        noticed yet that the previous session ended. As long as that session holds the lock, this
        process counts as alive, and later calls try again to take the lock.
        """
        with self._mutex:
            connection = self._live_connection()
            if connection is None:
                self._drop_connection()
                # Detached from the pool, so that closing it ends the session and frees the lock.
                connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                connection.detach()
                try:
                    self._is_locked = self._wait_for_lock(connection)
                except BaseException:
                    connection.close()
                    raise
                self._connection = connection
            elif not self._is_locked:
                lock = sa.select(sa.func.pg_try_advisory_lock(self.liveness_key))
                self._is_locked = connection.execute(lock).scalar_one()
            return connection

    def _live_connection(self) -> sa.Connection | None:
        if self._connection is None or self._connection.invalidated:
            return None
        # A detached connection has no driver_connection in SQLAlchemy.
        raw = cast("psycopg.Connection | None", self._connection.connection.dbapi_connection)
        return None if raw is None or is_connection_dead(raw) else self._connection

    def _wait_for_lock(self, connection: sa.Connection) -> bool:
        """Take the lock; return False if the previous session still holds it after 5 s."""
        try:
            connection.execute(sa.select(sa.func.pg_advisory_lock(self.liveness_key)))
        except exc.OperationalError as error:
            if isinstance(error.orig, psycopg.errors.LockNotAvailable):
                return False
            raise
        return True

    @contextmanager
    def renew_if_committed(self, token: UUID, lease: timedelta) -> Iterator[None]:
        """Renew the lease that the block commits; expire it if the commit is unconfirmed."""
        try:
            yield
            self.renew(token, lease)
        except BaseException as error:
            # The commit may have succeeded even though its reply was lost.
            self.expire_unconfirmed(token, error=error)
            raise

    def renew(self, token: UUID, lease: timedelta) -> None:
        """Start renewing the lease of an attempt or load."""
        with self._mutex:
            self._leases[token] = _Lease(lease, monotonic())
            self._start()
        if lease.total_seconds() / 3 < _RENEWAL_SECONDS:
            self._wake.set()

    def stop_renewing(self, token: UUID) -> None:
        """Stop renewing the lease of a closed attempt or load."""
        with self._mutex:
            self._leases.pop(token, None)

    def release(self, token: UUID) -> None:
        """Expire the lease now, if it is still being renewed."""
        with self._mutex:
            if self._leases.pop(token, None) is not None:
                self._to_expire[token] = 0
        self._renew_all()

    def expire_unconfirmed(self, *tokens: UUID, error: BaseException | None = None) -> None:
        """Expire the leases of attempts whose commits are unconfirmed because of an error.

        If the connection was lost, the server may commit later, after a statement that waits for a
        lock. Each renewal of the next minute then tries again.
        """
        if isinstance(error, ConfigurationError | ConflictError):
            return  # raised before the commit
        is_lost = isinstance(error, DatabaseUnreachableError)
        with self._mutex:
            for token in tokens:
                self._leases.pop(token, None)
                self._to_expire[token] = monotonic() + _UNCONFIRMED_SECONDS if is_lost else 0
            self._start()
        self._renew_all()

    def release_later(self, token: UUID) -> None:
        """Expire the lease at the next renewal.

        Takes no lock and does not wait, so that finalizers may call it.
        """
        self._to_release.append(token)

    def is_renewing(self, token: UUID) -> bool:
        """Return whether this process renews the lease, without a query."""
        return token in self._leases

    def is_current(self, token: UUID) -> bool:
        """Return whether the last renewal of the lease has not expired yet, without a query."""
        lease = self._leases.get(token)
        return lease is not None and monotonic() - lease.renewed_at < lease.duration.total_seconds()

    def close(self) -> None:
        """Stop renewing and release the lock."""
        self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._mutex:
            self._leases.clear()
            self._drop_connection()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            thirds = (one.duration.total_seconds() / 3 for one in list(self._leases.values()))
            self._wake.wait(min([_RENEWAL_SECONDS, *thirds]))
            self._wake.clear()
            if not self._closed:
                self._renew_all()

    def _renew_all(self) -> None:
        with self._mutex:
            while self._to_release:
                token = self._to_release.popleft()
                self._leases.pop(token, None)
                self._to_expire[token] = 0
            if not self._leases and not self._to_expire:
                return
            try:
                connection = self.take_lock()
                self._expire_leases(connection)
                self._renew_leases(connection)
            except Exception as error:  # noqa: BLE001 - the thread must go on
                # A connection that still works keeps the liveness lock.
                log.warning("leases not renewed, retrying: %s", type(error).__name__)

    def _renew_leases(self, connection: sa.Connection) -> None:
        now, started_at = sa.func.clock_timestamp(), monotonic()
        for duration in {one.duration for one in self._leases.values()}:
            tokens = {token for token, one in self._leases.items() if one.duration == duration}
            fenced = set(tokens)
            # Most processes hold only attempts or only loads.
            for table in (attempt, load):
                if fenced:
                    renewal = sa.update(table).where(_is_running(table, fenced))
                    renewal = renewal.values(renewed_at=now, lease_until=now + duration)
                    fenced -= set(connection.execute(renewal.returning(table.c.token)).scalars())
            if fenced:
                # An update that waited for the end of a load does not see the next, which has the
                # same token and a new lease. Another update could wait for that one's end again.
                running = sa.select(load.c.token).where(_is_running(load, fenced))
                fenced -= set(connection.execute(running).scalars())
            for token in fenced:
                del self._leases[token]  # publishing, or closing the load, will raise
            self._leases |= dict.fromkeys(tokens - fenced, _Lease(duration, started_at))

    def _expire_leases(self, connection: sa.Connection) -> None:
        if self._to_expire:
            ended_at = sa.func.clock_timestamp() - timedelta(seconds=1)
            for table in (attempt, load):
                expiry = sa.update(table).where(_is_running(table, self._to_expire))
                expiry = expiry.values(lease_until=ended_at).returning(table.c.token)
                for token in connection.execute(expiry).scalars():
                    del self._to_expire[token]
            now = monotonic()
            self._to_expire = {token: end for token, end in self._to_expire.items() if end > now}

    def _drop_connection(self) -> None:
        if self._connection is not None:
            with suppress(exc.SQLAlchemyError):
                self._connection.close()
            self._connection = None


def _is_running(table: sa.Table, tokens: Collection[UUID]) -> sa.ColumnElement[bool]:
    is_running = table.c.status == AttemptStatus.RUNNING
    return sa.and_(is_any_of(table.c.token, tokens), is_running)


_MAX_ERROR_LENGTH = 4_000
_JSON_FACTS = ("encoding", "key_properties", "facts", "result", "seen")


def storable(text: str) -> str:
    """Escape NUL and bytes that are not UTF-8, which Postgres text cannot store."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _insert_files(connection: sa.Connection, attempt_id: int, result: EncodeResult) -> None:
    """Insert the part files of an attempt in order, and the record counts of each item."""
    files = [
        {
            "attempt_id": attempt_id,
            "quarantine": quarantine,
            "position": position,
            "uri": part.uri,
            "records": part.records,
            "size_bytes": part.size_bytes,
            "sha256": part.sha256,
        }
        for quarantine, parts in ((False, result.part_files), (True, result.quarantine_files))
        for position, part in enumerate(parts)
    ]
    if files:
        connection.execute(sa.insert(part_file), files)
    items = (
        (
            attempt_id,
            item.item_id,
            item.read,
            item.written,
            item.filtered,
            item.quarantined,
            None if item.bad_file is None else storable(item.bad_file),
            item.etag,
            item.version,
        )
        for item in result.items
    )
    copy_rows(connection, attempt_item, attempt_item.columns.keys(), items)


@dataclass(frozen=True, slots=True)
class FencedAttempts:
    """The attempts on all batches. Lease arithmetic uses the database clock only."""

    engine: sa.Engine
    heartbeat: Heartbeat

    @contextmanager
    def claim(self, claimed_batch: Batch, *, run_id: str, lease: timedelta) -> Iterator[Attempt]:
        """Start attempt n+1 and renew its lease until the block ends.

        Locks the batch's state while the attempt is inserted. An interrupt closes the attempt.

        Raises:
            ConflictError: another attempt on the batch is running.
        """
        token = uuid4()
        claimed = None
        try:
            with self.heartbeat.renew_if_committed(token, lease):
                with transaction(self.engine) as connection:
                    claimed = self._start(connection, claimed_batch, token, run_id, lease)
                    failpoint("claim.before_commit")
                failpoint("claim.after_commit")
            yield claimed
        except BaseException as error:
            # Not if the claim is only garbage-collected, perhaps after the inventory was closed.
            if claimed is not None and not isinstance(error, Exception | GeneratorExit):
                with suppress(RetryableError):
                    self.fail(claimed, "interrupted", AttemptStatus.ABANDONED, counts=False)
            raise
        finally:
            self.heartbeat.release(token)

    def _start(
        self,
        connection: sa.Connection,
        claimed_batch: Batch,
        token: UUID,
        run_id: str,
        lease: timedelta,
    ) -> Attempt:
        ensure_revision_unchanged(connection)
        batch_states.lock(connection, claimed_batch.id)
        _close_dead(connection, attempt.c.batch_id == claimed_batch.id)
        _ensure_no_running_attempt(connection, claimed_batch)
        self.heartbeat.take_lock()
        number, generation = batch_states.mark_running(connection, claimed_batch)
        values = {
            "batch_id": claimed_batch.id,
            "number": number,
            "token": token,
            "liveness_key": self.heartbeat.liveness_key,
            "status": AttemptStatus.RUNNING.value,
            "run_id": run_id,
            "lease_until": sa.func.clock_timestamp() + lease,
        }
        insert = sa.insert(attempt).values(values).returning(attempt.c.id)
        return Attempt(
            id=connection.execute(insert).scalar_one(),
            batch=claimed_batch,
            number=number,
            token=token,
            generation=generation,
        )

    def holds(self, claimed: Attempt) -> bool:
        """Return whether this process still renews the attempt's lease, without a query."""
        return self.heartbeat.is_renewing(claimed.token)

    def check_running(self, claimed: Attempt) -> None:
        """Check in the inventory that the attempt is still running.

        Raises:
            FencedError: the attempt no longer holds the batch.
        """
        if fetch_value(self.engine, _status(claimed)) != AttemptStatus.RUNNING:
            raise FencedError(claimed.batch.job, claimed.batch.label, claimed.number)

    def publish(self, claimed: Attempt, encoded: Encoded, stream: Stream) -> Manifest:
        """Publish the attempt's files as the batch's next generation, in one transaction.

        Locks the job's row, so publish numbers follow commit order.
        """
        ids = sorted(item.item_id for item in encoded.result.items)
        weight = claimed.batch.weight if encoded.weight is None else encoded.weight
        facts = {
            "schema_version": encoded.schema_version,
            "encoding": stream.encoding.to_json(),
            "key_properties": list(stream.message_keys),
            "facts": encoded.facts(),
            "seen": ItemIdSet.of(ids, weight=weight).to_json(),
        }

        def insert_files(connection: sa.Connection) -> None:
            _insert_files(connection, claimed.id, encoded.result)
            failpoint("publish.before_commit")

        self._publish(claimed, facts, insert_files)
        failpoint("publish.after_commit")
        self.heartbeat.stop_renewing(claimed.token)
        manifests = Manifests(self.engine)
        return manifests.with_origin(manifests.of_attempt(claimed.id))

    def succeed(
        self,
        claimed: Attempt,
        *,
        result: object = None,
        logging: str | None,
        seen: ItemIdSet | None,
    ) -> int:
        """Publish an attempt that has no files and return its generation.

        `result` is a JSON value; the inventory view shows it as `job_result_item`. Calling this
        again for the same attempt changes nothing.

        Raises:
            FencedError: the attempt no longer holds the batch. Nothing was changed.
        """
        facts = {
            "result": result,
            "logging": None if logging is None else storable(logging),
            "seen": None if seen is None else seen.to_json(),
        }
        generation = self._publish(claimed, facts, lambda _: failpoint("succeed.before_commit"))
        failpoint("succeed.after_commit")
        self.heartbeat.stop_renewing(claimed.token)
        return generation

    def _publish(
        self,
        claimed: Attempt,
        facts: dict[str, Any],
        before_commit: Callable[[sa.Connection], None],
    ) -> int:
        """Publish an attempt and return its generation; publishing again changes nothing."""
        missing = dict.fromkeys((*_JSON_FACTS, "schema_version", "logging"))
        values = missing | {"token": claimed.token, "batch_id": claimed.batch.id} | facts
        statement = named_statement("publish", *_JSON_FACTS)
        with transaction(self.engine) as connection:
            generation = connection.execute(statement, values).scalar_one_or_none()
            if generation is None:
                connection.rollback()
            else:
                before_commit(connection)
        if generation is None:
            earlier = sa.select(attempt.c.generation).where(attempt.c.token == claimed.token)
            generation = fetch_value(self.engine, earlier)
        if generation is None:
            raise FencedError(claimed.batch.job, claimed.batch.label, claimed.number)
        return int(generation)

    def record_pointer(self, manifest: Manifest, uri: str) -> None:
        """Store the URI of a published manifest's manifest file."""
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
        """Close a running attempt with a status; return whether it is unpublished.

        With `counts=False` the attempt does not count towards the job's `max_attempts`. `result` is
        a JSON value, as for `succeed`.
        """
        facts = {
            "result": sa.null() if result is None else result,
            "logging": None if logging is None else storable(logging),
        }
        with transaction(self.engine) as connection:
            batch_states.lock(connection, claimed.batch.id)
            mine = attempt.c.token == claimed.token
            close(connection, mine, status, error, counts=counts, facts=facts)
            status_now = connection.execute(_status(claimed)).scalar_one_or_none()
            failpoint("fail.before_commit")
        failpoint("fail.after_commit")
        self.heartbeat.stop_renewing(claimed.token)
        return status_now != AttemptStatus.SUCCEEDED

    def close_dead(self, stream: str) -> int:
        """Close a stream's running attempts whose process is gone; return their number."""
        with transaction(self.engine) as connection:
            return close_dead(connection, job.c.stream == stream)


def close_dead(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> int:
    """Close the selected jobs' running attempts whose process is gone; return their number.

    Skips batches whose state another transaction has locked.
    """
    ensure_revision_unchanged(connection)
    dead_attempts = (
        sa.select(batch_state.c.batch_id)
        .join(job, job.c.id == batch_state.c.job_id)
        .join(attempt, attempt.c.batch_id == batch_state.c.batch_id)
        .where(
            condition,
            batch_state.c.state == sa.literal_column("'running'"),
            attempt.c.status == AttemptStatus.RUNNING,
            OWNER_IS_GONE,
        )
        .with_for_update(of=batch_state, skip_locked=True)
    )
    batch_ids = list(connection.execute(dead_attempts).scalars())
    return _close_dead(connection, attempt.c.batch_id.in_(batch_ids)) if batch_ids else 0


def _close_dead(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> int:
    reason = "the worker exited without reporting"
    return close(connection, sa.and_(condition, OWNER_IS_GONE), AttemptStatus.ABANDONED, reason)


def close(
    connection: sa.Connection,
    condition: sa.ColumnElement[bool],
    status: AttemptStatus,
    error: str,
    *,
    counts: bool = True,
    facts: Mapping[str, Any] | None = None,
) -> int:
    """Close running attempts, which fences them. The states of their batches must be locked."""
    closing = (
        sa.update(attempt)
        .where(condition, attempt.c.status == AttemptStatus.RUNNING)
        .values(
            status=status.value,
            finished_at=sa.func.clock_timestamp(),
            error=storable(error)[:_MAX_ERROR_LENGTH],
            **(facts or {}),
        )
        .returning(attempt.c.id)
    )
    closed = list(connection.execute(closing).scalars())
    if closed:
        batch_states.mark_ended(connection, closed, counts=counts)
    return len(closed)


def _ensure_no_running_attempt(connection: sa.Connection, claimed_batch: Batch) -> None:
    query = sa.select(attempt.c.number, attempt.c.run_id).where(
        attempt.c.batch_id == claimed_batch.id, attempt.c.status == AttemptStatus.RUNNING
    )
    row = connection.execute(query).one_or_none()
    if row is not None:
        raise ConflictError(
            f"{claimed_batch.job}: attempt {row.number} of batch {claimed_batch.label} is running "
            f"(run {row.run_id}). Nothing was claimed. Wait for it to end, or cancel that run."
        )


def _status(claimed: Attempt) -> sa.Select[Any]:
    return sa.select(attempt.c.status).where(attempt.c.token == claimed.token)
