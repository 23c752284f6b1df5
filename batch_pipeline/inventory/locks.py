"""Advisory locks, one class per purpose, and the conditions for a gone owner of a lease.

Locks are released with the transaction, the liveness lock with the session.
"""

from enum import IntEnum

import sqlalchemy as sa


class LockClass(IntEnum):
    """The first key of two-key locks: `bp` in ASCII and a number."""

    MIGRATE = 0x62700001
    PLAN = 0x62700002
    REGISTER = 0x62700003
    SAME_DATABASE = 0x62700004
    LOAD = 0x62700005


def lock_in_transaction(connection: sa.Connection, purpose: LockClass, name: str) -> None:
    """Take the lock of a name until the transaction ends; wait at most `lock_timeout`."""
    key = sa.func.hashtext(sa.cast(name, sa.Text))
    lock = sa.func.pg_advisory_xact_lock(sa.cast(int(purpose), sa.Integer), key)
    connection.execute(sa.select(lock))


_PLANNING = sa.select(
    sa.func.pg_advisory_xact_lock(
        sa.literal(int(LockClass.PLAN), sa.Integer), sa.bindparam("job_id", type_=sa.Integer)
    )
)


def lock_planning(connection: sa.Connection, job_id: int) -> None:
    """Take the planning lock of a job until the transaction ends; wait at most `lock_timeout`."""
    connection.execute(_PLANNING, {"job_id": job_id})


# The owner of an attempt or load is gone if its lease has expired or its liveness lock is free. A
# server restart releases all locks, so after one only the lease counts until it is renewed.
_OWNER_IS_GONE = """(
    attempt.lease_until < clock_timestamp()
    OR attempt.renewed_at > pg_postmaster_start_time() AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_locks
         WHERE locktype = 'advisory'
           AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname =
           current_database()) AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) =
           attempt.liveness_key))
"""
OWNER_IS_GONE = sa.text(_OWNER_IS_GONE)
LOADER_IS_GONE = sa.text(_OWNER_IS_GONE.replace("attempt.", "load."))
LOADER_IS_THERE = sa.text("NOT " + _OWNER_IS_GONE.replace("attempt.", "load."))
