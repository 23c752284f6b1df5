"""Spark sessions of two cores, and folders for encodes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from batch_pipeline.spark import spark_job, task_planning
from batch_pipeline_tests.spark.encode_fixture import (
    LARGE_TASK_RECORDS,
    LARGE_TASKS,
    MIB,
    EncodeRun,
    session_of,
    set_range_bytes,
)


@pytest.fixture(scope="module", params=["local"])
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A session in this process, whose tasks are retried; see also `each_session`."""
    with session_of(request.param, tmp_path_factory.mktemp("spark")) as opened:
        yield opened


@pytest.fixture
def run(tmp_path: Path, session: SparkSession) -> EncodeRun:
    """An empty landing folder and an empty storage."""
    return EncodeRun(tmp_path, session)


@pytest.fixture
def large_run(run: EncodeRun, monkeypatch: pytest.MonkeyPatch) -> EncodeRun:
    """Files for twelve tasks of some duration, and frequent cancellation checks."""
    monkeypatch.setattr(task_planning, "MAX_TASK_ITEMS", 1)
    set_range_bytes(monkeypatch, 64 * MIB)  # no file is split
    monkeypatch.setattr(spark_job, "CANCEL_POLL_SECONDS", 0.01)
    columns = {f"c{number}": number for number in range(100)}
    lines = [json.dumps({"id": number} | columns) for number in range(LARGE_TASK_RECORDS)]
    for _ in range(LARGE_TASKS):
        run.land("\n".join(lines).encode())
    return run
