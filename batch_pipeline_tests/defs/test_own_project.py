"""Definitions of streams in a user's Dagster project with its own names and resources."""

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
from batch_pipeline.defs.resources import InventoryResource
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline_tests.defs.defs_fixture import DefsHarness

TARGET = {"command": "target-csv"}


def _project() -> dg.Definitions:
    """Return definitions with the names that users are most likely to choose."""

    @dg.op
    def work() -> None: ...

    @dg.job
    def reconcile() -> None:
        work()

    @dg.job
    def collect_garbage() -> None:
        work()

    @dg.asset
    def batches(spark: dg.ResourceParam[Any], pipeline: dg.ResourceParam[Any]) -> None: ...

    @dg.sensor(job=reconcile)
    def failed_runs() -> None: ...

    names = ("spark", "pipeline", "s3", "check_scope", "pyspark")
    resources = {name: dg.ResourceDefinition.hardcoded_resource(name) for name in names}
    return dg.Definitions(
        assets=[batches],
        jobs=[reconcile, collect_garbage],
        sensors=[failed_runs],
        resources={**resources, "io_manager": dg.mem_io_manager},
        executor=dg.multiprocess_executor.configured({"max_concurrent": 2}),
        loggers={"console": dg.colored_console_logger},
    )


def test_definitions_can_be_merged_with_those_of_a_project(tmp_path: Path) -> None:
    streams = [
        describe_stream(name, source={"uri": str(tmp_path)}, dagster={"backfills": True})
        for name in ("orders", "pipeline", "spark")
    ]
    own = _project()
    merged = dg.Definitions.merge(own, build_definitions(streams))
    repository = merged.get_repository_def()
    assert merged.executor is own.executor
    assert merged.loggers == own.loggers
    assert repository.has_job("reconcile")
    assert repository.has_job("batch_pipeline_reconcile")
    ours = {key for key in merged.resources or {} if key not in (own.resources or {})}
    assert ours == {"batch_pipeline", "batch_pipeline_spark", "batch_pipeline_checks"}


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
    stream = describe_stream("orders", source={"uri": landing}, targets={"csv": TARGET})
    definitions = build_definitions([stream])
    for name in ("orders_new_files", "orders_load", "batch_pipeline_run_ends"):
        with (
            dg.DagsterInstance.ephemeral() as instance,
            dg.build_sensor_context(
                instance=instance, resources={"batch_pipeline": PipelineResource()}
            ) as context,
            pytest.raises(ConfigurationError, match=expected),
        ):
            definitions.resolve_sensor_def(name)(context)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [PipelineResource, BatchReader])
def test_field_takes_precedence_over_the_environment(
    kind: type[InventoryResource],
    harness: DefsHarness,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", "postgresql://user@127.0.0.1:9/x")
    monkeypatch.setenv("WAREHOUSE", database_url)

    @dg.asset
    def batch_count(inventory: kind) -> dg.MaterializeResult[None]:  # type: ignore[valid-type]
        statuses = inventory.pipeline.database.batches.statuses("orders")  # type: ignore[attr-defined]
        return dg.MaterializeResult(metadata={"batches": len(statuses)})

    resource = kind(inventory_conn=dg.EnvVar("WAREHOUSE"))
    run = dg.materialize([batch_count], resources={"inventory": resource})
    [event] = run.get_asset_materialization_events()
    assert event.materialization.metadata["batches"].value == 4


@pytest.mark.long
def test_stream_is_encoded_by_the_spark_resource_of_the_project(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(tmp_path / "home"))
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "1.csv").write_text("id,city\n1,Bern\n2,Wien\n")
    stream = describe_stream(
        "sales",
        source={"uri": str(landing), "format": "csv"},
        storage={"root": str(tmp_path / "batches")},
        dagster={"spark_resource": "pyspark"},
    )
    config = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
    pipeline = PipelineResource(inventory_conn=database_url)
    definitions = dg.Definitions.merge(
        build_definitions([stream], pipeline=pipeline),
        dg.Definitions(resources={"pyspark": PySparkResource(spark_config=config)}),
    )
    with ExitStack() as stack:
        stack.callback(_stop_spark)
        instance = stack.enter_context(dg.DagsterInstance.ephemeral())
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
