"""Spark sessions of two cores, and folders for encodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from batch_pipeline_tests.spark.encode_fixture import EncodeRun, session_of


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session in this process, whose tasks are retried."""
    with session_of("local", tmp_path_factory.mktemp("spark")) as opened:
        yield opened


# Without `--long`, regression/test_published_manifests.py covers Connect with a transform.
@pytest.fixture(scope="module", params=["local", pytest.param("connect", marks=pytest.mark.long)])
def each_session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A session in this process, and one on a Connect server."""
    with session_of(request.param, tmp_path_factory.mktemp("spark")) as opened:
        yield opened


@pytest.fixture
def run(tmp_path: Path, session: SparkSession) -> EncodeRun:
    """An empty landing folder and an empty storage."""
    return EncodeRun(tmp_path, session)
