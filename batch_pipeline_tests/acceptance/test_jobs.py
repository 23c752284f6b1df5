"""Job commands: pause, resume, cancel, retry and split, and their output."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.names import LAUNCH_TAG, encode_job, partitions_of, run_tags
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.sensors import new_files_sensor
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.acceptance.sandbox import Sandbox, manifests
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.seeds import execute, query

FIRST, SECOND = "00000001-00000002", "00000003-00000004"


@pytest.fixture
def orders(sandbox: Sandbox, database_url: str) -> Sandbox:
    """A stream `orders` with four files in two planned batches."""
    sandbox.write_stream("orders", batch={"max_count": 2})
    sandbox.land("orders", {f"{number}.csv": b"id\n1\n" for number in range(1, 5)})
    configured = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=database_url)
    configured.output_of("plan", "orders")
    return configured


def _states(orders: Sandbox) -> dict[str, int]:
    [job] = orders.json_of("jobs", "list", "orders")["jobs"]
    return {state: count for state, count in job["batches"].items() if count}


@pytest.mark.long
def test_paused_and_cancelled_batches_do_not_stop_others(
    orders: Sandbox, warm_spark: str, database: Database
) -> None:
    orders.write_stream("refunds")
    orders.land("refunds", {"a.csv": b"id\n1\n"})
    warm = orders.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    assert "paused (disk full)" in orders.output_of(
        "jobs", "pause", "orders", "--reason", "disk full"
    )
    for result in (warm.run("run"), orders.run("plan", "orders")):
        assert result.returncode == 75, result.stderr
        assert "Job 'orders' is paused (disk full)" in result.stderr
        assert "`batch-pipeline jobs resume orders`" in result.stderr
    assert len(manifests(orders.storage("refunds"))) == 1
    assert manifests(orders.storage("orders")) == []
    [status] = orders.json_of("status", "orders")["streams"]
    assert (status["paused"], status["batches"]["planned"]) == ("disk full", 2)
    assert "disk full" in orders.output_of("status")
    assert "disk full" in orders.output_of("jobs", "list", "orders")

    assert orders.json_of("jobs", "resume", "orders")["paused"] is None
    cancelled = orders.json_of("jobs", "cancel", "orders", "--batch", SECOND)
    assert (cancelled["batches"], cancelled["attempts"]) == (1, 0)
    warm.output_of("run")
    assert _states(orders) == {"published": 1, "cancelled": 1}
    [unfinished] = orders.json_of("jobs", "list", "orders")["unfinished"]
    assert (unfinished["batch_id"], unfinished["state"], unfinished["items"]) == (
        SECOND,
        "cancelled",
        2,
    )
    assert orders.json_of("jobs", "retry", "orders")["batches"] == 1
    assert _states(orders) == {"published": 1, "planned": 1}
    assert "nothing to retry" in orders.output_of("jobs", "retry", "orders")
    check_invariants(database)


# Dagster uses deprecated names of pydantic.
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
def test_sensor_of_a_paused_stream_launches_nothing(
    orders: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in orders.environment.items():
        monkeypatch.setenv(name, text)
    pipeline = Pipeline.from_environment(orders.environment)
    sensor = new_files_sensor(pipeline.stream("orders"))
    orders.land("orders", {"5.csv": b"id\n1\n"})
    pipeline.database.jobs.pause("orders", "disk full")
    try:
        skipped = _tick(sensor)
        assert isinstance(skipped, dg.SkipReason)
        assert "Job 'orders' is paused (disk full)" in str(skipped.skip_message)
        assert query(pipeline.database, "SELECT count(*) FROM batch_pipeline.item") == [(5,)]
        pipeline.database.jobs.resume("orders")
        result = _tick(sensor)
        assert isinstance(result, dg.SensorResult)
        assert len(result.run_requests or []) == 1
    finally:
        pipeline.close()


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_launched_run_skips_paused_and_cancelled_batches(
    orders: Sandbox, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    for name, text in orders.environment.items():
        monkeypatch.setenv(name, text)
    stream = Pipeline.from_environment(orders.environment).stream("orders")
    encode = build_definitions([stream]).resolve_job_def(encode_job(stream))
    tags = {LAUNCH_TAG: "new", **run_tags(stream, FIRST, SECOND)}
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(str(partitions_of(stream.name).name), [FIRST, SECOND])
        for stop in (database.jobs.pause, database.jobs.cancel):
            stop("orders")
            assert encode.execute_in_process(instance=instance, tags=tags).success
            assert query(database, "SELECT count(*) FROM batch_pipeline.attempt") == [(0,)]
            database.jobs.resume("orders")


def test_repeated_splits_isolate_the_bad_file(
    sandbox: Sandbox, database_url: str, database: Database, warm_spark: str
) -> None:
    sandbox.write_stream("orders")
    files = {f"{number}.csv": b"id\n1\n" for number in range(1, 5)}
    sandbox.land("orders", files | {"3.csv": b'id\n"1\n'})
    orders = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=database_url)
    orders.output_of("plan", "orders")
    halves = orders.json_of("jobs", "split", "orders", "--batch", "00000001-00000004")["halves"]
    assert [half["batch_id"] for half in halves] == [FIRST, SECOND]
    orders.output_of("jobs", "split", "orders", "--batch", SECOND)
    assert orders.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark).run("run").returncode == 3
    assert _states(orders) == {"published": 2, "failed": 1, "superseded": 2}
    [unfinished] = orders.json_of("jobs", "list", "orders")["unfinished"]
    assert unfinished["items"] == 1
    assert "3.csv" in unfinished["error"]
    refused = orders.run("jobs", "split", "orders", "--batch", str(unfinished["number"]))
    assert refused.returncode == 1
    assert "one item, 3 (" in refused.stderr
    assert "3.csv" in refused.stderr
    assert len(manifests(orders.storage("orders"))) == 2
    check_invariants(database)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["jobs", "pause", "order"], ["no job 'order'", "jobs: orders"]),
        (["jobs", "resume", "order"], ["no job 'order'"]),
        (["jobs", "cancel", "order"], ["no job 'order'"]),
        (
            ["jobs", "retry", "orders", "--batch", "1-2"],
            ["no batch '1-2'", "batch-pipeline jobs list orders"],
        ),
        (["jobs", "cancel", "orders", "--batch", "7"], ["no batch '7'"]),
        (["jobs", "split", "orders", "--batch", "x"], ["no batch 'x'"]),
        (["jobs", "list", "orders", "--meta-table", "ops.files"], ["no job 'orders'"]),
    ],
)
def test_unknown_names_are_one_error_message(
    table_sandbox: Sandbox, arguments: list[str], words: list[str]
) -> None:
    result = table_sandbox.run(*arguments)
    assert result.returncode == 1
    assert result.stderr.count("Error: ") == 1
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


@pytest.fixture
def table_sandbox(sandbox: Sandbox, database_url: str, database: Database) -> Sandbox:
    """An inventory with a job `orders` without batches, and no stream file."""
    with database.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO batch_pipeline.job (name, meta_table) VALUES ('orders', 'ops.orders')"
        )
    return sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=database_url)


def test_split_uses_columns_and_filter_of_the_batch(
    table_sandbox: Sandbox, database: Database, tmp_path: Path
) -> None:
    with database.engine.begin() as connection:
        for statement in (
            "CREATE SCHEMA ops",
            "CREATE TABLE ops.orders (nr bigint PRIMARY KEY, path text, bytes bigint, good bool)",
            "INSERT INTO ops.orders SELECT n, 'f' || n, 10, n > 2 FROM generate_series(1, 6) n",
            "INSERT INTO batch_pipeline.bookmark VALUES (1, 1, 6)",
            """UPDATE batch_pipeline.job
                SET config = '{"where": {"column": "good", "operator": "=", "value": true}}'""",
            """INSERT INTO batch_pipeline.batch
               (job_id, first_id, last_id, weight, item_count, config) VALUES (1, 1, 6, 40, 4,
               '{"meta_table": {"cols": {"uid": "nr", "item": "path", "weight": "bytes"}}}')""",
            "INSERT INTO batch_pipeline.batch_state VALUES (1, 1, 'planned')",
        ):
            connection.exec_driver_sql(statement)
    halves: list[dict[str, Any]] = table_sandbox.json_of(
        "jobs", "split", "orders", "--batch", "1..6"
    )["halves"]
    assert [(half["first_id"], half["last_id"], half["items"]) for half in halves] == [
        (1, 4, 2),
        (5, 6, 2),
    ]
    check_invariants(database)


def test_weights_of_user_tables_are_shown_without_unit(
    table_sandbox: Sandbox, database: Database
) -> None:
    """The unit of a user's column is unknown; weights of streams are bytes."""
    execute(
        database,
        """INSERT INTO batch_pipeline.job (name, meta_table, stream)
           VALUES ('files', 'batch_pipeline.item', 'files')""",
    )
    for statement in (
        "INSERT INTO batch_pipeline.bookmark VALUES (:job, 1, 6)",
        """INSERT INTO batch_pipeline.batch
           (id, job_id, first_id, last_id, weight, item_count, config)
           OVERRIDING SYSTEM VALUE VALUES (:job, :job, 1, 6, 3000, 4, '{}')""",
        "INSERT INTO batch_pipeline.batch_state VALUES (:job, :job, 'planned')",
    ):
        for job in (1, 2):
            execute(database, statement, job=job)
    output = table_sandbox.output_of("jobs")
    assert "waiting     batches: 1, items: 4, weight 3,000\n" in output
    assert "waiting     batches: 1, items: 4, 2.9 KiB\n" in output


def _tick(sensor: dg.SensorDefinition) -> object:
    with dg.DagsterInstance.ephemeral() as instance:
        resources = {"batch_pipeline": PipelineResource()}
        with dg.build_sensor_context(instance=instance, resources=resources) as context:
            return sensor(context)
