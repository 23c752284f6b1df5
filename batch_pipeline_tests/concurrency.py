"""Threads that start at the same time, and processes that can be killed, for tests of races."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import TypeVar

import psutil
import psycopg

from batch_pipeline.model.failpoint import VARIABLE

_Result = TypeVar("_Result")
# Forks processes that have imported what most scripts need; importing it takes them a second.
_FORK_SERVER = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload(["batch_pipeline_tests.inventory.operations_fixture"])
_TIMEOUT_SECONDS = 300.0  # longer than any machine needs
_PROJECT = Path(__file__).parents[1]  # where scripts find the modules of the tests
_SESSIONS = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def together(*calls: Callable[[], _Result]) -> list[_Result | Exception]:
    """Run each call in its own thread, all at the same time; return results or errors in order."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], _Result]) -> _Result | Exception:
        barrier.wait(_TIMEOUT_SECONDS)
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the caller checks it
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition of another process or of the server is true; fail after a timeout."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)


def is_running(process: psutil.Process) -> bool:
    """Return whether a process is running. A zombie is not, but init may take long to reap it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run_python(script: str, *arguments: str, failpoints: str = "") -> int:
    """Run a script in a forked process and return its exit code, negative for a signal.

    Also wait until its sessions on databases given as `arguments` have ended, because a busy server
    needs time to detect that a process was killed.
    """
    sessions_before = {url: _sessions(url) for url in arguments if url.startswith("postgresql://")}
    environment = os.environ | {VARIABLE: failpoints}
    process = _FORK_SERVER.Process(target=_run_script, args=(script, arguments, environment))
    process.start()
    process.join(_TIMEOUT_SECONDS)
    exit_code = process.exitcode
    process.kill()  # does nothing unless the time is over
    assert exit_code is not None, "the script did not end"
    eventually(lambda: all(_sessions(url) <= existing for url, existing in sessions_before.items()))
    return exit_code


def _run_script(script: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = ["-c", *arguments]
    exec(script, {"__name__": "__main__"})  # noqa: S102 - a script of a test


def _sessions(url: str) -> set[int]:
    """Return the pids of all other sessions on a database."""
    with psycopg.connect(url) as connection:
        return {pid for (pid,) in connection.execute(_SESSIONS)}


@contextmanager
def python(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a script that communicates by lines, and kill it at the end of the block."""
    command = [sys.executable, "-u", "-c", script, *arguments]
    with subprocess.Popen(
        command, cwd=_PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def next_line(child: subprocess.Popen[str]) -> str:
    """Return the next line that a child prints."""
    assert child.stdout is not None
    return child.stdout.readline().strip()
