"""Fixtures for tests of Dagster definitions."""

import pytest

from batch_pipeline_tests.defs.defs_fixture import DefsHarness


@pytest.fixture
def harness(project: DefsHarness) -> DefsHarness:
    """The stream `orders` with twelve items of 10 bytes in four planned batches of three."""
    return project
