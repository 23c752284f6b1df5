"""Fixtures: sandboxes, and the tests that need a browser."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_pipeline_tests.acceptance.dagster_pages import CHROMIUM
from batch_pipeline_tests.acceptance.sandbox import Sandbox, new_sandbox

# No skip marks: without a browser there is nothing to run. CI has one.
collect_ignore = [] if CHROMIUM or os.environ.get("CI") else ["test_browser.py"]
WARNINGS_OF_DAGSTER = ("pydantic.warnings.PydanticDeprecatedSince20", "dagster.BetaWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore Dagster's warnings in tests of this folder, many of which load definitions."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            for name in WARNINGS_OF_DAGSTER:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{name}"), append=False)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """A sandbox for one test."""
    with new_sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def shared_sandbox() -> Iterator[Sandbox]:
    """A sandbox for all tests of a module."""
    with new_sandbox() as sandbox:
        yield sandbox
