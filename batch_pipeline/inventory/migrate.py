"""Create the inventory schema, or upgrade that of an earlier release, under a lock.

A new schema is created from the metadata of `tables.py` and `views.sql`. Alembic is only needed to
upgrade.
"""

from datetime import timedelta
from importlib import import_module
from pathlib import Path
from time import monotonic

import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import exc

from batch_pipeline.inventory.connection import (
    UNKNOWN_HOLDER,
    LockClass,
    list_lock_holders,
    location,
    lock_in_transaction,
    lock_timeout,
    named_statement,
    transaction,
)
from batch_pipeline.inventory.tables import SCHEMA, metadata
from batch_pipeline.model.errors import ConfigurationError, RetryableError

# A prepared statement locks its tables in another order than `lock_tables`. Give up before the
# server checks for deadlocks (after 1 s by default), which would abort the worker's transaction.
_TRY_SECONDS = 0.5
_LOCK_NOT_ACQUIRED = {"55P03", "40P01"}  # lock not available, deadlock detected

_TABLES = sa.text("""
SELECT relname FROM pg_catalog.pg_class
 WHERE relnamespace = to_regnamespace(:schema) AND relkind IN ('r', 'p')
""")
# LOCK TABLE of a view would also lock its tables, in another order. Replacing a view resets its
# options in any case.
_LOCK_VIEWS = "".join(
    f"ALTER VIEW IF EXISTS {SCHEMA}.{view} RESET (security_barrier); "
    for view in ("inventory", "published")
)


def lock_migration(connection: sa.Connection, patience: timedelta) -> None:
    """Lock out other migrations until the transaction ends.

    Raises:
        RetryableError: another migration did not end in time; the message names its session.
    """
    try:
        with connection.begin_nested():
            _wait_at_most(connection, patience.total_seconds())
            lock_in_transaction(connection, LockClass.MIGRATE, SCHEMA)
    except exc.OperationalError as error:
        _raise_unless_lock_timeout(error)
        raise _lock_timeout_error(
            connection, list_lock_holders(connection, [LockClass.MIGRATE])
        ) from error


def lock_tables(connection: sa.Connection, patience: timedelta) -> None:
    """Lock all tables and views of the inventory until the transaction ends.

    Sessions without an open transaction do not block this, even if an attempt is running.

    Raises:
        RetryableError: an open transaction did not end in time; the message names its session.
    """
    # Views first, in the order of readers, then referenced tables, in the order of workers.
    order = {table.name: position for position, table in enumerate(metadata.sorted_tables)}
    existing = connection.execute(_TABLES, {"schema": SCHEMA}).scalars()
    names = sorted(existing, key=lambda name: order.get(name, -1))
    if not names:
        return
    tables = sql.SQL(", ").join(sql.Identifier(SCHEMA, name) for name in names)
    lock = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(tables).as_string(None)
    give_up_at = monotonic() + patience.total_seconds()
    while True:
        left = give_up_at - monotonic()
        try:
            with connection.begin_nested():
                _wait_at_most(connection, min(left, _TRY_SECONDS))
                connection.execution_options(no_parameters=True).exec_driver_sql(_LOCK_VIEWS + lock)
        except exc.OperationalError as error:
            _raise_unless_lock_timeout(error)
            if monotonic() >= give_up_at:
                holders = list_lock_holders(connection, tables=True, readers=True)
                raise _lock_timeout_error(connection, holders) from error
        else:
            return


def _wait_at_most(connection: sa.Connection, seconds: float) -> None:
    milliseconds = f"{max(1, round(seconds * 1000))}ms"
    limit = sa.func.set_config("lock_timeout", milliseconds, sa.true())
    connection.execute(sa.select(limit))


def _raise_unless_lock_timeout(error: exc.OperationalError) -> None:
    if getattr(error.orig, "sqlstate", None) not in _LOCK_NOT_ACQUIRED:
        raise error


def _lock_timeout_error(connection: sa.Connection, holders: list[str]) -> RetryableError:
    reason = f"the migration is blocked by: {', '.join(holders) or UNKNOWN_HOLDER}"
    return lock_timeout(location(connection.engine), reason)


REVISION = "0009"
_OLDEST_REVISION = "0006"  # of release 0.1.0
_MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK_TIMEOUT = timedelta(seconds=5)


