"""Job commands: pause, resume, cancel, retry and split, and their output."""

from collections.abc import Iterator

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
USER_TABLE = """
CREATE SCHEMA ops;
CREATE TABLE ops.orders (nr bigint PRIMARY KEY, path text, bytes bigint, good bool);
INSERT INTO ops.orders SELECT n, 'f' || n, 10, n > 2 FROM generate_series(1, 6) n;
INSERT INTO batch_pipeline.job (name, meta_table, config) VALUES
    ('orders', 'ops.orders', '{"where": {"column": "good", "operator": "=", "value": true}}');
INSERT INTO batch_pipeline.bookmark VALUES (1, 1, 6);
INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config) VALUES
    (1, 1, 6, 3000, 4,
     '{"meta_table": {"cols": {"uid": "nr", "item": "path", "weight": "bytes"}}}');
INSERT INTO batch_pipeline.batch_state VALUES (1, 1, 'planned')
"""
STREAM_BATCH = """
INSERT INTO batch_pipeline.job (name, meta_table, stream)
    VALUES ('files', 'batch_pipeline.item', 'files');
INSERT INTO batch_pipeline.bookmark VALUES (2, 1, 6);
INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config)
    VALUES (2, 1, 6, 3000, 4, '{}');
INSERT INTO batch_pipeline.batch_state VALUES (2, 2, 'planned')
"""


@pytest.fixture
def orders(sandbox: Sandbox, database_url: str) -> Sandbox:
    """A stream `orders` with four files in two planned batches."""
    sandbox.write_stream("orders", batch={"max_count": 2})
    sandbox.land("orders", {f"{number}.csv": b"id\n1\n" for number in range(1, 5)})
    configured = sandbox.in_process(BATCH_PIPELINE_INVENTORY_CONN=database_url)
    configured.output_of("plan", "orders")
    return configured


@pytest.fixture
def pipeline(orders: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """The stream in this process."""
    for name, text in orders.environment.items():
        monkeypatch.setenv(name, text)
    opened = Pipeline.from_environment(orders.environment)
    yield opened
    opened.close()


def _states(orders: Sandbox) -> dict[str, int]:
    [job] = orders.json_of("jobs", "list", "orders")["jobs"]
    return {state: count for state, count in job["batches"].items() if count}


def test_paused_and_cancelled_batches_do_not_stop_others(
    orders: Sandbox, warm_spark: str, database: Database
) -> None:
    orders.write_stream("refunds")
    orders.land("refunds", {"a.csv": b"id\n1\n"})
    warm = orders.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    paused = orders.output_of("jobs", "pause", "orders", "--reason", "disk full")
    assert "paused (disk full)" in paused
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
    facts = [unfinished[key] for key in ("batch_id", "state", "items")]
    assert facts == [SECOND, "cancelled", 2]
    assert orders.json_of("jobs", "retry", "orders")["batches"] == 1
    assert _states(orders) == {"published": 1, "planned": 1}
    assert "nothing to retry" in orders.output_of("jobs", "retry", "orders")
    check_invariants(database)


def test_paused_and_cancelled_batches_are_neither_launched_nor_run(
    orders: Sandbox, pipeline: Pipeline, database: Database
) -> None:
    """A sensor registers files of a paused stream. A run that was launched before skips batches."""
    stream = pipeline.stream("orders")
    encode = build_definitions([stream]).resolve_job_def(encode_job(stream))
    tags = {LAUNCH_TAG: "new", **run_tags(stream, FIRST, SECOND)}
    sensor, resources = new_files_sensor(stream), {"batch_pipeline": PipelineResource()}
    orders.land("orders", {"5.csv": b"id\n1\n"})
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(str(partitions_of(stream.name).name), [FIRST, SECOND])

        def tick() -> object:
            with dg.build_sensor_context(instance=instance, resources=resources) as context:
                return sensor(context)

        def run_encodes_nothing() -> bool:
            assert encode.execute_in_process(instance=instance, tags=tags).success
            return query(database, "SELECT count(*) FROM batch_pipeline.attempt") == [(0,)]

        database.jobs.pause("orders", "disk full")
        skipped = tick()
        assert isinstance(skipped, dg.SkipReason)
        assert "Job 'orders' is paused (disk full)" in str(skipped.skip_message)
        assert query(database, "SELECT count(*) FROM batch_pipeline.item") == [(5,)]
        assert run_encodes_nothing()
        database.jobs.resume("orders")
        result = tick()
        assert isinstance(result, dg.SensorResult)
        assert len(result.run_requests or []) == 1
        database.jobs.cancel("orders")
        assert run_encodes_nothing()


def test_jobs_on_user_tables_are_shown_without_unit_and_split(
    sandbox: Sandbox, database_url: str, database: Database
) -> None:
    """The unit of a user's column is unknown; weights of streams are bytes.

    A split uses the columns and the filter of the batch.
    """
    sandbox = sandbox.in_process(BATCH_PIPELINE_INVENTORY_CONN=database_url)
    sandbox.streams.mkdir()
    for statement in (USER_TABLE + ";" + STREAM_BATCH).split(";"):
        execute(database, statement)
    output = sandbox.output_of("jobs")
    assert "waiting     batches: 1, items: 4, weight 3,000\n" in output
    assert "waiting     batches: 1, items: 4, 2.9 KiB\n" in output
    halves = sandbox.json_of("jobs", "split", "orders", "--batch", "1..6")["halves"]
    ranges = [(half["first_id"], half["last_id"], half["items"]) for half in halves]
    assert ranges == [(1, 4, 2), (5, 6, 2)]
