"""Metrics of a real inventory, and the command that serves them."""

import os
import re
import socket
import subprocess
import sys
from urllib.request import urlopen

import psycopg
import pytest
from psycopg import sql

from batch_pipeline.metrics import InventoryCollector
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.job import JobKind
from batch_pipeline_tests.cli.commands import invoke
from batch_pipeline_tests.defs.checks_fixture import publish
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.inventory.logins import database_name
from batch_pipeline_tests.seeds import claimed, execute, fail, register


@pytest.fixture
def harness(project: DefsHarness) -> DefsHarness:
    """The stream `orders` with four planned batches, each of three items and 30 bytes."""
    return project


@pytest.fixture
def errors() -> list[str]:
    """The errors that the collector has reported."""
    return []


@pytest.fixture
def collector(harness: DefsHarness, errors: list[str]) -> InventoryCollector:
    """A collector that has not begun to count."""
    return InventoryCollector(pipeline=harness.pipeline, report_error=errors.append)


def samples(collector: InventoryCollector) -> dict[str, float]:
    """Return all samples by name and values of labels, without the prefix of the product."""
    return {
        " ".join([one.name.removeprefix("batch_pipeline_"), *one.labels.values()]): one.value
        for family in collector.collect()
        for one in family.samples
    }


def fail_attempt(harness: DefsHarness, index: int) -> None:
    """Record a failed attempt on a batch."""
    fail(harness.database, harness.database.batches.statuses("orders")[index].batch)


def test_scrape_returns_backlog_and_counts_since_the_start(
    harness: DefsHarness, collector: InventoryCollector
) -> None:
    """Backfills are counted separately."""
    batches = [status.batch for status in harness.database.batches.statuses("orders")]
    publish(harness, batches[0])
    register(harness.database, 2, first=13)
    harness.plan(max_count=6)
    collector.begin()
    publish(harness, batches[1], quarantined=5)
    fail_attempt(harness, 2)
    values = samples(collector)
    assert values["backlog_oldest_seconds orders"] > 0
    expected = {
        "up": 1,
        "meta_table_up orders": 1,
        "backlog_items orders": 8,
        "backlog_bytes orders": 80,
        "unfinished_batches orders incremental planned": 1,
        "unfinished_batches orders incremental failed": 1,
        "unfinished_batches orders incremental dead": 0,
        "unfinished_batches orders backfill planned": 2,
        "generations_published_total orders incremental": 2,
        "attempts_total orders incremental succeeded": 1,
        "attempts_total orders incremental failed": 1,
        "records_total orders incremental written": 15,
        "records_total orders incremental quarantined": 5,
        "part_file_bytes_total orders incremental": 100,
        "landing_to_publish_seconds_count orders": 1,
        "landing_to_publish_seconds_bucket orders +Inf": 1,
    }
    assert {name: values[name] for name in expected} == expected


def test_each_ended_attempt_is_counted_once(
    harness: DefsHarness, collector: InventoryCollector
) -> None:
    """An attempt that was running at the start counts when it ends."""
    batches = [status.batch for status in harness.database.batches.statuses("orders")]
    name = "attempts_total orders incremental"
    with claimed(harness.database, batches[0]) as attempt:
        collector.begin()
        assert samples(collector)[f"{name} failed"] == 0
        harness.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
    fail_attempt(harness, 1)
    assert [samples(collector)[f"{name} failed"] for _ in range(2)] == [2, 2]
    publish(harness, batches[1])
    publish(harness, batches[1])
    values = samples(collector)
    assert (values[f"{name} failed"], values[f"{name} succeeded"]) == (2, 2)
    assert values["landing_to_publish_seconds_count orders"] == 1


def test_scrape_keeps_its_counts_during_the_next_scrape(
    harness: DefsHarness, collector: InventoryCollector
) -> None:
    collector.begin()
    first = collector.scrape()
    fail_attempt(harness, 0)
    second = collector.scrape()
    failed = "orders", JobKind.INCREMENTAL, AttemptStatus.FAILED
    assert (first.totals.attempts[failed], second.totals.attempts[failed]) == (0, 1)


def test_lag_starts_when_the_first_item_was_registered(
    harness: DefsHarness, collector: InventoryCollector
) -> None:
    execute(
        harness.database,
        "UPDATE batch_pipeline.item SET registered_at = registered_at - interval '2 hours'",
    )
    collector.begin()
    publish(harness, harness.database.batches.statuses("orders")[0].batch)
    values = samples(collector)
    bucket = "landing_to_publish_seconds_bucket orders"
    assert (values[f"{bucket} 3600.0"], values[f"{bucket} 21600.0"]) == (0, 1)


def test_unreachable_inventory_serves_up_0_only(
    collector: InventoryCollector, errors: list[str], server_url: str, database_url: str
) -> None:
    """The command reports the reason, and the next scrape recovers."""
    name = sql.Identifier(database_name(database_url))
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    collector.begin()
    with psycopg.connect(server_url, autocommit=True) as administrator:
        administrator.execute(allow.format(name, sql.SQL("false")))
        administrator.execute(cut, [database_name(database_url)])
        assert [samples(collector) for _ in range(2)] == [{"up": 0}] * 2
        administrator.execute(allow.format(name, sql.SQL("true")))
    assert samples(collector)["up"] == 1
    assert len(errors) == 2


def test_unusable_host_exits_with_code_1(harness: DefsHarness) -> None:
    ended = invoke("metrics", "--host", "a..b", "--port", "0")
    assert isinstance(ended.exception, InvalidValueError)
    assert "--host and --port is 'a..b:0'" in str(ended.exception)


def test_port_in_use_exits_with_code_1(harness: DefsHarness) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = invoke("metrics", "--port", str(port))
    assert ended.exit_code == 1
    assert f"127.0.0.1:{port}" in str(ended.exception)


def test_command_serves_without_secrets_until_terminated(
    harness: DefsHarness, database_url: str
) -> None:
    command = [sys.executable, "-m", "batch_pipeline", "metrics", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:(\d+)/metrics", process.stdout.readline())
        assert address is not None
        with urlopen(f"http://127.0.0.1:{address[1]}/metrics", timeout=20) as response:
            text: str = response.read().decode()
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert "batch_pipeline_up 1.0" in text
    assert "postgres" not in text
    assert database_url not in text
