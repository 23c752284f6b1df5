"""Bringing the inventory schema to this release's revision, under a lock, by Alembic."""

from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa

from batch_pipeline.domain.errors import SchemaRevisionError
from batch_pipeline.inventory.server.engine import location, transaction
from batch_pipeline.inventory.tables import SCHEMA
from batch_pipeline.inventory.upkeep.migration_lock import lock_migration, lock_tables
from batch_pipeline.inventory.work import batch_states

REVISION = "0008"
_MIGRATIONS = Path(__file__).parent / "migrations"
_PATIENCE = timedelta(seconds=5)


def migrate(engine: sa.Engine, *, patience: timedelta = _PATIENCE) -> tuple[str, str]:
    """Upgrade the schema in one transaction and give the revisions before and after.

    Waits for another migration and for open transactions; a database that is up to date is left as
    it is. Attempts that are running go on. There is no way back to an earlier revision.

    Raises:
        SchemaRevisionError: the schema belongs to a later release.
        LockTimeoutError: somebody, who is named, kept a lock for longer than we wait.
    """
    with transaction(engine) as connection:
        lock_migration(connection, patience)
        before = _revision(connection)
        if before != "none" and before > REVISION:
            raise SchemaRevisionError(location(engine), before, REVISION)
        if before != REVISION:
            _become_owner(connection)
            lock_tables(connection, patience)
            upgrade(connection, REVISION)
            batch_states.repair(connection)
            _become_oneself(connection)
        return before, REVISION


def upgrade(connection: sa.Connection, revision: str) -> None:
    """Run the migrations up to a revision in the transaction of the caller, who holds the locks."""
    from alembic import command  # 0.2 s that only this command pays
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    if _owner(connection) is None:
        connection.execute(sa.schema.CreateSchema(SCHEMA))
    command.upgrade(config, revision)


def check_revision(engine: sa.Engine) -> None:
    """Check that the schema is the one this release works with.

    Raises:
        SchemaRevisionError: it is not, or there is none.
    """
    with transaction(engine) as connection:
        found = _revision(connection)
    if found != REVISION:
        raise SchemaRevisionError(location(engine), found, REVISION)


def check_still(connection: sa.Connection) -> None:
    """Check that nobody has migrated the inventory since it was opened, nor will before the end.

    Raises:
        SchemaRevisionError: somebody has.
    """
    found = connection.execute(_VERSION).scalar_one_or_none() or "none"
    if found != REVISION:
        raise SchemaRevisionError(location(connection.engine), found, REVISION)


_VERSION = sa.select(sa.column("version_num", sa.Text)).select_from(
    sa.table("alembic_version", schema=SCHEMA)
)


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


def _become_owner(connection: sa.Connection) -> None:
    """Let new tables belong to whom the schema belongs to, whichever member of it we are."""
    owner = _owner(connection)
    if owner is not None:
        member = sa.select(sa.func.pg_has_role(sa.func.current_user(), owner, "MEMBER"))
        if connection.execute(member).scalar_one():
            _become(connection, owner)


def _become_oneself(connection: sa.Connection) -> None:
    _become(connection, "none")


def _become(connection: sa.Connection, role: str) -> None:
    connection.execute(sa.select(sa.func.set_config("role", role, sa.true())))
