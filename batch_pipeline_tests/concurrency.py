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

import psutil
import psycopg

from batch_pipeline.model.failpoint import VARIABLE

_Result = TypeVar("_Result")
_PATIENCE_SECONDS = 300.0  # longer than any machine needs
_PROJECT = Path(__file__).parents[1]  # where scripts find the tests' own modules
_SESSIONS = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


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


def is_running(process: psutil.Process) -> bool:
    """Return whether a process has not ended; a zombie has, and init may take long to reap it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run_python(script: str, *arguments: str, failpoints: str = "") -> int:
    """Run a script in a process of its own and give its exit code, negative for a signal.

    Then its sessions on the databases whose URLs it got have ended, too: a server that has much to
    do takes a while to see that a killed process is gone.
    """
    command = [sys.executable, "-c", script, *arguments]
    environment = os.environ | {VARIABLE: failpoints}
    before = {url: _sessions(url) for url in arguments if url.startswith("postgresql://")}
    code = subprocess.run(
        command, cwd=_PROJECT, env=environment, timeout=_PATIENCE_SECONDS, check=False
    ).returncode
    eventually(lambda: all(_sessions(url) <= others for url, others in before.items()))
    return code


def _sessions(url: str) -> set[int]:
    """Give the numbers of all sessions on a database but the one that asks."""
    with psycopg.connect(url) as connection:
        return {pid for (pid,) in connection.execute(_SESSIONS)}


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
