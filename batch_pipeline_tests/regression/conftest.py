"""The restored home of release 0.1.0."""

from pathlib import Path

import pytest

from batch_pipeline_tests.regression.home_0_1_0 import Home, restore


@pytest.fixture
def old_home(
    tmp_path: Path, empty_database_url: str, warm_spark: str, monkeypatch: pytest.MonkeyPatch
) -> Home:
    """The home that release 0.1.0 left; its variables are set in this process."""
    home = restore(tmp_path / "shop", empty_database_url)
    for name, value in home.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BATCH_PIPELINE_SPARK_REMOTE", warm_spark)
    return home
