"""Definitions of streams, also beside those of a user's project, and their resources."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_pyspark import PySparkResource
from pyspark import SparkContext
from pyspark.sql import SparkSession

from batch_pipeline import PipelineResource, build_definitions, describe_stream
from batch_pipeline.defs.batch_reader import BatchReader
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.stream import Automation, DagsterRules
from batch_pipeline_tests.defs.defs_fixture import DefsHarness, empty_instance
from batch_pipeline_tests.factories import stream


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
    statuses: dict[str, str] = {}
    for streams in (tmp_path, [stream()]):
        definitions = build_definitions(streams, automation=Automation.RUNNING)
        sensors = definitions.get_repository_def().sensor_defs
        statuses |= {sensor.name: sensor.default_status.value for sensor in sensors}
    names = ("orders_new_files", "batch_pipeline_run_ends", "batch_pipeline_stream_files")
    assert statuses == dict.fromkeys(names, status)


def test_names_of_streams_do_not_collide_with_our_definitions() -> None:
    names = ["plan", "plan_encode", "failed", "cancelled", "orders.backfill", "orders"]
    repository = build_definitions([stream(name=name) for name in names]).get_repository_def()
    assert len(repository.get_all_jobs()) >= 2 * len(names) + 3


def test_definitions_do_not_collide_with_those_of_a_project() -> None:
    """All names start with that of a stream or of the package."""
    rules = {"backfills": True, "schedule": "0 6 * * *"}
    orders = describe_stream("orders", source={"uri": "/data"}, dagster=rules)
    definitions = build_definitions([orders])
    assert definitions.executor is None
    assert not definitions.loggers
    repository = definitions.get_repository_def()
    names = {
        *(job.name for job in repository.get_all_jobs()),
        *(sensor.name for sensor in repository.sensor_defs),
        *(schedule.name for schedule in repository.schedule_defs),
        *(definitions.resources or ()),
    }
    prefixes = ("orders_", "batch_pipeline", "__")  # Dagster has a job of its own
    assert [name for name in names if not name.startswith(prefixes)] == []
    assert len(names) > 10


def test_resources_do_not_start_the_embedded_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an inventory, sensors fail."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCH_PIPELINE_INVENTORY_CONN", raising=False)
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(tmp_path / "home"))
    expected = "resources of Dagster do not start it. Set BATCH_PIPELINE_INVENTORY_CONN"
    with pytest.raises(ConfigurationError, match=expected):
        BatchReader().pipeline  # noqa: B018 - opens it
    landing = str(tmp_path / "landing")
    targets = {"csv": {"command": "target-csv"}}
    orders = describe_stream("orders", source={"uri": landing}, targets=targets)
    definitions = build_definitions([orders])
    for name in ("orders_new_files", "orders_load", "batch_pipeline_run_ends"):
        resources = {"batch_pipeline": PipelineResource()}
        with (
            dg.build_sensor_context(instance=empty_instance(), resources=resources) as context,
            pytest.raises(ConfigurationError, match=expected),
        ):
            definitions.resolve_sensor_def(name)(context)
    assert list(tmp_path.iterdir()) == []


def test_field_takes_precedence_over_the_environment(
    harness: DefsHarness, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", "postgresql://user@127.0.0.1:9/x")
    monkeypatch.setenv("WAREHOUSE", database_url)

    @dg.asset
    def batch_count(inventory: PipelineResource) -> dg.MaterializeResult[None]:
        statuses = inventory.pipeline.database.batches.statuses("orders")
        return dg.MaterializeResult(metadata={"batches": len(statuses)})

    resource = PipelineResource(inventory_conn=dg.EnvVar("WAREHOUSE"))
    run = dg.materialize([batch_count], resources={"inventory": resource})
    [event] = run.get_asset_materialization_events()
    assert event.materialization.metadata["batches"].value == 4


@pytest.mark.long
def test_stream_is_encoded_by_the_spark_resource_of_the_project(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "1.csv").write_text("id,city\n1,Bern\n2,Wien\n")
    sales = describe_stream(
        "sales",
        source={"uri": str(landing), "format": "csv"},
        storage={"root": str(tmp_path / "batches")},
        dagster={"spark_resource": "pyspark"},
    )
    config = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
    pipeline = PipelineResource(inventory_conn=database_url)
    definitions = dg.Definitions.merge(
        build_definitions([sales], pipeline=pipeline),
        dg.Definitions(resources={"pyspark": PySparkResource(spark_config=config)}),
    )
    instance = empty_instance()
    with ExitStack() as stack:
        stack.callback(_stop_spark)
        for job in ("sales_register", "sales_encode"):
            keys = instance.get_dynamic_partitions("sales.batches")
            run = definitions.resolve_job_def(job).execute_in_process(
                instance=instance, partition_key=keys[0] if keys else None
            )
            assert run.success
    reader = BatchReader(inventory_conn=database_url)
    assert reader.current("sales").to_arrow().to_pylist() == [
        {"id": 1, "city": "Bern"},
        {"id": 2, "city": "Wien"},
    ]
    reader.close()


def _stop_spark() -> None:
    """Stop the session of the resource and its JVM, which Dagster leaves running."""
    session = SparkSession.getActiveSession()
    assert session is not None
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None
