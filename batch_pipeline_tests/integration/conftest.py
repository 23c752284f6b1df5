"""Databases of users, beside the inventory."""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.reflected_table import ReflectedMetaTable
from batch_pipeline_tests.integration.meta_tables import CREATE_FILES, FILES, execute, meta_engine

_MARIADB = shutil.which("mariadbd") and importlib.util.find_spec("pymysql")
collect_ignore = [] if _MARIADB else ["test_mariadb_meta_table.py"]


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


@pytest.fixture
def files(postgres: sa.Engine) -> ReflectedMetaTable:
    """An empty table `ops.files` of a Postgres database."""
    execute(postgres, CREATE_FILES)
    return ReflectedMetaTable.open(postgres, "ops.files", FILES)


@pytest.fixture
def sqlite_files(sqlite: sa.Engine) -> ReflectedMetaTable:
    """The empty table `files` of a SQLite database."""
    return ReflectedMetaTable.open(sqlite, "files", FILES)
