"""Commands on jobs as people type them: pause, resume, cancel, retry, bisect; what they show."""

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
    """A stream `orders` whose four files are two planned batches."""
    sandbox.write_stream("orders", batch={"max_count": 2})
    sandbox.land("orders", {f"{number}.csv": b"id\n1\n" for number in range(1, 5)})
    given = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=database_url)
    given.output_of("plan", "orders")
    return given


def _states(orders: Sandbox) -> dict[str, int]:
    [one] = orders.json_of("jobs", "list", "orders")["jobs"]
    return {state: count for state, count in one["batches"].items() if count}


@pytest.mark.long
def test_paused_and_cancelled_work_waits_while_the_rest_is_done(
    orders: Sandbox, warm_spark: str, database: Database
) -> None:
    orders.write_stream("refunds")
    orders.land("refunds", {"a.csv": b"id\n1\n"})
    warm = orders.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    assert "paused (disk full)" in orders.output_of(
        "jobs", "pause", "orders", "--reason", "disk full"
    )
    for ended in (warm.run("run"), orders.run("plan", "orders")):
        assert ended.returncode == 75, ended.stderr
        assert "Job 'orders' is paused (disk full)" in ended.stderr
        assert "`batch-pipeline jobs resume orders`" in ended.stderr
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
    [left] = orders.json_of("jobs", "list", "orders")["unfinished"]
    assert (left["batch_id"], left["state"], left["items"]) == (SECOND, "cancelled", 2)
    assert orders.json_of("jobs", "retry", "orders")["batches"] == 1
    assert _states(orders) == {"published": 1, "planned": 1}
    assert "nothing to retry" in orders.output_of("jobs", "retry", "orders")
    check_invariants(database)


# Dagster looks at its resources with names that pydantic wants to give up.
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
def test_sensor_of_a_paused_stream_says_so_and_launches_nothing(
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
def test_run_that_was_launched_before_leaves_alone_what_was_called_off(
    orders: Sandbox, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    for name, text in orders.environment.items():
        monkeypatch.setenv(name, text)
    one = Pipeline.from_environment(orders.environment).stream("orders")
    encode = build_definitions([one]).resolve_job_def(encode_job(one))
    tags = {LAUNCH_TAG: "new", **run_tags(one, FIRST, SECOND)}
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(str(partitions_of(one.name).name), [FIRST, SECOND])
        for called_off in (database.jobs.pause, database.jobs.cancel):
            called_off("orders")
            assert encode.execute_in_process(instance=instance, tags=tags).success
            assert query(database, "SELECT count(*) FROM batch_pipeline.attempt") == [(0,)]
            database.jobs.resume("orders")


def test_bisect_leaves_the_bad_file_alone(
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
    [left] = orders.json_of("jobs", "list", "orders")["unfinished"]
    assert left["items"] == 1
    assert "3.csv" in left["error"]
    refused = orders.run("jobs", "split", "orders", "--batch", str(left["number"]))
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
def test_names_that_are_not_there_are_one_message(
    table_sandbox: Sandbox, arguments: list[str], words: list[str]
) -> None:
    ended = table_sandbox.run(*arguments)
    assert ended.returncode == 1
    assert ended.stderr.count("Error: ") == 1
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in ended.stderr


@pytest.fixture
def table_sandbox(sandbox: Sandbox, database_url: str, database: Database) -> Sandbox:
    """An inventory with a job `orders` and nothing planned; no stream file is needed."""
    with database.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO batch_pipeline.job (name, meta_table) VALUES ('orders', 'ops.orders')"
        )
    return sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=database_url)


def test_job_on_a_table_of_the_user_is_bisected_as_it_was_read(
    table_sandbox: Sandbox, database: Database, tmp_path: Path
) -> None:
    """The halves have the columns and the filter of the batch."""
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


def test_jobs_of_the_library_show_weights_as_plain_numbers(
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
    shown = table_sandbox.output_of("jobs")
    assert "waiting     batches: 1, items: 4, weight 3,000\n" in shown
    assert "waiting     batches: 1, items: 4, 2.9 KiB\n" in shown


def _tick(sensor: dg.SensorDefinition) -> object:
    with dg.DagsterInstance.ephemeral() as instance:
        resources = {"batch_pipeline": PipelineResource()}
        with dg.build_sensor_context(instance=instance, resources=resources) as context:
            return sensor(context)
