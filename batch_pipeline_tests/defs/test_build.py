"""Definitions of streams: assets, Dagster jobs, sensors and schedules."""

from pathlib import Path

import dagster as dg
import pytest

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.model.stream import Automation, DagsterRules
from batch_pipeline_tests.factories import stream


def test_jobs_use_the_in_process_executor() -> None:
    definitions = build_definitions([stream(dagster=DagsterRules(backfills=True))])
    jobs = definitions.get_repository_def().get_all_jobs()
    own = [job for job in jobs if not job.name.startswith("__")]
    assert "batch_pipeline_plan_backfill" in {job.name for job in own}
    assert {job.executor_def.name for job in own} == {"in_process"}


@pytest.mark.parametrize("automation", [*Automation, None])
def test_automation_is_stopped_unless_enabled(automation: Automation | None) -> None:
    rules = DagsterRules(automation=automation, schedule="0 6 * * *", backfills=True)
    orders = stream(dagster=rules)
    for default in Automation:
        repository = build_definitions([orders], automation=default).get_repository_def()
        automations: list[dg.SensorDefinition | dg.ScheduleDefinition] = [
            *repository.sensor_defs,
            *repository.schedule_defs,
        ]
        statuses = {one.name: one.default_status.value.lower() for one in automations}
        assert statuses.pop("batch_pipeline_check_streams_weekly") == Automation.STOPPED
        assert {*statuses.values()} == {automation or default}
        assert len(statuses) == 7


@pytest.mark.parametrize(("value", "status"), [("1", "STOPPED"), ("0", "RUNNING")])
def test_automation_is_stopped_in_branch_deployments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, status: str
) -> None:
    """Their inventory may be that of production. Dagster+ sets the variable."""
    monkeypatch.setenv("DAGSTER_CLOUD_IS_BRANCH_DEPLOYMENT", value)
    orders = stream()
    for streams in ([orders], tmp_path):
        definitions = build_definitions(streams, automation=Automation.RUNNING)
        sensors = definitions.get_repository_def().sensor_defs
        statuses = {sensor.name: sensor.default_status.value for sensor in sensors}
        if streams == [orders]:
            assert statuses == {"orders_new_files": status, "batch_pipeline_run_ends": status}
        else:
            assert statuses["batch_pipeline_stream_files"] == status


def test_names_of_streams_do_not_collide_with_our_definitions() -> None:
    names = ["plan", "plan_encode", "failed", "cancelled", "orders.backfill", "orders"]
    repository = build_definitions([stream(name=name) for name in names]).get_repository_def()
    assert len(repository.get_all_jobs()) >= 2 * len(names) + 3
