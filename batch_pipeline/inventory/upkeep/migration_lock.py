"""The locks of a migration: had all at once or given back, and whoever is in the way is named.

Nothing is waited for while workers queue behind it for long, so an upgrade that cannot begin does
not stop anybody.
"""

from datetime import timedelta
from time import monotonic

import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import exc

from batch_pipeline.domain.errors import LockTimeoutError
from batch_pipeline.inventory.locks import LockClass, lock_in_transaction
from batch_pipeline.inventory.server.engine import location
from batch_pipeline.inventory.server.holders import NOBODY, named_holders
from batch_pipeline.inventory.tables import SCHEMA, metadata

# A wait that ends before the server looks for a deadlock a second time (after 1 s, by default, of
# the other side's waiting) can never cost the other side its transaction.
_TRY_SECONDS = 1.5
_NOT_HAD = {"55P03", "40P01"}  # lock not available, deadlock detected

_TABLES = sa.text("""
SELECT relname FROM pg_catalog.pg_class
 WHERE relnamespace = to_regnamespace(:schema) AND relkind IN ('r', 'p')
""")


def lock_migration(connection: sa.Connection, patience: timedelta) -> None:
    """Keep other migrations out until the transaction ends.

    Raises:
        LockTimeoutError: another one, which is named, did not end in time.
    """
    try:
        with connection.begin_nested():
            _wait_at_most(connection, patience.total_seconds())
            lock_in_transaction(connection, LockClass.MIGRATE, SCHEMA)
    except exc.OperationalError as error:
        _refuse_unless_not_had(error)
        raise _timeout(connection, named_holders(connection, [LockClass.MIGRATE])) from error


def lock_tables(connection: sa.Connection, patience: timedelta) -> None:
    """Keep everybody out of the inventory's tables until the transaction ends.

    Sessions without an open transaction are not in the way, also when they work on an attempt.

    Raises:
        LockTimeoutError: an open transaction, whose session is named, did not end in time.
    """
    names = sorted(connection.execute(_TABLES, {"schema": SCHEMA}).scalars(), key=_turn)
    if not names:
        return
    tables = sql.SQL(", ").join(sql.Identifier(SCHEMA, name) for name in names)
    statement = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(tables).as_string(None)
    give_up_at = monotonic() + patience.total_seconds()
    while True:
        left = give_up_at - monotonic()
        try:
            with connection.begin_nested():
                _wait_at_most(connection, min(left, _TRY_SECONDS))
                connection.execution_options(no_parameters=True).exec_driver_sql(statement)
        except exc.OperationalError as error:
            _refuse_unless_not_had(error)
            if monotonic() >= give_up_at:
                found = named_holders(connection, tables=True, readers=True)
                raise _timeout(connection, found) from error
        else:
            return


def _turn(name: str) -> int:
    """Put referenced tables first, as workers come by them: then both seldom block each other."""
    names = [table.name for table in metadata.sorted_tables]
    return names.index(name) if name in names else -1


def _wait_at_most(connection: sa.Connection, seconds: float) -> None:
    milliseconds = f"{max(1, round(seconds * 1000))}ms"
    limit = sa.func.set_config("lock_timeout", milliseconds, sa.true())
    connection.execute(sa.select(limit))


def _refuse_unless_not_had(error: exc.OperationalError) -> None:
    if getattr(error.orig, "sqlstate", None) not in _NOT_HAD:
        raise error


def _timeout(connection: sa.Connection, found: list[str]) -> LockTimeoutError:
    reason = f"in the way of the migration: {', '.join(found) or NOBODY}"
    return LockTimeoutError(location(connection.engine), reason)
