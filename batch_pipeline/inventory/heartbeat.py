"""Keeps an attempt's lease alive from a connection and a thread of its own."""

import logging
import threading
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.domain.batch import AttemptStatus
from batch_pipeline.inventory.locks import liveness_key
from batch_pipeline.inventory.tables import attempt

_RENEWAL_SECONDS = 15
log = logging.getLogger(__name__)


class Heartbeat:
    """Holds the liveness lock of one attempt and renews its lease every 15 s, or third of it.

    The lock is a session lock of this connection: when the process dies, the server drops it at
    once and others need not wait for the lease. A lost connection is replaced at the next renewal.
    """

    def __init__(self, engine: sa.Engine, token: UUID, lease: timedelta) -> None:
        self._engine = engine
        self._token = token
        self._lease = lease
        self._connection: sa.Connection | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_ended, daemon=True)

    def hold(self) -> None:
        """Take the liveness lock; must happen before the attempt's row is visible."""
        # Detached from the pool, so that closing it really ends the session and drops the lock.
        self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection.detach()
        self._connection.execute(sa.select(sa.func.pg_advisory_lock(liveness_key(self._token))))

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def end(self) -> None:
        """Stop renewing and drop the lock."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(exc.SQLAlchemyError):
                self._connection.close()
            self._connection = None

    def _renew_until_ended(self) -> None:
        # Often enough that a lock lost with its connection is soon held again.
        while not self._ended.wait(min(self._lease.total_seconds() / 3, _RENEWAL_SECONDS)):
            try:
                if self._connection is None:
                    self.hold()
                if not self._renew():
                    return  # fenced: publish will find out
            except exc.SQLAlchemyError as error:
                log.warning("lease not renewed, trying again: %s", type(error).__name__)
                self._close()

    def _renew(self) -> bool:
        if self._connection is None:
            return True
        now = sa.func.clock_timestamp()
        renewal = (
            sa.update(attempt)
            .where(attempt.c.token == self._token, attempt.c.status == AttemptStatus.RUNNING)
            .values(renewed_at=now, lease_until=now + self._lease)
        )
        return self._connection.execute(renewal).rowcount == 1
