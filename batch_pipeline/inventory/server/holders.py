"""Who is in the way: the sessions that hold what a transaction of the inventory has waited for.

Asked after the wait. Nothing is waited for here, nothing is ended.
"""

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.inventory.locks import LockClass
from batch_pipeline.inventory.tables import SCHEMA

NOBODY = "somebody who has just gone"
_MOST = 3
_HOLDERS = sa.text("""
SELECT held.pid, holder.application_name,
       CAST(extract(epoch FROM clock_timestamp() - holder.xact_start) AS bigint) AS seconds
  FROM pg_catalog.pg_locks held
  LEFT JOIN pg_catalog.pg_stat_activity holder ON holder.pid = held.pid
 WHERE held.granted AND held.pid IS DISTINCT FROM pg_backend_pid()
   AND held.database =
       (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND CASE held.locktype
            WHEN 'advisory' THEN held.objsubid = 2
                 AND held.classid::bigint = ANY (CAST(:purposes AS bigint[]))
            WHEN 'relation' THEN :tables
                 AND (:readers OR held.mode <> 'AccessShareLock')
                 AND held.relation IN (
                     SELECT oid FROM pg_catalog.pg_class
                      WHERE relnamespace = to_regnamespace(:schema) AND relkind IN ('r', 'p'))
            ELSE false END
 GROUP BY held.pid, holder.application_name, holder.xact_start
 ORDER BY holder.xact_start NULLS LAST, held.pid
""")


def holders(engine: sa.Engine) -> str:
    """Name the sessions with open transactions that hold locks of the inventory, oldest first.

    Three at most, asked for on a connection of its own. That nobody holds any more what was waited
    for, or that the server does not say, is said too.
    """
    try:
        with engine.connect() as connection:
            found = named_holders(connection, LockClass, tables=True)
    except (exc.DBAPIError, exc.TimeoutError):
        return "somebody whom the server does not name"
    return ", ".join(found[:_MOST]) or NOBODY


def named_holders(
    connection: sa.Connection,
    purposes: Iterable[LockClass] = (),
    *,
    tables: bool = False,
    readers: bool = False,
) -> list[str]:
    """Name the sessions that hold locks of purposes, by the age of their transaction, oldest first.

    With `tables` also those that have locked a table of the inventory, and with `readers` even if
    they only read there.
    """
    values = {
        "purposes": [int(purpose) for purpose in purposes],
        "tables": tables,
        "readers": readers,
        "schema": SCHEMA,
    }
    return [_named(*row) for row in connection.execute(_HOLDERS, values)]


def _named(pid: int | None, application: str | None, seconds: int | None) -> str:
    if pid is None:
        return "a prepared transaction"
    since = "" if seconds is None else f", in a transaction for {seconds} s"
    return f"pid {pid} ({application or 'no application name'}{since})"
