"""Loads in Dagster into targets that fail or are taken, and loads that nobody has told of."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.defs.metadata import generation_of
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.defs.defs_fixture import open_defs_scene
from batch_pipeline_tests.defs.test_loaded import publish_next, run_asset, run_job, sent, target
from batch_pipeline_tests.load.target_scripts import EAGER, SILENT
from batch_pipeline_tests.pipeline.load_fixture import FIRST, LEASE
from batch_pipeline_tests.seeds import query


def ends(database: Database) -> list[tuple[Any, ...]]:
    """Count the loads of each target by what they came to."""
    counted = "SELECT target, status, count(*) FROM batch_pipeline.load GROUP BY 1, 2 ORDER BY 1, 2"
    return query(database, counted)


def test_load_into_a_server_that_is_gone_holds_up_no_other_target(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the step to be tried four times, and the other target to be sent the batch once."""
    monkeypatch.setattr("batch_pipeline.defs.partition_events._PAUSE_SECONDS", 0)
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
    monkeypatch.setattr("batch_pipeline.defs.loads._PAUSE_SECONDS", 0)
    monkeypatch.setattr("batch_pipeline.defs.loads._MAX_WAITS", 1)
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


def test_load_of_a_later_generation_that_was_not_told_is_told(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the second generation to be told, though it was loaded by the same run, of which
    Dagster has heard of the first."""
    targets = {"good": target(tmp_path / "good", EAGER)}
    with open_defs_scene(database, database_url, tmp_path, monkeypatch, targets=targets) as scene:
        publish_next(scene, tmp_path, 0)
        run = run_job(scene)
        cursor = scene.tick("orders_load").cursor
        publish_next(scene, tmp_path, 0, generation=2)
        [good] = scene.stream.targets
        assert len(list(scene.pipeline.load_pending(scene.stream, good, run_id=run.run_id))) == 1

        for one in (cursor, None):
            [event] = scene.tick("orders_load", one).asset_events
            assert isinstance(event, dg.AssetMaterialization)
            assert (event.partition, generation_of(event)) == (FIRST, 2)


def test_second_load_into_one_of_two_targets_that_was_not_told_is_told(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect it to be told, though the run that loaded into the other target has told before."""
    targets = {name: target(tmp_path / name, EAGER) for name in ("a", "b")}
    with open_defs_scene(database, database_url, tmp_path, monkeypatch, targets=targets) as scene:
        publish_next(scene, tmp_path, 0)
        assert run_job(scene).success
        cursor = scene.tick("orders_load").cursor
        database.loads.void("orders", "b", [FIRST])
        [_, b] = scene.stream.targets
        assert len(list(scene.pipeline.load_pending(scene.stream, b, run_id="load-2"))) == 1

        told = scene.tick("orders_load", cursor)
        assert [event.partition for event in told.asset_events] == [FIRST]
