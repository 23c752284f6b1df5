"""Fixtures of the Singer target's tests."""

from pathlib import Path

import pytest

from batch_pipeline_tests.singer.target.target_fixture import TargetHome


@pytest.fixture
def home(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> TargetHome:
    """A home configured by environment variables."""
    home = TargetHome(root=tmp_path, database_url=database_url)
    for name, value in home.environment.items():
        monkeypatch.setenv(name, value)
    return home
