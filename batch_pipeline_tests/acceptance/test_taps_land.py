"""Third-party taps piped into our target; `batch-pipeline run` publishes their records."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from batch_pipeline_tests.acceptance.real_targets import installed
from batch_pipeline_tests.acceptance.sandbox import (
    Sandbox,
    json_records,
    part_files,
    program_output,
)
from batch_pipeline_tests.docs.pages import blocks

pytestmark = pytest.mark.long

TAP_POSTGRES = ("meltanolabs-tap-postgres==0.10.0",)
TARGET = [sys.executable, "-m", "batch_pipeline.cli.target"]


@pytest.fixture
def sandbox(sandbox: Sandbox) -> Sandbox:
    """A sandbox with an empty folder for streams."""
    sandbox.streams.mkdir()
    return sandbox


@pytest.fixture(scope="session")
def tap_postgres(request: pytest.FixtureRequest) -> Path:
    """The command of the tap, in an environment that is cached between sessions."""
    cache = request.config.cache
    assert cache is not None
    return installed(cache.mkdir("singer-taps"), TAP_POSTGRES) / "tap-postgres"


def _config(sandbox: Sandbox, name: str, **config: Any) -> str:
    path = sandbox.folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return str(path)


def _discover_and_select(sandbox: Sandbox, tap: list[str]) -> str:
    """Let a tap discover its streams, and select all of them; return the catalog."""
    catalog = json.loads(program_output(*tap, "--discover"))
    for stream in catalog["streams"]:
        for entry in stream["metadata"]:
            entry["metadata"]["selected"] = True
    return _config(sandbox, "catalog", **catalog)


def test_batch_files_of_tap_postgres_are_published_without_a_copy(
    sandbox: Sandbox, tap_postgres: Path, empty_database_url: str
) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE sale (id bigint PRIMARY KEY, price numeric, name text)")
        connection.execute(
            "INSERT INTO sale SELECT n, n + 0.25, 'Zoë ' || n FROM generate_series(1, 250) n"
        )
    tap_files = sandbox.folder / "tap files"
    config = {
        # The tap needs a host and a password; the socket folder in the query overrides them.
        "sqlalchemy_url": empty_database_url.replace(
            "postgresql://postgres@", "postgresql+psycopg2://postgres:none@localhost"
        ),
        "filter_schemas": ["public"],
        "batch_config": {
            "encoding": {"format": "jsonl", "compression": "gzip"},
            "storage": {"root": f"file://{tap_files}", "prefix": "sale-"},
            "batch_size": 100,
        },
    }
    tap = [str(tap_postgres), "--config", _config(sandbox, "tap", **config)]
    tap += ["--catalog", _discover_and_select(sandbox, tap)]
    target = [*TARGET, "--config", _config(sandbox, "target", batch_roots=[str(tap_files)])]
    messages = program_output(*tap, env=sandbox.environment)
    program_output(*target, stdin=None, input=messages, env=sandbox.environment)
    sandbox.json_of("run")
    stream = "public-sale"
    records = sorted(
        json_records(sandbox.streams / stream / "batches"), key=lambda record: record["id"]
    )
    assert [record["id"] for record in records] == list(range(1, 251))
    assert (records[6]["price"], records[6]["name"]) == (7.25, "Zoë 7")
    assert len(list(tap_files.iterdir())) == 3
    assert not list((sandbox.home / "landing" / stream).iterdir())
    assert list(part_files(sandbox.streams / stream / "batches"))


def test_commands_of_the_singer_page_move_a_table(
    sandbox: Sandbox, tap_postgres: Path, empty_database_url: str, request: pytest.FixtureRequest
) -> None:
    """From a table by tap-postgres into our target, and from our tap into target-postgres."""
    targets = installed(request.config.cache.mkdir("singer-targets"))
    programs = [str(Path(sys.executable).parent), str(tap_postgres.parent), str(targets)]
    sandbox = sandbox.with_variables(PATH=os.pathsep.join([*programs, os.environ["PATH"]]))
    server = empty_database_url.removeprefix("postgresql://postgres@")
    address = f"postgres:none@localhost{server}"
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE sale (id bigint PRIMARY KEY, name text)")
        connection.execute("INSERT INTO sale VALUES (1, 'Zoë'), (2, 'Bo')")
        url = f"postgresql+psycopg2://{address}"
        tap = _config(sandbox, "tap", sqlalchemy_url=url, filter_schemas=["public"])
        _discover_and_select(sandbox, [str(tap_postgres), "--config", tap])
        _config(sandbox, "target", stream_names={"public-sale": "sale"})
        _run_page_block(sandbox, "target-batch-pipeline --config")
        assert json.loads((sandbox.folder / "state.json").read_text())["bookmarks"]
        _config(sandbox, "tap", mode="record")
        _config(sandbox, "state")
        url = f"postgresql+psycopg://{address}"
        _config(sandbox, "pg", sqlalchemy_url=url, default_target_schema="sales")
        _run_page_block(sandbox, "tap-batch-pipeline --config")
        rows = connection.execute("SELECT id, name FROM sales.sale ORDER BY id").fetchall()
    assert rows == [(1, "Zoë"), (2, "Bo")]


def _run_page_block(sandbox: Sandbox, command: str) -> None:
    """Run the commands of the page's block that contains a command."""
    page = [block.text for block in blocks("console") if block.page.stem == "singer"]
    [block] = [text for text in page if command in text]
    script = re.sub(r"^\$ ", "", block, flags=re.M)
    words = ("/bin/bash", "-e", "-o", "pipefail", "-c", script)
    program_output(*words, cwd=sandbox.folder, env=sandbox.environment)
