"""Loads in Dagster into failing or busy targets, and loads that were not reported."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.defs.metadata import generation_of
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.defs.defs_fixture import open_defs_harness
from batch_pipeline_tests.defs.test_loaded import publish_next, run_asset, run_job, sent, target
from batch_pipeline_tests.load.target_scripts import EAGER, SILENT
from batch_pipeline_tests.pipeline.load_fixture import FIRST, LEASE
from batch_pipeline_tests.seeds import query


def load_counts(database: Database) -> list[tuple[Any, ...]]:
    """Count the loads by target and status."""
    counts = "SELECT target, status, count(*) FROM batch_pipeline.load GROUP BY 1, 2 ORDER BY 1, 2"
    return query(database, counts)


def test_unreachable_server_does_not_block_other_targets(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is tried four times; the other target gets the batch once."""
    monkeypatch.setattr("batch_pipeline.defs.partition_events._PAUSE_SECONDS", 0)
    monkeypatch.setenv("WAREHOUSE", "postgresql://user@127.0.0.1:1/warehouse")
    targets = {
        "gone": {"postgres": {"conn": "$WAREHOUSE"}},
        "good": target(tmp_path / "good", EAGER),
    }
    with open_defs_harness(
        database, database_url, tmp_path, monkeypatch, targets=targets
    ) as harness:
        publish_next(harness, tmp_path, 0)
        harness.instance.add_dynamic_partitions(harness.batches.set_name, [FIRST])
        result = run_asset(harness, FIRST, FIRST)

    [failure] = [event for event in result.all_events if event.event_type_value == "STEP_FAILURE"]
    assert "127.0.0.1/warehouse cannot be reached" in str(failure.step_failure_data.error)
    assert sent(tmp_path / "good") == [FIRST]
    assert load_counts(database) == [("gone", "failed", 4), ("good", "succeeded", 1)]


def test_busy_target_does_not_block_other_targets(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step loads into the other target first, then waits for the busy one."""
    monkeypatch.setattr("batch_pipeline.defs.loads._PAUSE_SECONDS", 0)
    monkeypatch.setattr("batch_pipeline.defs.loads._MAX_WAITS", 1)
    targets = {name: target(tmp_path / name, EAGER) for name in ("busy", "good")}
    with open_defs_harness(
        database, database_url, tmp_path, monkeypatch, targets=targets
    ) as harness:
        publish_next(harness, tmp_path, 0)
        due = list(database.loads.due(harness.stream, "busy"))
        with database.loads.claim("orders", "busy", due, run_id="load-1", lease=LEASE):
            result = run_job(harness)
        event_types = [event.event_type_value for event in result.all_events]
        assert event_types.count("STEP_UP_FOR_RETRY") == 1
        assert load_counts(database) == [("busy", "running", 1), ("good", "succeeded", 1)]


def test_next_generation_of_a_failed_load_is_launched_immediately(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of pending loads is the same as before."""
    targets = {"silent": target(tmp_path / "silent", SILENT)}
    with open_defs_harness(
        database, database_url, tmp_path, monkeypatch, targets=targets
    ) as harness:
        publish_next(harness, tmp_path, 0)
        cursor = harness.tick("orders_load").cursor
        assert not run_job(harness).success
        publish_next(harness, tmp_path, 0, generation=2)
        assert harness.tick("orders_load", cursor).run_requests


def test_unreported_load_of_a_later_generation_is_reported(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run loaded both generations and reported only the first."""
    targets = {"good": target(tmp_path / "good", EAGER)}
    with open_defs_harness(
        database, database_url, tmp_path, monkeypatch, targets=targets
    ) as harness:
        publish_next(harness, tmp_path, 0)
        run = run_job(harness)
        cursor = harness.tick("orders_load").cursor
        publish_next(harness, tmp_path, 0, generation=2)
        [good] = harness.stream.targets
        assert (
            len(list(harness.pipeline.load_pending(harness.stream, good, run_id=run.run_id))) == 1
        )

        for last_cursor in (cursor, None):
            [event] = harness.tick("orders_load", last_cursor).asset_events
            assert isinstance(event, dg.AssetMaterialization)
            assert (event.partition, generation_of(event)) == (FIRST, 2)


def test_unreported_reload_into_one_of_two_targets_is_reported(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier run reported the first load into both targets."""
    targets = {name: target(tmp_path / name, EAGER) for name in ("a", "b")}
    with open_defs_harness(
        database, database_url, tmp_path, monkeypatch, targets=targets
    ) as harness:
        publish_next(harness, tmp_path, 0)
        assert run_job(harness).success
        cursor = harness.tick("orders_load").cursor
        database.loads.void("orders", "b", [FIRST])
        [_, b] = harness.stream.targets
        assert len(list(harness.pipeline.load_pending(harness.stream, b, run_id="load-2"))) == 1

        events = harness.tick("orders_load", cursor).asset_events
        assert [event.partition for event in events] == [FIRST]
