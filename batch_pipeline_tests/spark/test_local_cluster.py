"""Executors as processes beside the driver, which Spark starts itself."""

from pathlib import Path

import pytest

from batch_pipeline.spark import task_planning
from batch_pipeline.spark.sessions import launch
from batch_pipeline.spark.sessions.session import SparkSettings, close_session, open_session
from batch_pipeline_tests.spark.cluster_files import TASK_ITEMS, encoded

pytestmark = pytest.mark.long


def test_local_cluster_gives_the_bytes_of_a_local_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark writes for them is gone with the session, and nothing of it is in the package."""
    monkeypatch.setenv("BATCH_PIPELINE_JAVA", "bundled")
    monkeypatch.setattr(task_planning, "MAX_TASK_ITEMS", TASK_ITEMS)
    digests = {}
    for master in ("local[2]", "local-cluster[2,1,1024]"):
        try:
            session = open_session(SparkSettings(home=tmp_path / "home", master=master))
            digests[master] = encoded(tmp_path / master, session)
        finally:
            close_session()

    assert digests["local-cluster[2,1,1024]"] == digests["local[2]"]
    assert list((tmp_path / "home" / "spark" / "scratch").iterdir()) == []
    assert not (launch.spark_home() / "work").exists()
