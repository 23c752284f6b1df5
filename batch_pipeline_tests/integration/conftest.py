"""Databases of users, beside the inventory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from batch_pipeline import client
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline_tests.integration.library_tables import CREATE_META_TABLE
from batch_pipeline_tests.integration.logins import Logins, copied, logins_to, make_logins, name_of
from batch_pipeline_tests.integration.mariadb_server import mariadb_server
from batch_pipeline_tests.integration.meta_tables import (
    CREATE_FILES,
    FILES,
    MARIADB,
    execute,
    meta_engine,
)

collect_ignore = [] if MARIADB else ["test_library_mariadb.py", "test_mariadb_ceiling.py"]


@pytest.fixture
def postgres(server_url: str) -> Iterator[sa.Engine]:
    """A Postgres database of a user, without an inventory, with an empty schema `ops`."""
    with meta_engine(server_url) as engine:
        execute(engine, "CREATE SCHEMA ops")
        yield engine
        execute(engine, "DROP SCHEMA ops CASCADE", "DROP TABLE IF EXISTS public.files, kinds")


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[sa.Engine]:
    """A SQLite database of a user with an empty table `files`."""
    with meta_engine(f"sqlite:///{tmp_path}/meta.db") as engine:
        execute(
            engine,
            "CREATE TABLE files (id INTEGER PRIMARY KEY AUTOINCREMENT, file_location TEXT, "
            "size_in_bytes BIGINT, imported TIMESTAMP DEFAULT CURRENT_TIMESTAMP)",
        )
        yield engine


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    """URL of a MariaDB server that ends with the session."""
    with mariadb_server() as url:
        yield url


@pytest.fixture
def mariadb(mariadb_url: str) -> Iterator[sa.Engine]:
    """A MariaDB database `meta` of a user with an empty table `files`."""
    with meta_engine(mariadb_url) as server:
        execute(server, "CREATE DATABASE meta")
        with meta_engine(mariadb_url.replace("/mysql?", "/meta?")) as engine:
            execute(
                engine,
                "CREATE TABLE files (id BIGINT AUTO_INCREMENT PRIMARY KEY, "
                "file_location VARCHAR(500), size_in_bytes BIGINT, "
                "imported TIMESTAMP(6) NULL DEFAULT CURRENT_TIMESTAMP(6)) ENGINE=InnoDB",
            )
            yield engine
        execute(server, "DROP DATABASE meta")


@pytest.fixture
def files(postgres: sa.Engine) -> ReflectedMetaTable:
    """An empty table `ops.files` of a Postgres database."""
    execute(postgres, CREATE_FILES)
    return ReflectedMetaTable.open(postgres, "ops.files", FILES)


@pytest.fixture
def sqlite_files(sqlite: sa.Engine) -> ReflectedMetaTable:
    """The empty table `files` of a SQLite database."""
    return ReflectedMetaTable.open(sqlite, "files", FILES)


@pytest.fixture
def mariadb_files(mariadb: sa.Engine) -> ReflectedMetaTable:
    """The empty table `files` of a MariaDB database."""
    return ReflectedMetaTable.open(mariadb, "files", FILES)


@pytest.fixture(scope="session")
def granted_template(server_url: str, template: str) -> Iterator[str]:
    """Name of a migrated database in which the group roles have their rights."""
    with copied(server_url, template) as url:
        make_logins(url)
        yield name_of(url)


@pytest.fixture
def granted_url(server_url: str, granted_template: str) -> Iterator[str]:
    """URL of a fresh inventory in which the group roles have their rights."""
    with copied(server_url, granted_template) as url:
        yield url


@pytest.fixture
def logins(granted_url: str) -> Iterator[Logins]:
    """Everybody who may log in to a fresh inventory."""
    with logins_to(granted_url) as opened:
        yield opened


@pytest.fixture
def configured(database_url: str, tmp_path: Path) -> Iterator[None]:
    """The library on a fresh inventory whose database has the meta tables too."""
    client.configure(settings={"inventory_conn": database_url, "home": tmp_path / "home"})
    yield
    client.close()


@pytest.fixture
def meta_table(configured: None, database: Database) -> Database:
    """An empty table `meta_table` in the inventory's own database."""
    execute(database.engine, CREATE_META_TABLE)
    return database
