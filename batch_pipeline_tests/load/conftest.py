"""Fixtures of the tests of loads."""

from pathlib import Path

import pytest

from batch_pipeline_tests.load.warehouse import APPEND, Warehouse


@pytest.fixture
def warehouse(empty_database_url: str, tmp_path: Path) -> Warehouse:
    """An empty warehouse with a target in append mode."""
    return Warehouse(url=empty_database_url, folder=tmp_path, target=APPEND)
