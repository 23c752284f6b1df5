"""Exit codes of the real command, each once; those of batches that failed are with their commands.

3 is tested with `run`, `load` and `verify`.
"""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

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
NOBODY = "postgresql://ann@127.0.0.1:1/inventory"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--version",), 0, ""),
        (("status", "refunds"), 1, "No stream 'refunds'"),
        (("status", "--colour"), 2, "No such option"),
        (("status", "orders"), 75, "127.0.0.1:1/inventory"),
    ],
)
def test_command_leaves_the_code_of_what_happened(
    sandbox: Sandbox, words: tuple[str, ...], code: int, said: str
) -> None:
    sandbox.write_stream("orders")
    ended = sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=NOBODY).run(*words)
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_command_interrupted_while_it_imports_leaves_130_and_one_line(tmp_path: Path) -> None:
    """A module in place of `click` sends the signal in the middle of the imports."""
    (tmp_path / "click.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    ended = subprocess.run(
        command("status"),
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 130
    assert ended.stderr == "Error: Interrupted before the command started. Nothing was changed.\n"


def test_interrupted_command_leaves_130(sandbox: Sandbox) -> None:
    sandbox.write_stream("orders")
    state = sandbox.folder / "state.json"
    os.mkfifo(state)
    process = sandbox.start("messages", "orders", "--state", str(state))
    with state.open("w"):  # it is opened for reading now
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_SECONDS) == 130
    assert "Error: Interrupted." in sandbox.output.read_text()


def test_command_whose_reader_is_gone_ends_as_a_filter_does(sandbox: Sandbox) -> None:
    """As in `… | head`: the exit code is 128 + SIGPIPE, without a message."""
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
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
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("moment", ["starting Dagster's step", "starting Spark", "encoding"])
def test_interrupted_run_prints_one_message_and_no_traceback(
    sandbox: Sandbox, database: Database, database_url: str, moment: str
) -> None:
    """A terminal sends Ctrl-C to the whole process group, which includes Dagster's processes."""
    sandbox.write_stream("orders")
    sandbox.land("orders", {"1.csv": b"id\n1\n"})
    # The installed script: `python -m` may end by the signal itself, whatever exit code is wanted.
    script = Path(sys.executable).with_name("batch-pipeline")
    sandbox = replace(sandbox, program=(str(script),)).with_variables(
        BATCH_PIPELINE_INVENTORY_CONN=database_url,
        BATCH_PIPELINE_FAILPOINTS="encode.after_claim=sleep:600",
    )
    process = sandbox.start("run")
    wait_until(lambda: _has_come(moment, sandbox, database), moment, pause_seconds=0.02)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(LONGEST_SECONDS) == 130
    assert sandbox.output.read_text().strip() == (
        "Error: Interrupted. Open attempts were closed; run the same command again to continue."
    )
    assert query(database, RUNNING) == [(0,)]


def _has_come(moment: str, sandbox: Sandbox, database: Database) -> bool:
    if moment == "encoding":
        return query(database, RUNNING) == [(1,)]
    word = "watch_orphans" if moment == "starting Dagster's step" else "/java "
    return any(word in line for line in process_names(sandbox.processes()))
