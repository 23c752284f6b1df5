"""Fixtures: sandboxes, and the tests that need an archive or a browser."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_pipeline_tests.acceptance.dagster_pages import CHROMIUM
from batch_pipeline_tests.acceptance.sandbox import Sandbox, new_sandbox

ARCHIVE = Path(__file__).parents[3] / "shared/data/italy-regions-daily.tar.gz"
# No skip marks: without the archive or a browser there is nothing to run. CI has a browser.
collect_ignore = [] if ARCHIVE.exists() else ["test_regions_feed.py"]
if not (CHROMIUM or os.environ.get("CI")):
    collect_ignore += ["test_browser.py"]


@pytest.fixture(scope="session", autouse=True)
def _interrupts_reach_commands() -> None:
    """Restore the SIGINT handler; a shell disables it for background programs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
