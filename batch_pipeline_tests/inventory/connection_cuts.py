"""Cutting connections: the server ends a session just before or after a statement."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.concurrency import eventually

# Its timeout parameter would wait for at least 0.1 s.
_TERMINATE = sa.text("SELECT pg_terminate_backend(:pid)")
_IS_ALIVE = sa.text("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = :pid)")
_TERMINATE_ALL = sa.text("""
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
 WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
   AND application_name = 'batch-pipeline'
""")


class ConnectionCutter:
    """Counts the points before and after all statements on Postgres, and cuts at one of them.

    Statements of the test's own engine are not counted.
    """

    def __init__(self, own: Database) -> None:
        self._own = own.engine
        self._remaining = 0
        self.points = 0

    def arm(self, point: int) -> None:
        """Cut at the n-th point from now on, counted from 1."""
        self._remaining, self.points = point, 0

    def disarm(self) -> bool:
        """Stop cutting; return whether the point was reached."""
        was_reached, self._remaining = self._remaining <= 0, 0
        return was_reached

    def end_all(self) -> None:
        """End every session except the test's own."""
        with self._own.connect() as connection:
            connection.execute(_TERMINATE_ALL)

    def reach(self, connection: sa.Connection, *_: Any) -> None:
        """Count a point and cut the connection if it is the chosen one."""
        if connection.dialect.name != "postgresql" or connection.engine.pool is self._own.pool:
            return
        self.points += 1
        self._remaining -= 1
        if self._remaining == 0:
            raw: Any = connection.connection.dbapi_connection
            which = {"pid": raw.info.backend_pid}
            with self._own.connect() as own:
                own.execution_options(isolation_level="AUTOCOMMIT")
                own.execute(_TERMINATE, which)
                eventually(lambda: not own.execute(_IS_ALIVE, which).scalar_one())


@contextmanager
def cutting_connections(database: Database) -> Iterator[ConnectionCutter]:
    """Watch all engines of the process during the block."""
    cutter = ConnectionCutter(database)
    points = ("before_cursor_execute", "after_cursor_execute", "commit")
    for name in points:
        event.listen(sa.Engine, name, cutter.reach)
    yield cutter
    for name in points:
        event.remove(sa.Engine, name, cutter.reach)
