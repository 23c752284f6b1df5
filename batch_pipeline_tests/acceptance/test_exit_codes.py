"""Exit codes of the real command. Code 3 is tested with `run`, `load` and `verify`."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    Sandbox,
    command,
    process_names,
    wait_until,
)
from batch_pipeline_tests.seeds import query

RUNNING = "SELECT count(*) FROM batch_pipeline.attempt WHERE status = 'running'"
UNREACHABLE = "postgresql://ann@127.0.0.1:1/inventory"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--version",), 0, ""),
        (("status", "refunds"), 1, "No stream 'refunds'"),
        (("status", "--colour"), 2, "No such option"),
        (("status", "orders"), 75, "127.0.0.1:1/inventory"),
    ],
)
def test_exit_code_and_message_of_each_outcome(
    sandbox: Sandbox, words: tuple[str, ...], code: int, message: str
) -> None:
    sandbox.write_stream("orders")
    result = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=UNREACHABLE).run(*words)
    assert result.returncode == code, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr


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


def test_interrupted_command_exits_130(sandbox: Sandbox) -> None:
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
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_SECONDS) == 130
    assert "Error: Interrupted." in sandbox.output.read_text()


def test_closed_pipe_exits_141_without_a_message(sandbox: Sandbox) -> None:
    """As in `… | head`: 128 + SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        command("status", "-h"),
        env=sandbox.environment,
        cwd=sandbox.folder,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=LONGEST_SECONDS,
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("moment", ["starting Dagster's step", "starting Spark", "encoding"])
def test_interrupted_run_prints_one_message_and_no_traceback(
    sandbox: Sandbox, database: Database, database_url: str, moment: str
) -> None:
    """A terminal sends Ctrl-C to the whole process group, which includes Dagster's processes."""
    sandbox.write_stream("orders")
    sandbox.land("orders", {"1.csv": b"id\n1\n"})
    # The installed script, because `python -m` may be terminated by the signal itself.
    script = Path(sys.executable).with_name("batch-pipeline")
    sandbox = replace(sandbox, program=(str(script),)).with_variables(
        BATCH_PIPELINE_INVENTORY_CONN=database_url,
        BATCH_PIPELINE_FAILPOINTS="encode.after_claim=sleep:600",
    )
    process = sandbox.start("run")
    wait_until(lambda: _has_reached(moment, sandbox, database), moment, pause_seconds=0.02)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(LONGEST_SECONDS) == 130
    assert sandbox.output.read_text().strip() == (
        "Error: Interrupted. Open attempts were closed; run the same command again to continue."
    )
    assert query(database, RUNNING) == [(0,)]


def _has_reached(moment: str, sandbox: Sandbox, database: Database) -> bool:
    if moment == "encoding":
        return query(database, RUNNING) == [(1,)]
    word = "watch_orphans" if moment == "starting Dagster's step" else "/java "
    return any(word in line for line in process_names(sandbox.processes()))
