"""Migrations on Postgres: from an empty and from a filled database, alone and beside others."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory

from batch_pipeline.inventory import migrate as migration
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.migrate import REVISION, check_revision
from batch_pipeline.inventory.tables import SCHEMA, metadata
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.seeds import execute, planned, publish, query

CATALOGUE = {
    "columns": """
        SELECT table_name, column_name, data_type, is_nullable, column_default,
               is_identity, identity_generation
          FROM information_schema.columns JOIN information_schema.tables
               USING (table_catalog, table_schema, table_name)
         WHERE table_schema = 'batch_pipeline' AND table_type = 'BASE TABLE'
         ORDER BY table_name, ordinal_position""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
          FROM pg_constraint WHERE connamespace = 'batch_pipeline'::regnamespace ORDER BY 1, 2""",
    "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'batch_pipeline' ORDER BY 1",
    "comments": """
        SELECT relname, obj_description(oid, 'pg_class')
          FROM pg_class WHERE relnamespace = 'batch_pipeline'::regnamespace AND relkind = 'r'
         ORDER BY relname""",
}


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Database]:
    """An open database without an inventory."""
    opened = open_database(empty_database_url, migrated=None)
    yield opened
    opened.close()


def _catalogue(database: Database) -> dict[str, list[tuple[object, ...]]]:
    """Describe all tables as the server sees them, Alembic's own left out."""
    return {
        name: [row for row in query(database, text) if "alembic_version" not in str(row)]
        for name, text in CATALOGUE.items()
    }


def test_migrations_make_what_the_tables_say(database: Database, empty: Database) -> None:
    """Expect columns, defaults, constraints, indexes and comments to be the same both ways."""
    with empty.engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema(SCHEMA))
        metadata.create_all(connection)
    declared, migrated = _catalogue(empty), _catalogue(database)
    assert len(migrated["constraints"]) > 20
    for name in CATALOGUE:
        assert migrated[name] == declared[name]


def test_migrate_from_empty_tells_what_it_did(empty: Database) -> None:
    """Expect the first migration to come from nothing and the second one from where it is."""
    assert empty.migrate() == ("none", REVISION)
    assert empty.migrate() == (REVISION, REVISION)
    assert empty.batches.statuses("orders") == []


def test_migrate_filled_database_keeps_its_rows(database: Database) -> None:
    """Expect published batches to be there after another migration."""
    manifest = publish(database, planned(database)[0])
    assert database.migrate() == (REVISION, REVISION)
    assert database.manifests.of_batch(manifest.batch) == manifest


def test_migrate_by_four_at_once_ends_well(empty_database_url: str) -> None:
    """Expect one to make the schema and the others to find it."""

    def run(opened: Database) -> tuple[str, str]:
        return opened.migrate()

    databases = [open_database(empty_database_url, migrated=None) for _ in range(4)]
    results = together(*(partial(run, one) for one in databases))
    for one in databases:
        one.close()
    assert sorted(map(str, results)) == sorted(
        [str((REVISION, REVISION))] * 3 + [str(("none", REVISION))]
    )


def test_open_database_without_inventory_is_refused_unless_migrated(
    empty_database_url: str,
) -> None:
    """Expect a database without a schema to be named as such, and to be filled on demand."""
    with pytest.raises(ConfigurationError, match="has no inventory schema"):
        open_database(empty_database_url, migrated=False)
    open_database(empty_database_url, migrated=True).close()
    open_database(empty_database_url, migrated=False).close()


def test_database_of_a_later_release_is_refused_and_left_alone(
    database: Database, database_url: str
) -> None:
    """Expect neither checking nor migrating to touch a schema from the future."""
    execute(database, "UPDATE batch_pipeline.alembic_version SET version_num = '9999'")
    before = _catalogue(database)
    for migrated in (True, False):
        with pytest.raises(ConfigurationError, match="this release works with revision") as caught:
            open_database(database_url, migrated=migrated)
        assert f"at revision 9999; this release works with revision {REVISION}" in str(caught.value)
    assert _catalogue(database) == before
    assert query(database, "SELECT version_num FROM batch_pipeline.alembic_version") == [("9999",)]


def test_check_revision_of_an_interrupted_schema_finds_none(empty: Database) -> None:
    """Expect an empty version table, which only a foreign hand leaves, to count as no schema."""
    execute(empty, "CREATE SCHEMA batch_pipeline")
    execute(empty, "CREATE TABLE batch_pipeline.alembic_version (version_num text)")
    with pytest.raises(ConfigurationError, match="this release works with revision") as caught:
        check_revision(empty.engine)
    assert "has no inventory schema;" in str(caught.value)


def test_revision_of_the_release_is_the_newest_migration() -> None:
    """Expect the constant that costs no import of Alembic to agree with Alembic."""
    config = Config()
    folder = Path(migration.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    assert ScriptDirectory.from_config(config).get_heads() == [REVISION]
