"""What Dagster loads: the asset graph, Dagster jobs and sensors of streams, with nothing opened."""

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
    seen = {
        key.path[1]: (
            graph.get(key).group_name,
            sorted(graph.get(key).kinds),
            getattr(graph.get(key).partitions_def, "name", None),
            [parent.path[1] for parent in graph.get(key).parent_keys],
        )
        for key in graph.get_all_asset_keys()
    }
    encoded = ["jsonl", "spark"]
    assert seen == {
        "files": ("orders", ["postgres"], None, []),
        "batches": ("orders", encoded, "orders.batches", ["files"]),
    }
    assert all(graph.get(key).description for key in graph.get_all_asset_keys())


def test_jobs_run_their_steps_in_the_process_of_the_run() -> None:
    definitions = build_definitions([stream(dagster=DagsterRules(backfills=True))])
    jobs = definitions.get_repository_def().get_all_jobs()
    own = [job for job in jobs if not job.name.startswith("__")]
    assert "batch_pipeline_plan_backfill" in {job.name for job in own}
    assert {job.executor_def.name for job in own} == {"in_process"}


def test_jobs_and_sensors_of_streams(tmp_path: Path) -> None:
    definitions = _definitions(tmp_path, "orders", "refunds")
    repository = definitions.get_repository_def()
    mine = {
        f"{stream}_{what}" for stream in ("orders", "refunds") for what in ("register", "encode")
    }
    jobs = {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")}
    maintenance = {
        f"batch_pipeline_{what}" for what in ("reconcile", "collect_garbage", "check_streams")
    }
    assert jobs == {*mine, *maintenance}
    sensors = {sensor.name for sensor in repository.sensor_defs}
    assert sensors == {"orders_new_files", "refunds_new_files", "batch_pipeline_run_ends"}


def test_backfills_are_defined_on_request(tmp_path: Path) -> None:
    root = to_uri(tmp_path)
    rules = DagsterRules(backfills=True)
    one = stream(source=Source(uri=root), storage=Storage(root=root), dagster=rules)
    repository = build_definitions([one]).get_repository_def()
    assert dg.AssetKey(["orders", "backfill"]) in repository.asset_graph.get_all_asset_keys()
    assert {"orders_encode_backfill", "batch_pipeline_plan_backfill"} <= {*repository.job_names}
    assert repository.has_sensor_def("orders_backfill")


@pytest.mark.parametrize("automation", [*Automation, None])
def test_automation_is_stopped_unless_it_is_requested(
    tmp_path: Path, automation: Automation | None
) -> None:
    root = to_uri(tmp_path)
    rules = DagsterRules(automation=automation, schedule="0 6 * * *", backfills=True)
    one = stream(source=Source(uri=root), storage=Storage(root=root), dagster=rules)
    for default in Automation:
        repository = build_definitions([one], automation=default).get_repository_def()
        found = {one.name: one.default_status.value.lower() for one in repository.sensor_defs}
        found |= {one.name: one.default_status.value.lower() for one in repository.schedule_defs}
        assert found.pop("batch_pipeline_check_streams_weekly") == Automation.STOPPED
        assert {*found.values()} == {automation or default}
        assert len(found) == 7


def test_names_of_streams_do_not_meet_those_of_the_product(tmp_path: Path) -> None:
    """Expect streams with unlucky names to load together."""
    unlucky = ["plan", "plan_encode", "failed", "cancelled", "orders.backfill", "orders"]
    repository = _definitions(tmp_path, *unlucky).get_repository_def()
    assert len(repository.get_all_jobs()) >= 2 * len(unlucky) + 3


def test_loading_opens_and_writes_nothing(tmp_path: Path) -> None:
    """Expect no file or folder where streams land and are stored."""
    _definitions(tmp_path, "orders").get_repository_def()
    assert list(tmp_path.iterdir()) == []
