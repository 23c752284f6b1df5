"""Metrics over HTTP, from a real inventory."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from psycopg import sql

from batch_pipeline.app import Pipeline
from batch_pipeline.cli import cli
from batch_pipeline.inventory.database import Database
from batch_pipeline.metrics.server import InventoryCollector, serving
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline_tests.defs.checks_fixture import publish
from batch_pipeline_tests.defs.defs_fixture import DefsScene, open_defs_scene
from batch_pipeline_tests.inventory.logins import database_name
from batch_pipeline_tests.seeds import claimed, execute, register

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]


@pytest.fixture
def scene(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsScene]:
    """The stream `orders` with four planned batches of three items and 30 bytes."""
    with open_defs_scene(database, database_url, tmp_path, monkeypatch) as opened:
        yield opened


@dataclass(frozen=True, slots=True)
class Scraped:
    """A server of metrics; samples are named `name{label="value"}`, without the prefix."""

    port: int
    errors: list[str] = field(default_factory=list)

    def samples(self) -> dict[str, float]:
        """Scrape once."""
        found = {}
        for family in text_string_to_metric_families(text_at(self.port)):
            for one in family.samples:
                found[named(one.name.removeprefix("batch_pipeline_"), one.labels)] = one.value
        return found


def named(name: str, labels: Mapping[str, str]) -> str:
    """Write a sample's name with its labels in alphabetical order."""
    return name + "{" + ",".join(f'{key}="{labels[key]}"' for key in sorted(labels)) + "}"


def text_at(port: int) -> str:
    """Return the served text."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text: str = answer.read().decode()
    return text


@contextmanager
def scraping(pipeline: Pipeline) -> Iterator[Scraped]:
    """Serve metrics on a free port."""
    errors: list[str] = []
    collector = InventoryCollector(pipeline=pipeline, report_error=errors.append)
    collector.begin()
    with serving(collector, host="127.0.0.1", port=0) as port:
        yield Scraped(port, errors)


def own(name: str, **labels: str) -> str:
    """Name a sample of the stream's own job."""
    return named(name, {"stream": "orders", "kind": "incremental"} | labels)


def fail(scene: DefsScene, place: int) -> None:
    """Let an attempt on a batch fail."""
    batch = scene.database.batches.statuses("orders")[place].batch
    with claimed(scene.database, batch) as attempt:
        scene.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)


def test_scrape_has_the_backlog_and_counts_since_the_start(scene: DefsScene) -> None:
    batches = [one.batch for one in scene.database.batches.statuses("orders")]
    publish(scene, batches[0])
    register(scene.database, 2, first=13)
    with scraping(scene.pipeline) as scraped:
        publish(scene, batches[1], quarantined=5)
        fail(scene, 2)
        found = scraped.samples()
    assert found['backlog_oldest_seconds{stream="orders"}'] > 0
    expected = {
        "up{}": 1,
        'meta_table_up{stream="orders"}': 1,
        'backlog_items{stream="orders"}': 8,
        'backlog_bytes{stream="orders"}': 80,
        own("unfinished_batches", state="planned"): 1,
        own("unfinished_batches", state="failed"): 1,
        own("unfinished_batches", state="dead"): 0,
        own("generations_published_total"): 2,
        own("attempts_total", result="succeeded"): 1,
        own("attempts_total", result="failed"): 1,
        own("records_total", result="written"): 15,
        own("records_total", result="quarantined"): 5,
        own("part_file_bytes_total"): 100,
        'landing_to_publish_seconds_count{stream="orders"}': 1,
        'landing_to_publish_seconds_bucket{le="+Inf",stream="orders"}': 1,
    }
    assert {name: found[name] for name in expected} == expected


def test_counters_grow_once_for_each_attempt(scene: DefsScene) -> None:
    """An attempt that was running at the start counts when it ends."""
    batches = [one.batch for one in scene.database.batches.statuses("orders")]
    name = own("attempts_total", result="failed")
    with claimed(scene.database, batches[0]) as attempt, scraping(scene.pipeline) as scraped:
        assert scraped.samples()[name] == 0
        scene.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
        fail(scene, 1)
        assert [scraped.samples()[name] for _ in range(2)] == [2, 2]
        publish(scene, batches[1])
        publish(scene, batches[1])
        found = scraped.samples()
    assert found[name] == 2
    assert found[own("attempts_total", result="succeeded")] == 2
    assert found['landing_to_publish_seconds_count{stream="orders"}'] == 1


def test_backfills_are_counted_apart(scene: DefsScene) -> None:
    scene.plan(most=6)
    with scraping(scene.pipeline) as scraped:
        found = scraped.samples()
    kind = {"kind": "backfill", "state": "planned"}
    assert found[own("unfinished_batches", **kind)] == 2
    assert found['backlog_items{stream="orders"}'] == 12


def test_lag_begins_when_the_first_item_was_registered(scene: DefsScene) -> None:
    execute(
        scene.database,
        "UPDATE batch_pipeline.item SET registered_at = registered_at - interval '2 hours'",
    )
    with scraping(scene.pipeline) as scraped:
        publish(scene, scene.database.batches.statuses("orders")[0].batch)
        found = scraped.samples()
    bucket = 'landing_to_publish_seconds_bucket{{le="{}",stream="orders"}}'
    assert (found[bucket.format("3600.0")], found[bucket.format("21600.0")]) == (0, 1)


def test_unreachable_inventory_is_served_without_its_address(
    scene: DefsScene, server_url: str, database_url: str
) -> None:
    """Only `up 0` is served; the command reports the reason, and the next scrape recovers."""
    name = sql.Identifier(database_name(database_url))
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    with (
        scraping(scene.pipeline) as scraped,
        psycopg.connect(server_url, autocommit=True) as administrator,
    ):
        administrator.execute(allow.format(name, sql.SQL("false")))
        administrator.execute(cut, [database_name(database_url)])
        texts = [text_at(scraped.port) for _ in range(2)]
        administrator.execute(allow.format(name, sql.SQL("true")))
        assert scraped.samples()["up{}"] == 1
    samples = [re.findall(r"^[^#\n].*$", text, re.MULTILINE) for text in texts]
    assert samples == [["batch_pipeline_up 0.0"]] * 2
    assert len(scraped.errors) == 2


def test_taken_port_ends_the_command_with_exit_code_1(scene: DefsScene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = CliRunner().invoke(cli, ["metrics", "--port", str(port)])
    assert ended.exit_code == 1
    assert f"127.0.0.1:{port}" in str(ended.exception)


def test_command_serves_without_secrets_until_it_is_ended(
    scene: DefsScene, database_url: str
) -> None:
    command = [sys.executable, "-m", "batch_pipeline", "metrics", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:(\d+)/metrics", process.stdout.readline())
        assert address is not None
        text = text_at(int(address[1]))
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert "batch_pipeline_up 1.0" in text
    assert "postgres" not in text
    assert database_url not in text
