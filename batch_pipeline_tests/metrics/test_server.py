"""Metrics over HTTP, served from a real inventory."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.request import urlopen

import psycopg
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from psycopg import sql

from batch_pipeline.app import Pipeline
from batch_pipeline.cli import cli
from batch_pipeline.metrics import InventoryCollector, serving
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline_tests.defs.checks_fixture import publish
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.inventory.logins import database_name
from batch_pipeline_tests.seeds import claimed, execute, register


@pytest.fixture
def harness(project: DefsHarness) -> DefsHarness:
    """The stream `orders` with four planned batches, each of three items and 30 bytes."""
    return project


@dataclass(frozen=True, slots=True)
class Server:
    """A metrics server."""

    port: int
    errors: list[str] = field(default_factory=list)

    def scrape(self) -> dict[str, float]:
        """Return all samples by `name{label="value"}`, without the prefix of the product."""
        return {
            sample_key(sample.name.removeprefix("batch_pipeline_"), sample.labels): sample.value
            for family in text_string_to_metric_families(read_metrics(self.port))
            for sample in family.samples
        }


def sample_key(name: str, labels: Mapping[str, str]) -> str:
    """Format a sample's name with its labels in alphabetical order."""
    return name + "{" + ",".join(f'{key}="{labels[key]}"' for key in sorted(labels)) + "}"


def read_metrics(port: int) -> str:
    """Return the served text."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as response:
        text: str = response.read().decode()
    return text


@contextmanager
def metrics_server(pipeline: Pipeline) -> Iterator[Server]:
    """Serve metrics on a free port."""
    errors: list[str] = []
    collector = InventoryCollector(pipeline=pipeline, report_error=errors.append)
    collector.begin()
    with serving(collector, host="127.0.0.1", port=0) as port:
        yield Server(port, errors)


def orders_key(name: str, **labels: str) -> str:
    """Return the key of a sample of the incremental job `orders`."""
    return sample_key(name, {"stream": "orders", "kind": "incremental"} | labels)


def fail_attempt(harness: DefsHarness, index: int) -> None:
    """Record a failed attempt on a batch."""
    batch = harness.database.batches.statuses("orders")[index].batch
    with claimed(harness.database, batch) as attempt:
        harness.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)


def test_scrape_returns_backlog_and_counts_since_the_start(harness: DefsHarness) -> None:
    batches = [status.batch for status in harness.database.batches.statuses("orders")]
    publish(harness, batches[0])
    register(harness.database, 2, first=13)
    with metrics_server(harness.pipeline) as server:
        publish(harness, batches[1], quarantined=5)
        fail_attempt(harness, 2)
        samples = server.scrape()
    assert samples['backlog_oldest_seconds{stream="orders"}'] > 0
    expected = {
        "up{}": 1,
        'meta_table_up{stream="orders"}': 1,
        'backlog_items{stream="orders"}': 8,
        'backlog_bytes{stream="orders"}': 80,
        orders_key("unfinished_batches", state="planned"): 1,
        orders_key("unfinished_batches", state="failed"): 1,
        orders_key("unfinished_batches", state="dead"): 0,
        orders_key("generations_published_total"): 2,
        orders_key("attempts_total", result="succeeded"): 1,
        orders_key("attempts_total", result="failed"): 1,
        orders_key("records_total", result="written"): 15,
        orders_key("records_total", result="quarantined"): 5,
        orders_key("part_file_bytes_total"): 100,
        'landing_to_publish_seconds_count{stream="orders"}': 1,
        'landing_to_publish_seconds_bucket{le="+Inf",stream="orders"}': 1,
    }
    assert {name: samples[name] for name in expected} == expected


def test_each_ended_attempt_is_counted_once(harness: DefsHarness) -> None:
    """An attempt that was running at the start counts when it ends."""
    batches = [status.batch for status in harness.database.batches.statuses("orders")]
    name = orders_key("attempts_total", result="failed")
    with (
        claimed(harness.database, batches[0]) as attempt,
        metrics_server(harness.pipeline) as server,
    ):
        assert server.scrape()[name] == 0
        harness.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
        fail_attempt(harness, 1)
        assert [server.scrape()[name] for _ in range(2)] == [2, 2]
        publish(harness, batches[1])
        publish(harness, batches[1])
        samples = server.scrape()
    assert samples[name] == 2
    assert samples[orders_key("attempts_total", result="succeeded")] == 2
    assert samples['landing_to_publish_seconds_count{stream="orders"}'] == 1


def test_backfills_are_counted_separately(harness: DefsHarness) -> None:
    harness.plan(max_count=6)
    with metrics_server(harness.pipeline) as server:
        samples = server.scrape()
    kind = {"kind": "backfill", "state": "planned"}
    assert samples[orders_key("unfinished_batches", **kind)] == 2
    assert samples['backlog_items{stream="orders"}'] == 12


def test_lag_starts_when_the_first_item_was_registered(harness: DefsHarness) -> None:
    execute(
        harness.database,
        "UPDATE batch_pipeline.item SET registered_at = registered_at - interval '2 hours'",
    )
    with metrics_server(harness.pipeline) as server:
        publish(harness, harness.database.batches.statuses("orders")[0].batch)
        samples = server.scrape()
    bucket = 'landing_to_publish_seconds_bucket{{le="{}",stream="orders"}}'
    assert (samples[bucket.format("3600.0")], samples[bucket.format("21600.0")]) == (0, 1)


def test_unreachable_inventory_serves_up_0_without_its_address(
    harness: DefsHarness, server_url: str, database_url: str
) -> None:
    """Only `up 0` is served; the command reports the reason, and the next scrape recovers."""
    name = sql.Identifier(database_name(database_url))
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    with (
        metrics_server(harness.pipeline) as server,
        psycopg.connect(server_url, autocommit=True) as administrator,
    ):
        administrator.execute(allow.format(name, sql.SQL("false")))
        administrator.execute(cut, [database_name(database_url)])
        texts = [read_metrics(server.port) for _ in range(2)]
        administrator.execute(allow.format(name, sql.SQL("true")))
        assert server.scrape()["up{}"] == 1
    lines = [re.findall(r"^[^#\n].*$", text, re.MULTILINE) for text in texts]
    assert lines == [["batch_pipeline_up 0.0"]] * 2
    assert len(server.errors) == 2


def test_port_in_use_exits_with_code_1(harness: DefsHarness) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = CliRunner().invoke(cli, ["metrics", "--port", str(port)])
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
        text = read_metrics(int(address[1]))
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert "batch_pipeline_up 1.0" in text
    assert "postgres" not in text
    assert database_url not in text
