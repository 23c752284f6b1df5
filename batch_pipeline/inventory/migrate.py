"""Bringing the inventory schema to this release's revision, under a lock, by Alembic."""

from pathlib import Path

import sqlalchemy as sa

from batch_pipeline.domain.errors import SchemaRevisionError
from batch_pipeline.inventory.engine import location, transaction
from batch_pipeline.inventory.locks import LockClass, lock_in_transaction
from batch_pipeline.inventory.tables import SCHEMA

REVISION = "0002"
_MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(engine: sa.Engine) -> tuple[str, str]:
    """Upgrade the schema in one transaction and give the revisions before and after.

    Waits for another migration; a database that is up to date is left as it is.

    Raises:
        SchemaRevisionError: the schema belongs to a later release.
    """
    from alembic import command  # 0.2 s that only this command pays
    from alembic.config import Config

    with transaction(engine) as connection:
        lock_in_transaction(connection, LockClass.MIGRATE, SCHEMA)
        before = _revision(connection)
        if before != "none" and before > REVISION:
            raise SchemaRevisionError(location(engine), before, REVISION)
        if before != REVISION:
            config = Config()
            config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
            config.attributes["connection"] = connection
            connection.execute(sa.schema.CreateSchema(SCHEMA, if_not_exists=True))
            command.upgrade(config, REVISION)
        return before, REVISION


def check_revision(engine: sa.Engine) -> None:
    """Check that the schema is the one this release works with.

    Raises:
        SchemaRevisionError: it is not, or there is none.
    """
    with transaction(engine) as connection:
        found = _revision(connection)
    if found != REVISION:
        raise SchemaRevisionError(location(engine), found, REVISION)


def _revision(connection: sa.Connection) -> str:
    name = f"{SCHEMA}.alembic_version"
    exists = sa.select(sa.func.to_regclass(name).is_not(None))
    if not connection.execute(exists).scalar_one():
        return "none"
    table = sa.table("alembic_version", sa.column("version_num", sa.Text), schema=SCHEMA)
    return connection.execute(sa.select(table.c.version_num)).scalar_one_or_none() or "none"
