"""The exact ceiling of a Postgres table: wait for those who held it locked, not for a time.

An insert locks its table before it takes an id from the sequence, and lets go after its rows are
visible. So once everybody has gone who held the lock after `max(id)` was read, no row at or below
that id can still appear. Reads only; a role with SELECT may do it.
"""

from dataclasses import dataclass, replace

import sqlalchemy as sa

from batch_pipeline.inventory.meta.ceilings.ceiling import (
    Candidate,
    Candidates,
    CandidateStore,
    CeilingReading,
    Holder,
    Strategy,
    recalled,
)
from batch_pipeline.inventory.meta.meta_engine import reading
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable

# Transactions that a crash or a restart left prepared lose the identity that they were seen with.
_RECOVERED = "-1/"

_EPOCH = sa.text("""
SELECT pg_catalog.pg_postmaster_start_time()::text
           || ' ' || d.oid || ' ' || c.oid || ' ' || c.relfilenode,
       c.oid::bigint
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_database d ON d.datname = current_database()
 WHERE c.relname = :table AND n.nspname = :schema
""")

# Inserts into a partition lock neither its parent nor its siblings.
_HOLDERS = sa.text("""
WITH RECURSIVE family AS (
    SELECT CAST(:relation AS oid) AS oid
    UNION
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN family f ON i.inhparent = f.oid
)
SELECT DISTINCT l.virtualtransaction
  FROM pg_catalog.pg_locks l
 WHERE l.locktype = 'relation'
   AND l.granted
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND l.relation IN (SELECT oid FROM family)
   AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                  'AccessExclusiveLock')
""")

_NAMES = sa.text("""
SELECT DISTINCT l.virtualtransaction, l.pid, a.application_name, p.gid,
       CAST(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))
            AS double precision) AS age_seconds
  FROM pg_catalog.pg_locks l
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN pg_catalog.pg_prepared_xacts p ON l.pid IS NULL AND p.transaction = l.transactionid
 WHERE l.virtualtransaction = ANY (:holders)
   AND (l.locktype = 'transactionid' AND l.pid IS NULL
        OR l.locktype = 'virtualxid' AND l.pid IS NOT NULL)
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocksCeiling:
    """The ceiling of a Postgres table whose ids come from a sequence with CACHE 1."""

    table: ReflectedMetaTable
    store: CandidateStore

    def read(self) -> CeilingReading:
        """Add the highest id as a candidate and release those whose lock holders are gone."""
        name = self.table.canonical_name
        # Each statement must have a snapshot of its own: first the highest id, then the locks.
        with reading(self.table.engine, "AUTOCOMMIT") as connection:
            reflected = self.table.table
            names = {"table": reflected.name, "schema": reflected.schema}
            epoch, relation = connection.execute(_EPOCH, names).one()
            # Before looking: what somebody saves meanwhile may lie above what is seen here.
            before = recalled(self.store, name, Strategy.LOCKS, epoch)
            highest = connection.execute(sa.select(sa.func.max(self.table.uid))).scalar_one()
            found = connection.execute(_HOLDERS, {"relation": relation})
            holders = frozenset(found.scalars())
            state = advanced(before, highest, holders)
            held_by = _held_by(connection, state, holders)
        self.store.save(name, state)
        return CeilingReading(value=state.released, strategy=Strategy.LOCKS, held_by=held_by)


def advanced(state: Candidates, highest: int | None, holders: frozenset[str]) -> Candidates:
    """Give the state after a look that found this highest id and then these lock holders."""
    state = state.limited_to(highest)
    if highest is not None:
        state = state.with_candidate(Candidate(highest, holders))
    # Who is gone never comes back: what is left of a candidate's holders only shrinks.
    shrunk = tuple(replace(one, holders=one.holders & holders) for one in state.waiting)
    state = replace(state, waiting=shrunk)
    if not any(holder.startswith(_RECOVERED) for holder in holders):
        free = [one.id for one in state.waiting if not one.holders]
        state = state.released_up_to(free[-1]) if free else state
    return state.pruned()


def _held_by(
    connection: sa.Connection, state: Candidates, holders: frozenset[str]
) -> tuple[Holder, ...]:
    if not state.waiting:
        return ()
    recovered = {holder for holder in holders if holder.startswith(_RECOVERED)}
    names = {"holders": sorted(state.waiting[0].holders | recovered)}
    found = [
        Holder(
            pid=row.pid,
            application=(row.application_name or "")
            if row.pid is not None
            else f"prepared transaction {row.gid}",
            age_seconds=row.age_seconds,
        )
        for row in connection.execute(_NAMES, names)
    ]
    return tuple(sorted(found, key=lambda one: -(one.age_seconds or 0.0)))
