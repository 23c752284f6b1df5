"""The restored home of release 0.1.0, and a running Spark server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_pipeline.spark.spark_connect import SparkConnectServer
from batch_pipeline_tests.regression.home_0_1_0 import Home, restore


@pytest.fixture(scope="session")
def warm_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Spark Connect server that runs until the session ends."""
    with SparkConnectServer(tmp_path_factory.mktemp("spark")) as server:
        yield server.remote


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
