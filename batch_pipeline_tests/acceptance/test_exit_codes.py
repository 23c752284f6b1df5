"""Exit codes and messages of the real command. Code 3 is tested with `run`, `load`, `verify`."""

import os
import pty
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    CompletedCommand,
    Sandbox,
    command,
    files_below,
    process_names,
    run_program,
    wait_until,
)
from batch_pipeline_tests.seeds import has_lock_waiters, query

RUNNING = "SELECT count(*) FROM batch_pipeline.attempt WHERE status = 'running'"
SECRET = "correct-horse-battery"  # noqa: S105 - not a real password
UNREACHABLE = {"BATCH_PIPELINE_INVENTORY_CONN": f"postgresql://ann:{SECRET}@127.0.0.1:1/inventory"}
NO_STREAMS = {"BATCH_PIPELINE_STREAMS": "/nowhere"}
# What the command does with an error, without the imports of a command.
FAILING = """
from batch_pipeline.cli.console import exit_on_errors
from batch_pipeline.model.errors import ConfigurationError

with exit_on_errors(""):
    raise ConfigurationError("No stream")
"""


def check_error(result: CompletedCommand, code: int, *messages: str) -> None:
    """Assert one error message unless the code is 0, and no traceback or password."""
    assert result.returncode == code, result.stderr
    assert result.stderr.count("Error: ") == (code != 0)
    assert "Traceback" not in result.stderr
    assert SECRET not in result.stdout + result.stderr
    for message in messages:
        assert message in result.stderr


@pytest.mark.parametrize(
    ("words", "variables", "code", "messages"),
    [
        (("status", "order"), {}, 1, ["No stream 'order'", "orders, refunds"]),
        (("run",), NO_STREAMS, 1, ["/nowhere", *NO_STREAMS, "batch-pipeline demo"]),
        (("status", "--colour"), {}, 2, ["No such option"]),
        (("status", "orders"), UNREACHABLE, 75, ["127.0.0.1:1/inventory", *UNREACHABLE]),
    ],
)
def test_exit_code_and_message_of_each_outcome(
    sandbox: Sandbox,
    words: tuple[str, ...],
    variables: dict[str, str],
    code: int,
    messages: list[str],
) -> None:
    sandbox.write_stream("orders")
    sandbox.write_stream("refunds")
    check_error(sandbox.with_variables(**variables).run(*words), code, *messages)


def test_unreachable_spark_exits_75_and_publishes_nothing(
    sandbox: Sandbox, database_url: str
) -> None:
    name, remote = "BATCH_PIPELINE_SPARK_REMOTE", f"sc://127.0.0.1:1/;token={SECRET}"
    sandbox.write_stream("orders")
    sandbox.land("orders", {"a.csv": b"id\n1\n"})
    # Spark's client may print to the standard error of the process.
    sandbox = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=database_url, **{name: remote})
    check_error(sandbox.run("run"), 75, "sc://", name, "Connection refused")
    assert [*files_below(sandbox.storage("orders"))] == []


def test_database_that_accepts_connections_and_never_answers_exits_75(sandbox: Sandbox) -> None:
    sandbox.write_stream("orders")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        connection = f"postgresql://ann:{SECRET}@{address}/inventory"
        sandbox = sandbox.in_process(BATCH_PIPELINE_INVENTORY_CONN=connection)
        check_error(sandbox.run("status"), 75, address)


def test_database_without_inventory_exits_1_and_names_migrate(
    sandbox: Sandbox, empty_database_url: str
) -> None:
    count = "SELECT count(*) FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'"
    sandbox.write_stream("orders")
    sandbox = sandbox.in_process(BATCH_PIPELINE_INVENTORY_CONN=empty_database_url)
    check_error(sandbox.run("status"), 1, "no inventory schema", "batch-pipeline migrate")
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute(count).fetchone() == (0,)
    migrated = sandbox.json_of("migrate")
    assert migrated["before"] == "none"
    assert sandbox.json_of("migrate")["before"] == migrated["after"]
    [status] = sandbox.json_of("status")["streams"]
    assert status["batches"]["published"] == 0


