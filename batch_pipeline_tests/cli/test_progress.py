"""The progress bar of long commands on a real terminal, and its absence elsewhere."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.cli import cli, console
from batch_pipeline.model.progress import log
from batch_pipeline_tests.cli.commands import on_terminal
from batch_pipeline_tests.defs.checks_fixture import publish_all
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.load.target_scripts import GOOD, settings_of

HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"  # the cursor
ERASED = "\x1b[1A\x1b[2K"  # the line of the bar
# Commands, and the last description and count of their bars.
COMMANDS = [
    (("verify", "--deep"), "orders: comparing batches", "4"),
    (("gc",), "orders: removing files", "0 of 0"),
    (("plan", "orders"), "orders: registering files", "2"),
    (("reconcile", "--all"), "orders: comparing batches", "4"),
    (("load", "orders"), "orders: loading into good", "4 of 4"),
]


@pytest.fixture
def targets(tmp_path: Path) -> dict[str, Any]:
    """A working target."""
    return {"good": settings_of(tmp_path / "good", GOOD)}


@pytest.fixture
def project(project: DefsHarness) -> DefsHarness:
    """The stream `orders` with four published batches, two new files and a target."""
    publish_all(project)
    for name in ("13.csv", "14.csv"):
        path = project.folder / "landing/orders" / name
        path.write_text("id\n1\n")
        os.utime(path, (1_750_000_000, 1_750_000_000))
    return project


def shown(
    monkeypatch: pytest.MonkeyPatch, *words: str, term: str = "xterm", both: bool = False
) -> str:
    """Run a command whose standard error is a terminal, and return its output there.

    With `both`, its standard output is the same terminal.
    """
    with monkeypatch.context() as patch:
        # As if the process had started on this terminal.
        patch.setattr(console.err, "is_interactive", term != "dumb")
        patch.setenv("TERM", term)
        streams = ("stderr", "stdout") if both else ("stderr",)
        return on_terminal(patch, lambda: run(*words), *streams)


def run(*words: str) -> None:
    """Run a command. The load fails because the part files here have no valid content."""
    with pytest.raises(SystemExit) as exited:
        cli.main([*words], prog_name="batch-pipeline")
    assert exited.value.code == (3 if words[0] == "load" else 0), words


@pytest.mark.usefixtures("project")
def test_bar_is_shown_and_then_erased(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, description, count in COMMANDS:
        output = shown(monkeypatch, *words)
        before, _, last = output.rpartition(description)
        assert before, (words, output)
        assert f" {count} " in last.replace("\x1b[33m", ""), (words, last)
        assert (output.count(HIDDEN), output.count(SHOWN)) == (1, 1), words
        assert output.endswith(f"{SHOWN}\r{ERASED}"), (words, output[-80:])
        assert "\x1b" not in capsys.readouterr().out, words
    # Printed lines appear above the bar.
    output = shown(monkeypatch, "load", "orders", both=True)
    *lines, end = output.split(f"{SHOWN}\r{ERASED}")
    assert end == ""
    assert [line.partition("\r\n")[0][:10] for line in lines[1:]] == [
        "orders int",
        *(f"  {first:08}" for first in (1, 4, 7, 10)),
    ]


@pytest.mark.usefixtures("project")
def test_no_bar_without_a_terminal_or_on_a_dumb_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("gc")
    captured = capsys.readouterr()
    assert captured.out
    assert captured.err == ""
    assert shown(monkeypatch, "gc", term="dumb") == ""


@pytest.mark.usefixtures("project")
def test_verification_total_is_the_number_of_selected_batches(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for last, total in (("1000", 4), ("3", 3)):
        caplog.clear()
        with caplog.at_level(logging.INFO, log.name):
            run("verify", "--last", last)
        events = [
            vars(record) for record in caplog.records if record.getMessage() == "checking batches"
        ]
        assert (events[0]["done"], events[-1]["done"], events[-1]["total"]) == (0, total, total)
