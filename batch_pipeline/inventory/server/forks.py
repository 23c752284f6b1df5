"""Connections and forks: what a fork copies stays the parent's; the child opens its own."""

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import psycopg
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import ConnectionPoolEntry

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection


def leave_connections_to_parent(engine: sa.Engine) -> None:
    """Let forked children lose the connections that an engine on psycopg has open.

    Otherwise a child would talk into its parent's sessions, and the sessions (with the locks that
    tell who is alive) would outlive a parent that was killed.
    """
    connections: weakref.WeakSet[psycopg.Connection] = weakref.WeakSet()

    def note(connection: "DBAPIConnection", _entry: ConnectionPoolEntry) -> None:
        connections.add(cast("psycopg.Connection", connection))

    event.listen(engine, "connect", note)
    os.register_at_fork(after_in_child=_emptied(connections))


def _emptied(connections: "weakref.WeakSet[psycopg.Connection]") -> Callable[[], None]:
    def empty() -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for connection in list(connections):
            # Not closed: closing says farewell to the server, on behalf of the parent.
            with suppress(psycopg.Error, OSError):
                os.dup2(nothing, connection.fileno(), inheritable=False)
        os.close(nothing)

    return empty
