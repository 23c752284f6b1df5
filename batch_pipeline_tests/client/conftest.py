"""Meta tables of the library's tests, filled with files of 10 MiB."""

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.client.client_tables import fill_evenly


@pytest.fixture
def ten_files(meta_table: Database) -> Database:
    """Ten files of 10 MiB."""
    fill_evenly(meta_table.engine, 10)
    return meta_table


@pytest.fixture
def hundred_files(meta_table: Database) -> Database:
    """A hundred files of 10 MiB."""
    fill_evenly(meta_table.engine, 100)
    return meta_table
