"""What a command refuses before it begins: one message, at once, with the next step."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from batch_pipeline_tests.acceptance.sandbox import (
    CompletedCommand,
    Sandbox,
    manifests,
    unaccounted_files,
)

SECRET = "correct-horse-battery"  # noqa: S105 - a word to look for, it opens nothing


def test_spark_that_is_not_there_is_told_soon(sandbox: Sandbox, database_url: str) -> None:
    _land_orders(sandbox)
    sandbox = sandbox.with_variables(
        BATCH_PIPELINE_INVENTORY_CONN=database_url,
        BATCH_PIPELINE_SPARK_REMOTE=f"sc://127.0.0.1:1/;token={SECRET}",
    )
    ended = sandbox.run("run")
    _check_refusal(ended, 75, "sc://", "BATCH_PIPELINE_SPARK_REMOTE", "Connection refused")
    assert SECRET not in ended.stdout + ended.stderr
    assert manifests(sandbox.storage("orders")) == []
    assert unaccounted_files(sandbox.storage("orders")) == []


def test_database_that_refuses_is_told_soon(sandbox: Sandbox) -> None:
    _land_orders(sandbox)
    connection = f"postgresql://ann:{SECRET}@127.0.0.1:1/inventory"
    sandbox = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=connection)
    ended = sandbox.run("run")
    _check_refusal(ended, 75, "127.0.0.1:1/inventory", "BATCH_PIPELINE_INVENTORY_CONN")
    assert SECRET not in ended.stdout + ended.stderr
    assert not _mentions(sandbox.home, SECRET)


def test_database_that_says_nothing_is_told_soon(sandbox: Sandbox) -> None:
    """The port accepts connections and never answers."""
    _land_orders(sandbox)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        connection = f"postgresql://ann:{SECRET}@{address}/inventory"
        sandbox = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=connection)
        ended = sandbox.run("status")
    _check_refusal(ended, 75, address)
    assert SECRET not in ended.stdout + ended.stderr


def test_database_without_inventory_asks_for_migrate(sandbox: Sandbox, server_url: str) -> None:
    _land_orders(sandbox)
    with _plain_database(server_url) as url:
        sandbox = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=url)
        ended = sandbox.run("run")
        _check_refusal(ended, 1, "no inventory schema", "batch-pipeline migrate")
        assert _tables(url) == 0
        migrated = sandbox.json_of("migrate")
        assert migrated["before"] == "none"
        assert sandbox.json_of("migrate")["before"] == migrated["after"]
        [status] = sandbox.json_of("status")["streams"]
        assert status["batches"]["published"] == 0


def test_stream_file_with_a_typo_names_file_line_and_key(sandbox: Sandbox) -> None:
    """The message suggests the key that was meant."""
    path = sandbox.write_stream("orders")
    text = path.read_text().replace("max_count", "max_cuont")
    path.write_text(text)
    line = text.split("max_cuont")[0].count("\n") + 1
    _check_refusal(sandbox.run("run"), 1, f"{path}:{line}:", "`max_cuont`", "`max_count`")


def test_two_stream_files_with_one_name_name_each_other(sandbox: Sandbox) -> None:
    one = sandbox.write_stream("orders")
    other = sandbox.streams / "other" / "defs.yaml"
    other.parent.mkdir()
    other.write_text(one.read_text())
    _check_refusal(sandbox.run("status"), 1, str(one), str(other), "orders")


def test_no_streams_folder_says_what_to_write(sandbox: Sandbox) -> None:
    missing = sandbox.folder / "none"
    ended = sandbox.with_variables(BATCH_PIPELINE_STREAMS=str(missing)).run("run")
    _check_refusal(ended, 1, str(missing), "BATCH_PIPELINE_STREAMS", "batch-pipeline demo")


@pytest.mark.parametrize("command", ["run", "plan", "status", "messages"])
def test_unknown_stream_lists_the_known_ones(sandbox: Sandbox, command: str) -> None:
    sandbox.write_stream("orders")
    sandbox.write_stream("refunds")
    ended = sandbox.run(command, "order")
    _check_refusal(ended, 1, "No stream 'order'", "orders, refunds")


def test_home_that_is_a_file_is_refused(sandbox: Sandbox) -> None:
    sandbox.write_stream("orders")
    sandbox.home.write_text("not a folder")
    _check_refusal(sandbox.run("status"), 1, str(sandbox.home), "BATCH_PIPELINE_HOME")


def _check_refusal(ended: CompletedCommand, exit_code: int, *words: str) -> None:
    """Check for one message that holds all words, no traceback, nothing on standard output."""
    assert ended.returncode == exit_code, ended.stderr
    assert ended.stderr.count("Error: ") == 1
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in ended.stderr


def _land_orders(sandbox: Sandbox) -> None:
    sandbox.write_stream("orders")
    sandbox.land("orders", {"a.csv": b"id\n1\n"})


@contextmanager
def _plain_database(server_url: str) -> Iterator[str]:
    name = sql.Identifier(f"plain_{uuid4().hex}")
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
    yield server_url.replace("/postgres?", f"/{name.as_string(None).strip(chr(34))}?")
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def _tables(url: str) -> int:
    count = "SELECT count(*) FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'"
    with psycopg.connect(url) as connection:
        [found] = connection.execute(count).fetchone() or (0,)
        return int(found)


def _mentions(folder: Path, word: str) -> bool:
    return any(word.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
