import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    ("end", "code"), [("", 0), ("sys.exit()", 0), ("sys.exit(3)", 3), ("sys.exit(141)", 141)]
)
def test_exit_comes_after_threads_and_handlers_and_before_teardown(end: str, code: int) -> None:
    ended = run(end)
    assert ended.returncode == code
    assert ended.stdout == "no line endthread\nhandler\n"
    assert ended.stderr == "error output\n"


def test_uncaught_exception_ends_the_usual_way() -> None:
    ended = run("raise ValueError('unexpected')")
    assert ended.returncode == 1
    assert "torn down" in ended.stdout
    assert "ValueError: unexpected" in ended.stderr


def test_forked_child_does_not_end_with_the_code_of_its_parent() -> None:
    ended = run(
        "child = os.fork()\n    if not child: sys.exit(7)\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) - 7)"
    )
    assert ended.returncode == 0


def run(end: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM.replace("{end}", end)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
