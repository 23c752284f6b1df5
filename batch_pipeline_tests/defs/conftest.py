"""Fixtures for tests of Dagster definitions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.defs.defs_fixture import DefsHarness, open_defs_harness

_FOLDER = Path(__file__).parent
# Dagster reads deprecated pydantic attributes of resources, and warns about features that we use.
_IGNORED = ("pydantic.warnings.PydanticDeprecatedSince20", "dagster.BetaWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore Dagster's warnings in the tests of this folder."""
    for item in items:
        if _FOLDER in item.path.parents:
            for name in _IGNORED:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{name}"), append=False)


@pytest.fixture
def harness(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsHarness]:
    """The stream `orders` with twelve items of 10 bytes in four planned batches of three."""
    with open_defs_harness(database, database_url, tmp_path, monkeypatch) as opened:
        yield opened
