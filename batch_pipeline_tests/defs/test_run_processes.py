"""Processes of runs and servers: health checks, termination and orphans."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.events import EngineEventData
from dagster._core.launcher.base import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG

from batch_pipeline.defs.instance.launcher import LocalRunLauncher
from batch_pipeline.defs.instance.servers import GuardedServer, stop
from batch_pipeline_tests.concurrency import is_running

SLEEP = "import time; time.sleep(600)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that sleeps."""
    process = subprocess.Popen([sys.executable, "-c", SLEEP])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def launcher() -> Iterator[LocalRunLauncher]:
    """The run launcher of an instance."""
    opened = LocalRunLauncher()
    with dg.DagsterInstance.ephemeral() as instance:
        opened.register_instance(instance)
        yield opened


@dg.job
def nothing() -> None:
    """Do nothing."""


def started_run(launcher: LocalRunLauncher, pid: int, server: dict[str, object]) -> dg.DagsterRun:
    """Return a run whose process has reported its id."""
    tags = {GRPC_INFO_TAG: json.dumps(server)}
    run = launcher._instance.create_run_for_job(nothing, tags=tags)
    event = EngineEventData.in_process(pid)
    launcher._instance.report_engine_event("Started process for run", run, event)
    return run


def test_run_with_a_dead_process_fails_its_health_check(
    launcher: LocalRunLauncher, sleeper: "subprocess.Popen[bytes]"
) -> None:
    run = started_run(launcher, sleeper.pid, {"host": "localhost", "socket": "/tmp/code.sock"})  # noqa: S108 - a name only
    assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING
    sleeper.kill()
    sleeper.wait()
    health = launcher.check_run_worker_health(run)
    assert health.status is WorkerStatus.FAILED
    assert "its process exited without reporting" in str(health)


def test_run_on_another_machine_or_without_a_process_is_healthy(launcher: LocalRunLauncher) -> None:
    """Its process id is meaningless here; until it has one, Dagster's start timeout applies."""
    elsewhere = started_run(launcher, 2**22 + 1, {"host": "worker-7", "port": 4000})
    for run in (elsewhere, launcher._instance.create_run_for_job(nothing)):
        assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING


def test_run_without_its_code_server_can_be_terminated(
    launcher: LocalRunLauncher, sleeper: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    socket = str(tmp_path / "gone.sock")
    run = started_run(launcher, sleeper.pid, {"host": "localhost", "socket": socket})
    assert launcher.terminate(run.run_id)
    assert sleeper.wait() == -signal.SIGTERM
    ended = launcher._instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status is dg.DagsterRunStatus.CANCELING


def test_stop_terminates_orphans_of_a_killed_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", PARENT]
    server = GuardedServer.start("server", command, {}, log)
    while not log.read_text().endswith("\n"):
        assert server.exit_code is None
    orphan = psutil.Process(int(log.read_text()))
    [parent] = [process for process in server.family() if process.pid != orphan.pid]
    parent.kill()
    while server.exit_code is None:
        assert is_running(orphan)
    assert server.exit_code == 137
    assert is_running(orphan)
    stop([server])
    assert not is_running(orphan)
