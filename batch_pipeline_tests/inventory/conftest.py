"""Fixtures of the inventory's tests."""

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline_tests.inventory.meta_tables.user_tables import MARIADB


@pytest.fixture(params=["postgres", "sqlite", *(["mariadb"] if MARIADB else [])])
def any_engine(request: pytest.FixtureRequest) -> sa.Engine:
    """A user's database of each available kind."""
    engine: sa.Engine = request.getfixturevalue(request.param)
    return engine


@pytest.fixture(params=["files", "sqlite_files", *(["mariadb_files"] if MARIADB else [])])
def any_table(request: pytest.FixtureRequest) -> ReflectedMetaTable:
    """An empty meta table in each available database."""
    table: ReflectedMetaTable = request.getfixturevalue(request.param)
    return table
