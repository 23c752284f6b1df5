"""Looks at the server of an inventory: what may lose, hold up or slow down work. Reads only."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.finding import Finding, failure, fine, warning
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import SCHEMA

_SUBJECT = "server"
_FACTS = sa.text("""
SELECT clock_timestamp() AS now,
       pg_is_in_recovery() AS replica,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('autovacuum') AS autovacuum,
       current_setting('server_encoding') AS encoding,
       current_setting('max_connections')::int
           - current_setting('superuser_reserved_connections')::int AS most_connections,
       (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend')
           AS connections,
       (SELECT age(datfrozenxid) FROM pg_catalog.pg_database WHERE datname = current_database())
           AS xid_age
""")
_BROKEN_INDEXES = sa.text("""
SELECT c.relname
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = :schema AND NOT (i.indisvalid AND i.indisready)
 ORDER BY c.relname
""")
_IDLE = sa.text("""
SELECT pid, coalesce(nullif(application_name, ''), 'no name') AS name,
       extract(epoch FROM clock_timestamp() - xact_start)::bigint AS seconds
  FROM pg_catalog.pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND state LIKE 'idle in transaction%'
   AND xact_start < clock_timestamp() - CAST(:long AS interval)
 ORDER BY xact_start LIMIT 3
""")
_PREPARED = sa.text("""
SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::bigint AS seconds
  FROM pg_catalog.pg_prepared_xacts
 WHERE database = current_database() AND prepared < clock_timestamp() - CAST(:long AS interval)
 ORDER BY prepared LIMIT 3
""")
_COLLATION = sa.text("""
SELECT datcollversion AS made, pg_database_collation_actual_version(oid) AS now
  FROM pg_catalog.pg_database WHERE datname = current_database()
""")
_SINCE_COLLATIONS = (15,)  # of databases are told
_LONG = timedelta(minutes=5)
_MOST_CLOCK_SECONDS = 60
_MOST_AGE = 1_500_000_000  # of 2^31 transactions


def check_server(inventory: sa.Engine, *, long: timedelta = _LONG) -> Iterator[Finding]:
    """Look at settings, clock, indexes, connections and transactions that somebody left open.

    Open for so `long` are those that are told.

    Raises:
        DatabaseUnreachableError: the server went away.
    """
    before = datetime.now(UTC)
    with transaction(inventory) as connection:
        facts = connection.execute(_FACTS).one()
        broken = connection.execute(_BROKEN_INDEXES, {"schema": SCHEMA}).scalars().all()
        idle = connection.execute(_IDLE, {"long": long}).all()
        prepared = connection.execute(_PREPARED, {"long": long}).all()
        is_new = (inventory.dialect.server_version_info or (0,)) >= _SINCE_COLLATIONS
        collation = connection.execute(_COLLATION).one() if is_new else None
    found = [*_settings(facts), *_clock(facts.now, before), *_connections(facts)]
    for name in broken:
        text = (
            f"the index {name} is not valid, so that it is not used or not kept. "
            f"Run `REINDEX INDEX CONCURRENTLY {SCHEMA}.{name};` as the owner."
        )
        found.append(failure(_SUBJECT, text))
    for one in idle:
        text = (
            f"{one.name} (pid {one.pid}) has had a transaction open for {one.seconds:,} s and does "
            f"nothing in it: ceilings and vacuum wait. End that program, or run "
            f"`SELECT pg_terminate_backend({one.pid});`."
        )
        found.append(warning(_SUBJECT, text))
    for one in prepared:
        text = (
            f"the prepared transaction {one.gid!r} has been open for {one.seconds:,} s: ceilings "
            f"and vacuum wait. Run `COMMIT PREPARED` or `ROLLBACK PREPARED` for it."
        )
        found.append(warning(_SUBJECT, text))
    if collation is not None and None not in collation and collation.made != collation.now:
        text = (
            f"the system's collation is of version {collation.now}, indexes are of "
            f"{collation.made}: they may miss rows. Run `REINDEX DATABASE`, then "
            f"`ALTER DATABASE … REFRESH COLLATION VERSION`."
        )
        found.append(warning(_SUBJECT, text))
    yield from found
    if not found:
        yield fine(_SUBJECT, "settings, clock, indexes and connections are in order.")


def _settings(facts: sa.Row[Any]) -> Iterator[Finding]:
    if facts.replica:
        yield failure(_SUBJECT, "it is a replica, which takes no writes. Name its primary.")
    for name in ("fsync", "full_page_writes"):
        if getattr(facts, name) != "on":
            text = (
                f"{name} is off: what is committed may be gone, or broken, after a crash of the "
                f"machine. Turn it on."
            )
            yield warning(_SUBJECT, text)
    if facts.autovacuum != "on":
        yield warning(_SUBJECT, "autovacuum is off: tables grow and get slow. Turn it on.")
    if facts.encoding != "UTF8":
        text = f"its encoding is {facts.encoding}: names of files may not fit. Take one with UTF8."
        yield warning(_SUBJECT, text)
    if facts.xid_age > _MOST_AGE:
        text = (
            f"{facts.xid_age:,} transactions are not frozen; at 2,147,483,648 it stops taking "
            f"writes. Run `VACUUM FREEZE` and see what keeps autovacuum from it."
        )
        yield warning(_SUBJECT, text)


def _clock(told: datetime, before: datetime) -> Iterator[Finding]:
    apart = abs((told - before).total_seconds())
    if apart > _MOST_CLOCK_SECONDS:
        text = (
            f"its clock and that of this machine are {apart:,.0f} s apart. Leases do not mind, "
            f"they go by the server's alone; ages of files do. Set both by NTP."
        )
        yield warning("clock", text)


def _connections(facts: sa.Row[Any]) -> Iterator[Finding]:
    if facts.connections * 5 > facts.most_connections * 4:
        text = (
            f"{facts.connections} of {facts.most_connections} connections are in use. Raise "
            f"max_connections, or run less at once."
        )
        yield warning(_SUBJECT, text)
