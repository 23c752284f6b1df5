"""The bar of long commands on a real terminal, and nothing of it anywhere else."""

import logging
import os
import pty
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_pipeline.cli import cli, console
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.progress import log
from batch_pipeline_tests.defs.checks_fixture import publish_all
from batch_pipeline_tests.defs.defs_fixture import DefsScene, open_defs_scene
from batch_pipeline_tests.load.target_scripts import GOOD, settings_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"  # the cursor
ERASED = "\x1b[1A\x1b[2K"  # the line of the bar
# Commands, and what their bars say last.
COMMANDS = [
    (("verify", "--deep"), "orders: comparing batches", "4"),
    (("gc",), "orders: removing files", "0 of 0"),
    (("plan", "orders"), "orders: registering files", "2"),
    (("reconcile", "--all"), "orders: comparing batches", "4"),
    (("load", "orders"), "orders: loading into good", "4 of 4"),
]


@pytest.fixture
def scene(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsScene]:
    """The stream `orders` with four published batches, two new files and a target."""
    targets = {"good": settings_of(tmp_path / "good", GOOD)}
    with open_defs_scene(database, database_url, tmp_path, monkeypatch, targets=targets) as opened:
        publish_all(opened)
        for name in ("13.csv", "14.csv"):
            path = tmp_path / "landing/orders" / name
            path.write_text("id\n1\n")
            os.utime(path, (1_750_000_000, 1_750_000_000))
        yield opened


def on_terminal(
    monkeypatch: pytest.MonkeyPatch, *words: str, term: str = "xterm", both: bool = False
) -> str:
    """Run a command in this process, its standard error a terminal, and give what that was sent.

    With `both`, its standard output is the same terminal.
    """
    ours, theirs = pty.openpty()
    sent: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65_536):
                sent.append(data)
        except OSError:  # the other end is closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        if both:
            patch.setattr(sys, "stdout", stream)
        # As if it had begun on this terminal.
        patch.setattr(console.err, "is_interactive", term != "dumb")
        patch.setenv("TERM", term)
        run(*words)
    reader.join()
    os.close(ours)
    return b"".join(sent).decode()


def run(*words: str) -> None:
    """Run a command to its end; the part files here are none that a target could be sent."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*words], prog_name="batch-pipeline")
    assert ended.value.code == (3 if words[0] == "load" else 0), words


@pytest.mark.usefixtures("scene")
def test_bar_of_each_long_command_shows_and_ends_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Expect stream, work and count while it runs; then its line erased and the cursor back."""
    for words, doing, count in COMMANDS:
        shown = on_terminal(monkeypatch, *words)
        before, _, last = shown.rpartition(doing)
        assert before, (words, shown)
        assert f" {count} " in last.replace("\x1b[33m", ""), (words, last)
        assert (shown.count(HIDDEN), shown.count(SHOWN)) == (1, 1), words
        assert shown.endswith(f"{SHOWN}\r{ERASED}"), (words, shown[-80:])
        assert "\x1b" not in capsys.readouterr().out, words


@pytest.mark.usefixtures("scene")
def test_pipe_gets_nothing_of_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """Expect the facts on standard output alone."""
    for words, _, _ in COMMANDS:
        run(*words)
        captured = capsys.readouterr()
        assert captured.out, words
        assert captured.err == "", words


@pytest.mark.usefixtures("scene")
def test_terminal_that_cannot_erase_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect silence on one that calls itself dumb."""
    assert on_terminal(monkeypatch, "gc", term="dumb") == ""


@pytest.mark.usefixtures("scene")
def test_lines_that_a_command_prints_meanwhile_stand_above_its_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Expect each line where the bar was erased, and the bar below it once more."""
    shown = on_terminal(monkeypatch, "load", "orders", both=True)
    *lines, end = shown.split(f"{SHOWN}\r{ERASED}")
    assert end == ""
    assert [line.partition("\r\n")[0][:10] for line in lines[1:]] == [
        "orders int",
        *(f"  {first:08}" for first in (1, 4, 7, 10)),
    ]


@pytest.mark.parametrize(("last", "total"), [("1000", 4), ("3", 3)])
@pytest.mark.usefixtures("scene")
def test_total_of_a_verification_is_what_it_looks_at(
    caplog: pytest.LogCaptureFixture, last: str, total: int
) -> None:
    """Expect all published batches, or as many as are asked for."""
    with caplog.at_level(logging.INFO, log.name):
        run("verify", "--last", last)
    told = [vars(one) for one in caplog.records if one.getMessage() == "looking at batches"]
    assert (told[0]["done"], told[-1]["done"], told[-1]["total"]) == (0, total, total)
