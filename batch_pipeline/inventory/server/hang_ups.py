"""Noticing that a server has hung up on a connection, without asking it."""

import select
from typing import cast

import psycopg
import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection


def is_hung_up(raw: psycopg.Connection) -> bool:
    """Tell whether an idle connection of psycopg is of no more use.

    An idle server says nothing, so the socket is readable only after its last word.
    """
    if raw.closed:
        return True
    return bool(select.select([raw.fileno()], [], [], 0)[0])


def replace_dead_connections(engine: sa.Engine) -> None:
    """Let the pool of an engine on psycopg replace connections that were cut while idle.

    Does what `pool_pre_ping` does and saves its round trip.
    """
    event.listen(engine, "checkout", _check)


def _check(
    connection: DBAPIConnection, _entry: ConnectionPoolEntry, _proxy: PoolProxiedConnection
) -> None:
    if is_hung_up(cast("psycopg.Connection", connection)):
        raise exc.DisconnectionError("the server has hung up")
