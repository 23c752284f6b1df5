"""Keeps the leases of this process's attempts and loads alive: one connection, one thread."""

import logging
import secrets
import threading
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import cast
from uuid import UUID

import psycopg
import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.domain.batch import AttemptStatus
from batch_pipeline.domain.errors import ConflictError
from batch_pipeline.inventory.server.hang_ups import is_hung_up
from batch_pipeline.inventory.tables import attempt, load

_RENEWAL_SECONDS = 15.0
log = logging.getLogger(__name__)


class Heartbeat:
    """Holds a liveness lock for the process and renews the leases of its attempts.

    The lock is a session lock of one connection: when the process dies, the server drops it at once
    and others need not wait for the leases. A lost connection is replaced at the next renewal,
    every 15 s or third of the shortest lease.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.liveness_key = secrets.randbits(63)
        self._engine = engine
        self._mutex = threading.RLock()
        self._connection: sa.Connection | None = None
        self._leases: dict[UUID, timedelta] = {}
        self._left: set[UUID] = set()
        self._abandoned: deque[UUID] = deque()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closed = False

    def hold(self) -> None:
        """Take the liveness lock unless it is held; must happen before an attempt is visible."""
        with self._mutex:
            if self._connection is not None and not self._is_broken(self._connection):
                return
            self._drop_connection()
            # Detached from the pool, so that closing it really ends the session and its lock.
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()
            try:
                connection.execute(sa.select(sa.func.pg_advisory_lock(self.liveness_key)))
            except BaseException:
                connection.close()
                raise
            self._connection = connection

    @contextmanager
    def claiming(self, token: UUID, lease: timedelta) -> Iterator[None]:
        """Keep the lease of what the block writes and commits; disown it where that is unknown."""
        try:
            yield
            self.keep(token, lease)
        except ConflictError:
            raise
        except BaseException:
            # The commit may have happened and only its reply been lost: nobody works on it then.
            self.disown(token)
            raise

    def keep(self, token: UUID, lease: timedelta) -> None:
        """Renew the lease of an attempt from now on."""
        with self._mutex:
            self._leases[token] = lease
            self._start()
        if lease.total_seconds() / 3 < _RENEWAL_SECONDS:
            self._wake.set()

    def end(self, token: UUID) -> None:
        """Stop renewing the lease of an attempt that is closed."""
        with self._mutex:
            self._leases.pop(token, None)

    def leave(self, token: UUID) -> None:
        """Let the lease of an attempt run out now, in case it was never closed."""
        with self._mutex:
            if self._leases.pop(token, None) is not None:
                self._left.add(token)
        self._beat()

    def disown(self, token: UUID) -> None:
        """Let the lease of an attempt run out now, of which nobody knows whether it was written."""
        with self._mutex:
            self._leases.pop(token, None)
            self._left.add(token)
            self._start()
        self._beat()

    def abandon(self, token: UUID) -> None:
        """Let the lease of an attempt run out at the next renewal.

        Takes no lock and does not wait, so that the end of an object's life may call it.
        """
        self._abandoned.append(token)

    def keeps(self, token: UUID) -> bool:
        """Tell whether the attempt is still this process's, as far as is known."""
        return token in self._leases

    def close(self) -> None:
        """Stop renewing and drop the lock."""
        self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._mutex:
            self._drop_connection()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew_until_closed, daemon=True)
            self._thread.start()

    def _renew_until_closed(self) -> None:
        while not self._closed:
            shortest = min(
                (one.total_seconds() / 3 for one in list(self._leases.values())), default=60
            )
            self._wake.wait(min(shortest, _RENEWAL_SECONDS))
            self._wake.clear()
            if not self._closed:
                self._beat()

    def _beat(self) -> None:
        with self._mutex:
            while self._abandoned:
                token = self._abandoned.popleft()
                self._leases.pop(token, None)
                self._left.add(token)
            if not self._leases and not self._left:
                return
            try:
                self.hold()
                self._expire_left()
                self._renew()
            except exc.SQLAlchemyError as error:
                log.warning("leases not renewed, trying again: %s", type(error).__name__)
                self._drop_connection()

    def _renew(self) -> None:
        now = sa.func.clock_timestamp()
        for lease in set(self._leases.values()):
            tokens = [token for token, its in self._leases.items() if its == lease]
            fenced = set(tokens)
            for table in (attempt, load):  # most processes have attempts or loads, not both
                if fenced:
                    renewal = (
                        sa.update(table)
                        .where(_are(table, fenced), table.c.status == AttemptStatus.RUNNING)
                        .values(renewed_at=now, lease_until=now + lease)
                        .returning(table.c.token)
                    )
                    fenced -= set(self._execute(renewal).scalars())
            for token in fenced:
                del self._leases[token]  # publish, or the end of the load, will find out

    def _expire_left(self) -> None:
        if self._left:
            for table in (attempt, load):
                expiry = (
                    sa.update(table)
                    .where(_are(table, self._left), table.c.status == AttemptStatus.RUNNING)
                    .values(lease_until=sa.func.clock_timestamp() - timedelta(seconds=1))
                )
                self._execute(expiry)
            self._left.clear()

    def _execute(self, statement: sa.Executable) -> sa.CursorResult[tuple[UUID]]:
        assert self._connection is not None  # noqa: S101 - every caller holds
        return self._connection.execute(statement)

    def _is_broken(self, connection: sa.Connection) -> bool:
        # Of a detached connection, SQLAlchemy knows no driver_connection.
        raw = cast("psycopg.Connection | None", connection.connection.dbapi_connection)
        return raw is None or is_hung_up(raw)

    def _drop_connection(self) -> None:
        if self._connection is not None:
            with suppress(exc.SQLAlchemyError):
                self._connection.close()
            self._connection = None


def _are(table: sa.Table, tokens: Collection[UUID]) -> sa.ColumnElement[bool]:
    return table.c.token == sa.any_(sa.cast(list(tokens), sa.ARRAY(table.c.token.type)))
