"""Renew the leases of this process's attempts and loads, on one connection and one thread."""

import logging
import secrets
import threading
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import psycopg
import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.inventory.connection import is_connection_dead
from batch_pipeline.inventory.tables import attempt, is_any_of, load
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.errors import ConflictError

_RENEWAL_SECONDS = 15.0
log = logging.getLogger(__name__)


class Heartbeat:
    """The liveness lock of this process, and the renewal of its leases.

    The lock is a session-level advisory lock: if the process dies, the server releases it at once,
    and others need not wait for the leases to expire. Leases are renewed every 15 s, or after a
    third of the shortest lease; a lost connection is replaced then.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.liveness_key = secrets.randbits(63)
        self._engine = engine
        self._mutex = threading.RLock()
        self._connection: sa.Connection | None = None
        self._leases: dict[UUID, timedelta] = {}
        self._to_expire: set[UUID] = set()
        self._to_release: deque[UUID] = deque()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closed = False

    def take_lock(self) -> None:
        """Take the liveness lock if it is not held. Required before an attempt becomes visible."""
        with self._mutex:
            if self._connection is not None and not self._is_broken(self._connection):
                return
            self._drop_connection()
            # Detached from the pool, so that closing it ends the session and releases the lock.
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()
            try:
                connection.execute(sa.select(sa.func.pg_advisory_lock(self.liveness_key)))
            except BaseException:
                connection.close()
                raise
            self._connection = connection

    @contextmanager
    def renew_if_committed(self, token: UUID, lease: timedelta) -> Iterator[None]:
        """Renew the lease that the block commits; expire it if the commit is unconfirmed."""
        try:
            yield
            self.renew(token, lease)
        except ConflictError:
            raise
        except BaseException:
            # The commit may have succeeded and only its reply been lost.
            self.expire_unconfirmed(token)
            raise

    def renew(self, token: UUID, lease: timedelta) -> None:
        """Start renewing the lease of an attempt or load."""
        with self._mutex:
            self._leases[token] = lease
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
                self._to_expire.add(token)
        self._renew_all()

    def expire_unconfirmed(self, token: UUID) -> None:
        """Expire the lease of an attempt whose commit is unconfirmed."""
        with self._mutex:
            self._leases.pop(token, None)
            self._to_expire.add(token)
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

    def close(self) -> None:
        """Stop renewing and release the lock."""
        self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._mutex:
            self._drop_connection()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            shortest = min(
                (lease.total_seconds() / 3 for lease in list(self._leases.values())), default=60
            )
            self._wake.wait(min(shortest, _RENEWAL_SECONDS))
            self._wake.clear()
            if not self._closed:
                self._renew_all()

    def _renew_all(self) -> None:
        with self._mutex:
            while self._to_release:
                token = self._to_release.popleft()
                self._leases.pop(token, None)
                self._to_expire.add(token)
            if not self._leases and not self._to_expire:
                return
            try:
                self.take_lock()
                self._expire_leases()
                self._renew_leases()
            except exc.SQLAlchemyError as error:
                log.warning("leases not renewed, retrying: %s", type(error).__name__)
                self._drop_connection()

    def _renew_leases(self) -> None:
        now = sa.func.clock_timestamp()
        for lease in set(self._leases.values()):
            tokens = [token for token, token_lease in self._leases.items() if token_lease == lease]
            fenced = set(tokens)
            for table in (attempt, load):  # most processes have only one of the two
                if fenced:
                    renewal = sa.update(table).where(_is_running(table, fenced))
                    renewal = renewal.values(renewed_at=now, lease_until=now + lease)
                    fenced -= set(self._execute(renewal.returning(table.c.token)).scalars())
            for token in fenced:
                del self._leases[token]  # publishing, or closing the load, will raise

    def _expire_leases(self) -> None:
        if self._to_expire:
            for table in (attempt, load):
                expiry = sa.update(table).where(_is_running(table, self._to_expire))
                ended_at = sa.func.clock_timestamp() - timedelta(seconds=1)
                self._execute(expiry.values(lease_until=ended_at))
            self._to_expire.clear()

    def _execute(self, statement: sa.Executable) -> sa.CursorResult[Any]:
        assert self._connection is not None  # noqa: S101 - every caller holds
        return self._connection.execute(statement)

    def _is_broken(self, connection: sa.Connection) -> bool:
        # A detached connection has no driver_connection in SQLAlchemy.
        raw = cast("psycopg.Connection | None", connection.connection.dbapi_connection)
        return raw is None or is_connection_dead(raw)

    def _drop_connection(self) -> None:
        if self._connection is not None:
            with suppress(exc.SQLAlchemyError):
                self._connection.close()
            self._connection = None


def _is_running(table: sa.Table, tokens: Collection[UUID]) -> sa.ColumnElement[bool]:
    is_running = table.c.status == AttemptStatus.RUNNING
    return sa.and_(is_any_of(table.c.token, tokens), is_running)
