"""Who is in the way: the sessions that hold what a transaction of the inventory has waited for.

Asked after the wait, on a connection of its own. Nothing is waited for here, nothing is ended.
"""

import sqlalchemy as sa
from sqlalchemy import exc

from batch_pipeline.inventory.tables import SCHEMA

_MOST = 3
_PURPOSES = 0x6270  # what the first key of each of our two-key locks begins with
_HOLDERS = sa.text("""
SELECT held.pid, holder.application_name,
       CAST(extract(epoch FROM clock_timestamp() - holder.xact_start) AS bigint) AS seconds
  FROM pg_catalog.pg_locks held
  LEFT JOIN pg_catalog.pg_stat_activity holder ON holder.pid = held.pid
 WHERE held.granted AND held.pid IS DISTINCT FROM pg_backend_pid()
   AND held.database =
       (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND CASE held.locktype
            WHEN 'advisory' THEN held.objsubid = 2 AND held.classid::bigint >> 16 = :purposes
            WHEN 'relation' THEN held.mode <> 'AccessShareLock' AND held.relation IN (
                SELECT oid FROM pg_catalog.pg_class
                 WHERE relnamespace = to_regnamespace(:schema) AND relkind IN ('r', 'p'))
            ELSE false END
 GROUP BY held.pid, holder.application_name, holder.xact_start
 ORDER BY holder.xact_start NULLS LAST, held.pid
 LIMIT :most
""")


def holders(engine: sa.Engine) -> str:
    """Name the sessions with open transactions that hold locks of the inventory, oldest first.

    Three at most. That nobody holds any more what was waited for, or that the server does not say,
    is said too.
    """
    values = {"purposes": _PURPOSES, "schema": SCHEMA, "most": _MOST}
    try:
        with engine.connect() as connection:
            found = connection.execute(_HOLDERS, values).all()
    except (exc.DBAPIError, exc.TimeoutError):
        return "somebody whom the server does not name"
    return ", ".join(named(*row) for row in found) or "somebody who has just gone"


def named(pid: int | None, application: str | None, seconds: int | None) -> str:
    """Name a session for people, with the age of its transaction."""
    if pid is None:
        return "a prepared transaction"
    since = "" if seconds is None else f", in a transaction for {seconds} s"
    return f"pid {pid} ({application or 'no application name'}{since})"