@pytest.mark.parametrize(
    ("variables", "has_colour"),
    [
        ({"TERM": "xterm", "NO_COLOR": None}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb", "NO_COLOR": None}, False),
    ],
    ids=["usual", "no colour", "dumb"],
)
def test_error_is_red_only_on_terminals_with_colours(
    sandbox: Sandbox, variables: dict[str, str | None], has_colour: bool
) -> None:
    master, slave = pty.openpty()
    environment = sandbox.with_variables(**variables).environment
    streams = {"capture_output": False, "stdout": slave, "stderr": slave}
    result = run_program(sys.executable, "-c", FAILING, env=environment, **streams)
    os.close(slave)
    text = ""
    with suppress(OSError):  # the other end is closed
        while True:
            text += os.read(master, 65_536).decode()
    os.close(master)
    assert result.returncode == 1
    assert text.replace("\x1b[31m", "").startswith("Error: No stream")
    assert ("\x1b[31m" in text, "\x1b" in text) == (has_colour, has_colour)


def test_interrupt_during_imports_exits_130_with_one_message(tmp_path: Path) -> None:
    """A fake `click` module sends the signal during the imports."""
    (tmp_path / "click.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    result = subprocess.run(
        command("status"),
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 130
    assert result.stderr == "Error: Interrupted before the command started. Nothing was changed.\n"


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_command_exits_130(sandbox: Sandbox, signal_number: signal.Signals) -> None:
    sandbox.write_stream("orders")
    state = sandbox.folder / "state.json"
    os.mkfifo(state)
    process = sandbox.start("messages", "orders", "--state", str(state))
    command_process = psutil.Process(process.pid)
    with state.open("w"):  # returns once the command has opened it for reading
        # A signal between opening and reading would be handled only after the read.
        wait_until(
            lambda: command_process.status() == psutil.STATUS_SLEEPING,
            "the command reads its state",
        )
        process.send_signal(signal_number)
        assert process.wait(LONGEST_SECONDS) == 130
    assert "Error: Interrupted." in sandbox.output.read_text()


@pytest.mark.parametrize(
    ("moment", "signal_number"),
    [
        ("waiting for a lock", signal.SIGINT),
        ("starting Spark", signal.SIGINT),
        ("claiming", signal.SIGINT),
        ("encoding", signal.SIGINT),
        pytest.param("starting Dagster's step", signal.SIGINT, marks=pytest.mark.long),
        pytest.param("encoding", signal.SIGTERM, marks=pytest.mark.long),
    ],
)
def test_interrupted_run_prints_one_message_and_no_traceback(
    sandbox: Sandbox,
    database: Database,
    database_url: str,
    warm_spark: str,
    moment: str,
    signal_number: signal.Signals,
) -> None:
    """A terminal sends Ctrl-C to the whole process group, which includes Dagster's and Spark's."""
    sandbox.write_stream("orders")
    sandbox.land("orders", {"1.csv": b"id\n1\n"})
    # The installed script, because `python -m` may be terminated by the signal itself.
    script = Path(sys.executable).with_name("batch-pipeline")
    has_own_spark = moment in ("starting Spark", "encoding")
    failpoint = "claim.after_commit" if moment == "claiming" else "encode.after_claim"
    sandbox = replace(sandbox, program=(str(script),)).with_variables(
        BATCH_PIPELINE_INVENTORY_CONN=database_url,
        BATCH_PIPELINE_FAILPOINTS=f"{failpoint}=sleep:600",
        BATCH_PIPELINE_SPARK_REMOTE=None if has_own_spark else warm_spark,
    )
    with database.engine.begin() as connection:
        if moment == "waiting for a lock":
            connection.execute(sa.text("LOCK TABLE batch_pipeline.item IN SHARE MODE"))
        process = sandbox.start("run")
        wait_until(lambda: _has_reached(moment, sandbox, database), moment, pause_seconds=0.02)
        send = os.killpg if signal_number is signal.SIGINT else os.kill
        send(process.pid, signal_number)
        code = process.wait(LONGEST_SECONDS)
    message = "Interrupted. Open attempts were closed; run the same command again to continue."
    assert (code, sandbox.output.read_text().strip()) == (130, f"Error: {message}")
    assert query(database, RUNNING) == [(0,)]


def _has_reached(moment: str, sandbox: Sandbox, database: Database) -> bool:
    if moment in ("claiming", "encoding"):
        return query(database, RUNNING) == [(1,)]
    if moment == "waiting for a lock":
        return has_lock_waiters(database)
    word = "watch_orphans" if moment == "starting Dagster's step" else "/java "
    return any(word in line for line in process_names(sandbox.processes()))