def migrate(engine: sa.Engine, *, patience: timedelta = _LOCK_TIMEOUT) -> tuple[str, str]:
    """Create or upgrade the schema in one transaction; return the revisions before and after.

    The revision before is "none" if there was no inventory. Waits for other migrations and open
    transactions. Running attempts continue. A schema at this revision is not changed, and
    downgrades are not supported.

    Raises:
        ConfigurationError: the schema's revision is of a later release, or older than 0.1.0.
        RetryableError: a session held a lock for too long; the message names it.
    """
    with transaction(engine) as connection:
        lock_migration(connection, patience)
        before = _revision(connection)
        if before != "none" and not _OLDEST_REVISION <= before <= REVISION:
            raise _revision_error(engine, before)
        if before != REVISION:
            _set_role_to_owner(connection)
            if before != "none":
                import_module("alembic.command")  # takes 0.2 s: not while the tables are locked
            lock_tables(connection, patience)
            if before == "none":
                _create_tables(connection)
            else:
                _upgrade_tables(connection)
            connection.execute(named_statement("views"))
            _set_role(connection, "none")
        return before, REVISION


def _create_tables(connection: sa.Connection) -> None:
    """Create the tables, and the schema unless an administrator has created it."""
    if _owner(connection) is None:
        connection.execute(sa.schema.CreateSchema(SCHEMA))
    metadata.create_all(connection, checkfirst=False)
    _VERSION_TABLE.create(connection, checkfirst=True)
    connection.execute(_VERSION_TABLE.insert().values(version_num=REVISION))


def _upgrade_tables(connection: sa.Connection) -> None:
    from alembic import command  # needed only here
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, REVISION)
    for table in metadata.sorted_tables:
        connection.execute(sa.schema.SetTableComment(table))


def check_revision(engine: sa.Engine) -> None:
    """Check that the schema has this release's revision.

    Raises:
        ConfigurationError: there is no schema, or it has another revision.
    """
    with transaction(engine) as connection:
        revision = _revision(connection)
    if revision != REVISION:
        raise _revision_error(engine, revision)


def can_migrate(engine: sa.Engine) -> bool:
    """Return whether `migrate` creates or upgrades the schema."""
    with transaction(engine) as connection:
        revision = _revision(connection)
    return revision == "none" or _OLDEST_REVISION <= revision < REVISION


def ensure_revision_unchanged(connection: sa.Connection) -> None:
    """Check that the inventory was not migrated since it was opened.

    Also keeps migrations out until the transaction ends: reading the version table locks it.

    Raises:
        ConfigurationError: the schema has another revision.
    """
    revision = connection.execute(_VERSION).scalar_one_or_none() or "none"
    if revision != REVISION:
        raise _revision_error(connection.engine, revision)


# As Alembic creates it.
_VERSION_TABLE = sa.Table(
    "alembic_version",
    sa.MetaData(schema=SCHEMA),
    sa.Column("version_num", sa.String(32)),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
_VERSION = sa.select(_VERSION_TABLE.c.version_num)


def _revision(connection: sa.Connection) -> str:
    name = f"{SCHEMA}.alembic_version"
    exists = sa.select(sa.func.to_regclass(name).is_not(None))
    if not connection.execute(exists).scalar_one():
        return "none"
    return connection.execute(_VERSION).scalar_one_or_none() or "none"


def _owner(connection: sa.Connection) -> str | None:
    query = sa.text(
        "SELECT pg_catalog.pg_get_userbyid(nspowner) FROM pg_catalog.pg_namespace "
        "WHERE nspname = :schema"
    )
    owner: str | None = connection.execute(query, {"schema": SCHEMA}).scalar_one_or_none()
    return owner


def _set_role_to_owner(connection: sa.Connection) -> None:
    """Set the schema owner's role if this login is a member, so the owner owns new tables."""
    owner = _owner(connection)
    if owner is not None:
        member = sa.select(sa.func.pg_has_role(sa.func.current_user(), owner, "MEMBER"))
        if connection.execute(member).scalar_one():
            _set_role(connection, owner)


def _set_role(connection: sa.Connection, role: str) -> None:
    connection.execute(sa.select(sa.func.set_config("role", role, sa.true())))


def _revision_error(engine: sa.Engine, found: str) -> ConfigurationError:
    schema = "no inventory schema"
    if found != "none":
        schema = f"the inventory schema at revision {found}"
    step = "Run `batch-pipeline migrate` (or install the release that the schema belongs to)."
    if found < _OLDEST_REVISION:
        step = "Install batch-pipeline 0.1.0 and run its `batch-pipeline migrate` first."
    elif found != "none" and found > REVISION:
        step = "Install the release that the schema belongs to, or a later one."
    return ConfigurationError(
        f"The database at {location(engine)} has {schema}; this release works with revision "
        f"{REVISION}. Nothing was changed. {step}"
    )
