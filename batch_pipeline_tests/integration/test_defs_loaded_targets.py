"""Loads in Dagster into targets that fail or are taken: the others go on, and it is tried again."""

from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.integration.defs_scene import open_defs_scene
from batch_pipeline_tests.integration.load_scene import FIRST, LEASE
from batch_pipeline_tests.integration.seeds import query
from batch_pipeline_tests.integration.test_defs_loaded import (
    publish_next,
    run_asset,
    run_job,
    sent,
    target,
)
from batch_pipeline_tests.unit.target_scripts import EAGER, SILENT

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]


def ends(database: Database) -> list[tuple[Any, ...]]:
    """Count the loads of each target by what they came to."""
    counted = "SELECT target, status, count(*) FROM batch_pipeline.load GROUP BY 1, 2 ORDER BY 1, 2"
    return query(database, counted)


def test_load_into_a_server_that_is_gone_holds_up_no_other_target(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the step to be tried four times, and the other target to be sent the batch once."""
    monkeypatch.setattr("batch_pipeline.defs.assets.repeats._PAUSE_SECONDS", 0)
    monkeypatch.setenv("WAREHOUSE", "postgresql://someone@127.0.0.1:1/warehouse")
    targets = {
        "gone": {"postgres": {"conn": "$WAREHOUSE"}},
        "good": target(tmp_path / "good", EAGER),
    }
    with open_defs_scene(database, database_url, tmp_path, monkeypatch, targets=targets) as scene:
        publish_next(scene, tmp_path, 0)
        scene.instance.add_dynamic_partitions(scene.batches.set_name, [FIRST])
        ended = run_asset(scene, FIRST, FIRST)

    [failure] = [event for event in ended.all_events if event.event_type_value == "STEP_FAILURE"]
    assert "127.0.0.1/warehouse cannot be reached" in str(failure.step_failure_data.error)
    assert sent(tmp_path / "good") == [FIRST]
    assert ends(database) == [("gone", "failed", 4), ("good", "succeeded", 1)]


def test_load_into_a_target_that_somebody_else_loads_holds_up_no_other(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the step to wait for the one after it has loaded into the other."""
    monkeypatch.setattr("batch_pipeline.defs.assets.loaded._PAUSE_SECONDS", 0)
    monkeypatch.setattr("batch_pipeline.defs.assets.loaded._MOST_WAITS", 1)
    targets = {name: target(tmp_path / name, EAGER) for name in ("busy", "good")}
    with open_defs_scene(database, database_url, tmp_path, monkeypatch, targets=targets) as scene:
        publish_next(scene, tmp_path, 0)
        due = list(database.loads.due(scene.stream, "busy"))
        with database.loads.claim("orders", "busy", due, run_id="load-1", lease=LEASE):
            ended = run_job(scene)
        assert [one.event_type_value for one in ended.all_events].count("STEP_UP_FOR_RETRY") == 1
        assert ends(database) == [("busy", "running", 1), ("good", "succeeded", 1)]


def test_load_of_a_batch_that_failed_and_is_published_anew_is_launched_at_once(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the next generation to be tried although as many loads are due as before."""
    targets = {"silent": target(tmp_path / "silent", SILENT)}
    with open_defs_scene(database, database_url, tmp_path, monkeypatch, targets=targets) as scene:
        publish_next(scene, tmp_path, 0)
        cursor = scene.tick("orders_load").cursor
        assert not run_job(scene).success
        publish_next(scene, tmp_path, 0, generation=2)
        assert scene.tick("orders_load", cursor).run_requests
