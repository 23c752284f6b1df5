"""Definitions of streams: assets, Dagster jobs, sensors and schedules."""

from pathlib import Path

import dagster as dg
import pytest

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Automation, DagsterRules, Source, Storage
from batch_pipeline_tests.factories import stream


def _definitions(folder: Path, *names: str) -> dg.Definitions:
    root = to_uri(folder / "absent")
    streams = [
        stream(name=name, source=Source(uri=root), storage=Storage(root=root)) for name in names
    ]
    return build_definitions(streams)


def test_asset_graph_of_a_stream(tmp_path: Path) -> None:
    graph = _definitions(tmp_path, "orders").resolve_asset_graph()
    assets = {
        key.path[1]: (
            graph.get(key).group_name,
            sorted(graph.get(key).kinds),
            getattr(graph.get(key).partitions_def, "name", None),
            [parent.path[1] for parent in graph.get(key).parent_keys],
        )
        for key in graph.get_all_asset_keys()
    }
    assert assets == {
        "files": ("orders", ["postgres"], None, []),
        "batches": ("orders", ["jsonl", "spark"], "orders.batches", ["files"]),
    }
    assert all(graph.get(key).description for key in graph.get_all_asset_keys())


def test_jobs_use_the_in_process_executor() -> None:
    definitions = build_definitions([stream(dagster=DagsterRules(backfills=True))])
    jobs = definitions.get_repository_def().get_all_jobs()
    own = [job for job in jobs if not job.name.startswith("__")]
    assert "batch_pipeline_plan_backfill" in {job.name for job in own}
    assert {job.executor_def.name for job in own} == {"in_process"}


def test_jobs_and_sensors_of_streams(tmp_path: Path) -> None:
    definitions = _definitions(tmp_path, "orders", "refunds")
    repository = definitions.get_repository_def()
    own = {
        f"{stream}_{step}" for stream in ("orders", "refunds") for step in ("register", "encode")
    }
    jobs = {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")}
    maintenance = {
        f"batch_pipeline_{task}" for task in ("reconcile", "collect_garbage", "check_streams")
    }
    assert jobs == {*own, *maintenance}
    sensors = {sensor.name for sensor in repository.sensor_defs}
    assert sensors == {"orders_new_files", "refunds_new_files", "batch_pipeline_run_ends"}


def test_backfills_are_defined_if_enabled(tmp_path: Path) -> None:
    root = to_uri(tmp_path)
    rules = DagsterRules(backfills=True)
    orders = stream(source=Source(uri=root), storage=Storage(root=root), dagster=rules)
    repository = build_definitions([orders]).get_repository_def()
    assert dg.AssetKey(["orders", "backfill"]) in repository.asset_graph.get_all_asset_keys()
    assert {"orders_encode_backfill", "batch_pipeline_plan_backfill"} <= {*repository.job_names}
    assert repository.has_sensor_def("orders_backfill")


@pytest.mark.parametrize("automation", [*Automation, None])
def test_automation_is_stopped_unless_enabled(
    tmp_path: Path, automation: Automation | None
) -> None:
    root = to_uri(tmp_path)
    rules = DagsterRules(automation=automation, schedule="0 6 * * *", backfills=True)
    orders = stream(source=Source(uri=root), storage=Storage(root=root), dagster=rules)
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
    orders = stream(source=Source(uri=to_uri(tmp_path)))
    for streams in ([orders], tmp_path):
        definitions = build_definitions(streams, automation=Automation.RUNNING)
        sensors = definitions.get_repository_def().sensor_defs
        statuses = {sensor.name: sensor.default_status.value for sensor in sensors}
        if streams == [orders]:
            assert statuses == {"orders_new_files": status, "batch_pipeline_run_ends": status}
        else:
            assert statuses["batch_pipeline_stream_files"] == status


def test_names_of_streams_do_not_collide_with_our_definitions(tmp_path: Path) -> None:
    names = ["plan", "plan_encode", "failed", "cancelled", "orders.backfill", "orders"]
    repository = _definitions(tmp_path, *names).get_repository_def()
    assert len(repository.get_all_jobs()) >= 2 * len(names) + 3


def test_building_definitions_writes_nothing(tmp_path: Path) -> None:
    _definitions(tmp_path, "orders").get_repository_def()
    assert list(tmp_path.iterdir()) == []
