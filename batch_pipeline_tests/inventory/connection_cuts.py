"""Cutting connections at every statement: the server ends a session just before or after it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.concurrency import eventually

_END = sa.text("SELECT pg_terminate_backend(:pid)")  # its own way to wait takes 0.1 s at least
_LIVES = sa.text("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = :pid)")
_END_ALL = sa.text("""
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
 WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
   AND application_name = 'batch-pipeline'
""")


class Cutter:
    """Counts the points before and after all statements on Postgres, and cuts at one of them.

    Statements of the test's own engine are let through, as those of a step of a cut are.
    """

    def __init__(self, own: Database) -> None:
        self._own = own.engine
        self._left = 0
        self.points = 0

    def arm(self, point: int) -> None:
        """Cut at the n-th point from now on, counted from 1."""
        self._left, self.points = point, 0

    def disarm(self) -> bool:
        """Cut nothing any more; tell whether the point was reached."""
        has_cut, self._left = self._left <= 0, 0
        return has_cut

    def end_all(self) -> None:
        """End every session but the test's own."""
        with self._own.connect() as connection:
            connection.execute(_END_ALL)

    def reach(self, connection: sa.Connection, *_: Any) -> None:
        """Count one point."""
        if connection.dialect.name != "postgresql" or connection.engine.pool is self._own.pool:
            return
        self.points += 1
        self._left -= 1
        if self._left == 0:
            raw: Any = connection.connection.dbapi_connection
            which = {"pid": raw.info.backend_pid}
            with self._own.connect() as own:
                own.execution_options(isolation_level="AUTOCOMMIT")
                own.execute(_END, which)
                eventually(lambda: not own.execute(_LIVES, which).scalar_one())


@contextmanager
def cutting(own: Database) -> Iterator[Cutter]:
    """Watch all engines of the process for the length of a block."""
    cutter = Cutter(own)
    points = ("before_cursor_execute", "after_cursor_execute", "commit")
    for name in points:
        event.listen(sa.Engine, name, cutter.reach)
    yield cutter
    for name in points:
        event.remove(sa.Engine, name, cutter.reach)
