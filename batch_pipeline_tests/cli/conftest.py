"""Fixtures of commands that run in this process, on a real server and real files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.defs.defs_fixture import DefsHarness, open_defs_harness


@pytest.fixture
def project(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsHarness]:
    """Stream `orders` with twelve items in four planned batches, set by environment variables."""
    with open_defs_harness(database, database_url, tmp_path, monkeypatch) as opened:
        yield opened
