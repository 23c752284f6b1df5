"""Collects the tests of the benchmarks only with `--long`, because they take minutes."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the test modules of this folder unless the long form is requested."""
    is_test = collection_path.name.startswith("test_")
    return True if is_test and not config.getoption("--long") else None
