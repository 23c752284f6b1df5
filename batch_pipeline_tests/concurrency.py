"""Threads that start together and processes that can be killed: what tests of races stand on."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import TypeVar

from batch_pipeline.domain.failpoint import VARIABLE

_Result = TypeVar("_Result")
_PATIENCE_SECONDS = 300.0  # longer than any machine needs
_PROJECT = Path(__file__).parents[1]  # where scripts find the tests' own modules


def together(*calls: Callable[[], _Result]) -> list[_Result | Exception]:
    """Run each call in a thread of its own, all let go at once; give results or errors in order."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], _Result]) -> _Result | Exception:
        barrier.wait(_PATIENCE_SECONDS)
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the test judges it
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def eventually(condition: Callable[[], bool]) -> None:
    """Ask until a condition of another process or of the server holds; fail when it never does."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def run_python(script: str, *arguments: str, failpoints: str = "") -> int:
    """Run a script in a process of its own and give its exit code, negative for a signal."""
    command = [sys.executable, "-c", script, *arguments]
    environment = os.environ | {VARIABLE: failpoints}
    return subprocess.run(
        command, cwd=_PROJECT, env=environment, timeout=_PATIENCE_SECONDS, check=False
    ).returncode


@contextmanager
def python(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a script that talks by lines; whatever is left of it dies with the block."""
    command = [sys.executable, "-u", "-c", script, *arguments]
    with subprocess.Popen(
        command, cwd=_PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def said(child: subprocess.Popen[str]) -> str:
    """Wait for the next line that a child prints."""
    assert child.stdout is not None
    return child.stdout.readline().strip()
