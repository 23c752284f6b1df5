"""Taps of others land through our target, and `batch-pipeline run` publishes what they said."""

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from batch_pipeline_tests.acceptance.real_targets import installed
from batch_pipeline_tests.acceptance.sandbox import Sandbox, json_records, part_files

pytestmark = pytest.mark.long

TAP_POSTGRES = ("meltanolabs-tap-postgres==0.10.0",)
TARGET = [sys.executable, "-m", "batch_pipeline.cli.target"]
SAMPLE_TAP = """
from decimal import Decimal
from singer_sdk import Stream, Tap
from singer_sdk import typing as th


class Readings(Stream):
    name = "readings"
    primary_keys = ("id",)
    replication_key = "id"
    is_sorted = True
    schema = th.PropertiesList(
        th.Property("id", th.IntegerType),
        th.Property("value", th.NumberType),
        th.Property("at", th.DateTimeType),
        th.Property("tags", th.ArrayType(th.StringType)),
    ).to_dict()

    def get_records(self, context):
        for number in range(1, 31):
            at = f"2026-01-{number:02}T00:00:00+00:00"
            yield {"id": number, "value": Decimal(number) / 4, "at": at, "tags": ["é", str(number)]}


class SampleTap(Tap):
    name = "tap-sample"
    config_jsonschema = {"properties": {}}

    def discover_streams(self):
        return [Readings(self)]


SampleTap.cli()
"""


@pytest.fixture
def sandbox(sandbox: Sandbox) -> Sandbox:
    """A sandbox without any stream, but with a folder for them."""
    sandbox.streams.mkdir()
    return sandbox


@pytest.fixture(scope="session")
def tap_postgres(request: pytest.FixtureRequest) -> Path:
    """The command of the tap, in an environment of its own that later sessions find again."""
    cache = request.config.cache
    assert cache is not None
    return installed(cache.mkdir("singer-taps"), TAP_POSTGRES) / "tap-postgres"


def _config(sandbox: Sandbox, name: str, **config: Any) -> str:
    path = sandbox.folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return str(path)


def _piped(sandbox: Sandbox, tap: list[str], **config: Any) -> list[dict[str, Any]]:
    """Pipe a tap into the target, as a shell does; gives the STATEs that the target printed."""
    target = [*TARGET, "--config", _config(sandbox, "target", **config)]
    said = sandbox.folder / "said.singer"
    with said.open("wb") as output:
        subprocess.run(tap, stdout=output, env=sandbox.environment, check=True)
    with said.open("rb") as source:
        ended = subprocess.run(
            target, stdin=source, capture_output=True, env=sandbox.environment, check=False
        )
    assert ended.returncode == 0, ended.stderr.decode()
    return [json.loads(line) for line in ended.stdout.splitlines()]


def _selected(sandbox: Sandbox, tap: list[str]) -> str:
    """Let a tap discover what there is, and select all of it."""
    found = subprocess.run([*tap, "--discover"], capture_output=True, check=True)
    catalog = json.loads(found.stdout)
    for stream in catalog["streams"]:
        for one in stream["metadata"]:
            one["metadata"]["selected"] = True
    return _config(sandbox, "catalog", **catalog)


def test_records_of_a_tap_are_published(sandbox: Sandbox) -> None:
    script = sandbox.folder / "tap.py"
    script.write_text(SAMPLE_TAP)
    printed = _piped(sandbox, [sys.executable, str(script)], max_records=10)
    assert printed[-1]["bookmarks"]["readings"]["replication_key_value"] == 30
    (told,) = sandbox.json_of("run")["streams"]
    assert told["stream"] == "readings"
    records = sorted(json_records(sandbox.streams / "readings/batches"), key=lambda one: one["id"])
    assert [one["id"] for one in records] == list(range(1, 31))
    assert Decimal(str(records[2]["value"])) == Decimal("0.75")
    assert records[2]["tags"] == ["é", "3"]
    assert records[2]["at"].startswith("2026-01-03T00:00:00")


def test_batches_of_tap_postgres_are_published_from_where_they_lie(
    sandbox: Sandbox, tap_postgres: Path, empty_database_url: str
) -> None:
    """The tap wrote the files itself; they are not copied."""
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE sale (id bigint PRIMARY KEY, price numeric, name text)")
        connection.execute(
            "INSERT INTO sale SELECT n, n + 0.25, 'Zoë ' || n FROM generate_series(1, 250) n"
        )
    theirs = sandbox.folder / "their files"
    config = {
        # The tap wants a host and a password; the folder of the socket comes behind them, and wins.
        "sqlalchemy_url": empty_database_url.replace(
            "postgresql://postgres@", "postgresql+psycopg2://postgres:none@localhost"
        ),
        "filter_schemas": ["public"],
        "batch_config": {
            "encoding": {"format": "jsonl", "compression": "gzip"},
            "storage": {"root": f"file://{theirs}", "prefix": "sale-"},
            "batch_size": 100,
        },
    }
    tap = [str(tap_postgres), "--config", _config(sandbox, "tap", **config)]
    _piped(sandbox, [*tap, "--catalog", _selected(sandbox, tap)], batch_roots=[str(theirs)])
    sandbox.json_of("run")
    stream = "public-sale"
    records = sorted(json_records(sandbox.streams / stream / "batches"), key=lambda one: one["id"])
    assert [one["id"] for one in records] == list(range(1, 251))
    assert (records[6]["price"], records[6]["name"]) == (7.25, "Zoë 7")
    assert len(list(theirs.iterdir())) == 3
    assert not list((sandbox.home / "landing" / stream).iterdir())
    assert list(part_files(sandbox.streams / stream / "batches"))
