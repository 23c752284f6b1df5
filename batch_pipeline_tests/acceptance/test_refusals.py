"""Errors before a command starts its work: one message, quickly, with the next step."""

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

SECRET = "correct-horse-battery"  # noqa: S105 - not a real password


def test_unreachable_spark_is_refused(sandbox: Sandbox, database_url: str) -> None:
    _land_orders(sandbox)
    sandbox = sandbox.with_variables(
        BATCH_PIPELINE_INVENTORY_CONN=database_url,
        BATCH_PIPELINE_SPARK_REMOTE=f"sc://127.0.0.1:1/;token={SECRET}",
    )
    result = sandbox.run("run")
    _check_refusal(result, 75, "sc://", "BATCH_PIPELINE_SPARK_REMOTE", "Connection refused")
    assert SECRET not in result.stdout + result.stderr
    assert manifests(sandbox.storage("orders")) == []
    assert unaccounted_files(sandbox.storage("orders")) == []


def test_refused_database_connection_is_reported(sandbox: Sandbox) -> None:
    _land_orders(sandbox)
    connection = f"postgresql://ann:{SECRET}@127.0.0.1:1/inventory"
    sandbox = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=connection)
    result = sandbox.run("run")
    _check_refusal(result, 75, "127.0.0.1:1/inventory", "BATCH_PIPELINE_INVENTORY_CONN")
    assert SECRET not in result.stdout + result.stderr
    assert not _contains(sandbox.home, SECRET)


def test_unresponsive_database_is_refused(sandbox: Sandbox) -> None:
    """The port accepts connections and never answers."""
    _land_orders(sandbox)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        connection = f"postgresql://ann:{SECRET}@{address}/inventory"
        sandbox = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=connection)
        result = sandbox.run("status")
    _check_refusal(result, 75, address)
    assert SECRET not in result.stdout + result.stderr


def test_database_without_inventory_names_migrate(sandbox: Sandbox, server_url: str) -> None:
    _land_orders(sandbox)
    with _new_database(server_url) as url:
        sandbox = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=url)
        result = sandbox.run("run")
        _check_refusal(result, 1, "no inventory schema", "batch-pipeline migrate")
        assert _tables(url) == 0
        migrated = sandbox.json_of("migrate")
        assert migrated["before"] == "none"
        assert sandbox.json_of("migrate")["before"] == migrated["after"]
        [status] = sandbox.json_of("status")["streams"]
        assert status["batches"]["published"] == 0


def test_typo_in_a_stream_file_suggests_the_key(sandbox: Sandbox) -> None:
    path = sandbox.write_stream("orders")
    text = path.read_text().replace("max_count", "max_cuont")
    path.write_text(text)
    line = text.split("max_cuont")[0].count("\n") + 1
    _check_refusal(sandbox.run("run"), 1, f"{path}:{line}:", "`max_cuont`", "`max_count`")


def test_duplicate_stream_name_error_names_both_files(sandbox: Sandbox) -> None:
    first = sandbox.write_stream("orders")
    other = sandbox.streams / "other" / "defs.yaml"
    other.parent.mkdir()
    other.write_text(first.read_text())
    _check_refusal(sandbox.run("status"), 1, str(first), str(other), "orders")


def test_missing_streams_folder_is_refused(sandbox: Sandbox) -> None:
    missing = sandbox.folder / "none"
    result = sandbox.with_variables(BATCH_PIPELINE_STREAMS=str(missing)).run("run")
    _check_refusal(result, 1, str(missing), "BATCH_PIPELINE_STREAMS", "batch-pipeline demo")


@pytest.mark.parametrize("command", ["run", "plan", "status", "messages"])
def test_unknown_stream_error_lists_known_streams(sandbox: Sandbox, command: str) -> None:
    sandbox.write_stream("orders")
    sandbox.write_stream("refunds")
    result = sandbox.run(command, "order")
    _check_refusal(result, 1, "No stream 'order'", "orders, refunds")


def test_home_that_is_a_file_is_refused(sandbox: Sandbox) -> None:
    sandbox.write_stream("orders")
    sandbox.home.write_text("not a folder")
    _check_refusal(sandbox.run("status"), 1, str(sandbox.home), "BATCH_PIPELINE_HOME")


def _check_refusal(result: CompletedCommand, exit_code: int, *words: str) -> None:
    """Assert one error message with all words, and no traceback."""
    assert result.returncode == exit_code, result.stderr
    assert result.stderr.count("Error: ") == 1
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def _land_orders(sandbox: Sandbox) -> None:
    sandbox.write_stream("orders")
    sandbox.land("orders", {"a.csv": b"id\n1\n"})


@contextmanager
def _new_database(server_url: str) -> Iterator[str]:
    name = sql.Identifier(f"plain_{uuid4().hex}")
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
    yield server_url.replace("/postgres?", f"/{name.as_string(None).strip(chr(34))}?")
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def _tables(url: str) -> int:
    count = "SELECT count(*) FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'"
    with psycopg.connect(url) as connection:
        [table_count] = connection.execute(count).fetchone() or (0,)
        return int(table_count)


def _contains(folder: Path, word: str) -> bool:
    return any(word.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
