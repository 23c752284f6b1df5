"""Fixtures: sandboxes, and the tests that need a browser."""

import os
from collections.abc import Iterator

import pytest

from batch_pipeline_tests.acceptance.dagster_pages import CHROMIUM
from batch_pipeline_tests.acceptance.sandbox import Sandbox, new_sandbox

# No skip marks: without a browser there is nothing to run. CI has one.
collect_ignore = [] if CHROMIUM or os.environ.get("CI") else ["test_browser.py"]


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
