"""Fixtures of commands that run in this process, on a real server and real files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.defs.defs_fixture import DefsHarness, open_defs_harness

# Dagster reads deprecated attributes of pydantic, and warns of features that the product uses.
_IGNORED = ("pydantic.warnings.PydanticDeprecatedSince20", "dagster.BetaWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings of Dagster in tests of a project."""
    for item in items:
        if "project" in getattr(item, "fixturenames", ()):
            for name in _IGNORED:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{name}"), append=False)


@pytest.fixture
def project(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsHarness]:
    """Stream `orders` with twelve items in four planned batches, set by environment variables."""
    with open_defs_harness(database, database_url, tmp_path, monkeypatch) as opened:
        yield opened
