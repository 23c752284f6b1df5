"""Sandboxes, and what many tests share: an archive to read, a warm Spark."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_pipeline.spark.spark_connect import SparkConnectServer
from batch_pipeline_tests.acceptance.dagster_pages import CHROMIUM
from batch_pipeline_tests.acceptance.regions import ARCHIVE, unpack
from batch_pipeline_tests.acceptance.sandbox import Sandbox, new_sandbox

OF_THE_FEED = ("test_regions_feed.py", "test_regions_in_s3.py", "test_regions_interrupted.py")
# Not skip marks: where the archive is not beside the project there is nothing to test, and where
# there is no browser nothing to look with. In CI there is one.
collect_ignore = [] if ARCHIVE.exists() else list(OF_THE_FEED)
if not (CHROMIUM or os.environ.get("CI")):
    collect_ignore += ["test_browser.py"]


@pytest.fixture(scope="session", autouse=True)
def _interrupts_reach_commands() -> None:
    """Undo that a shell gives programs in the background an interrupt that does nothing."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def warm_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that saves commands the start of a JVM where that is not the point."""
    with SparkConnectServer(tmp_path_factory.mktemp("spark")) as server:
        yield server.remote


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """A sandbox of the test's own."""
    with new_sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def shared_sandbox() -> Iterator[Sandbox]:
    """A sandbox for all tests of a module."""
    with new_sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole feed of the regions in a folder."""
    folder = tmp_path_factory.mktemp("feed")
    unpack(folder)
    return folder
