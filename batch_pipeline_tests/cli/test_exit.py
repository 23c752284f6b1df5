import os
import shlex
import signal
import subprocess
import sys
from typing import Any

import pytest

from batch_pipeline.cli.dev import _stop_on_signals

PROGRAM = """
import atexit, os, sys, threading, time
from batch_pipeline import __main__, cli

def command():
    def late():
        time.sleep(0.2)
        print("thread")
    threading.Thread(target=late).start()
    atexit.register(print, "handler")
    class Torn:
        def __del__(self, write=os.write):
            write(1, b"torn down")
    sys.torn = Torn()
    sys.stderr.write("error output\\n")
    sys.stdout.write("no line end")
    {end}

cli.main = command
__main__.main()
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit()", 0), ("sys.exit(3)", 3)])
def test_exit_waits_for_threads_and_handlers_but_skips_teardown(end: str, code: int) -> None:
    result = run(end)
    assert result.returncode == code
    assert result.stdout == "no line endthread\nhandler\n"
    assert result.stderr == "error output\n"


def test_uncaught_exception_exits_as_usual() -> None:
    result = run("raise ValueError('unexpected')")
    assert result.returncode == 1
    assert "torn down" in result.stdout
    assert "ValueError: unexpected" in result.stderr


def test_forked_child_has_its_own_exit_code() -> None:
    result = run(
        "child = os.fork()\n    if not child: sys.exit(7)\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) - 7)"
    )
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("handler", "stops"), [(signal.default_int_handler, True), (signal.SIG_IGN, False)]
)
def test_closing_the_terminal_stops_dev_unless_nohup_started_it(handler: Any, stops: bool) -> None:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in signals}
    signal.signal(signal.SIGHUP, handler)
    try:
        stop = _stop_on_signals()
        signal.raise_signal(signal.SIGHUP)
    finally:
        for number, restored in before.items():
            signal.signal(number, restored)
    assert stop.is_set() is stops


PRINTED = "from batch_pipeline.cli.console import *\nwith exit_on_errors(''): {}('text')"


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "batch_pipeline", "--help"),
        ("-m", "batch_pipeline", "run", "--help"),
        ("-m", "batch_pipeline.cli.target", "--help"),
        ("-c", "from batch_pipeline.cli.tap import main; main()", "--about"),
        ("-c", PRINTED.format("say")),
        ("-c", PRINTED.format("print_json")),
    ],
)
def test_command_whose_output_is_closed_exits_like_other_filters(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as output:
        command = [sys.executable, *words]
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_error_into_a_closed_output_exits_like_other_filters() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as output:
        words = [sys.executable, "-m", "batch_pipeline", "init", "--from", "/nowhere"]
        done = subprocess.run(words, stdout=output, stderr=output, check=False)
    assert done.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("words", [f"-c {shlex.quote(PRINTED.format('say'))}", "-m {} --help"])
def test_command_whose_output_cannot_be_written_says_so(words: str) -> None:
    done = shell(f"{words} >/dev/full")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: The output cannot be written (No space left on device). Correct it and run the "
        "command again.\n"
    )


def test_command_without_an_output_exits_with_its_code() -> None:
    """`messages` and the end of each command flush the output."""
    for words in ("-m {} --version", "-m {} init --from /nowhere"):
        done = shell(f"{words} >&-")
        assert (done.returncode, done.stdout) == (int("init" in words), "")
        assert done.stderr.count("\n") == done.returncode, done.stderr


def test_output_in_a_locale_without_utf_8_escapes_what_it_lacks() -> None:
    statements = (
        "from batch_pipeline.cli.console import print_json, say",
        "say('Z\\u00fcrich \\u6f22')",
        "print_json({'Z\\u00fcrich': '\\u6f22'})",
    )
    program = PROGRAM.replace("{end}", "\n    ".join(statements))
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    text = done.stdout.decode("latin-1").removeprefix("no line end")
    assert text.splitlines()[:2] == ["Zürich \\u6f22", '{"Z\\u00fcrich": "\\u6f22"}']


def shell(words: str) -> "subprocess.CompletedProcess[str]":
    command = f"{shlex.quote(sys.executable)} {words.replace('{}', 'batch_pipeline')}"
    return subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)


def run(end: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM.replace("{end}", end)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
