"""Servers and runs as processes: what is left of them when something dies, and who notices."""

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
    """A process that does nothing."""
    process = subprocess.Popen([sys.executable, "-c", SLEEP])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def launcher() -> Iterator[LocalRunLauncher]:
    """The launcher of an instance."""
    opened = LocalRunLauncher()
    with dg.DagsterInstance.ephemeral() as instance:
        opened.register_instance(instance)
        yield opened


def begun(launcher: LocalRunLauncher, pid: int, place: dict[str, object]) -> dg.DagsterRun:
    """Give a run whose process has told its number."""

    @dg.job
    def nothing() -> None:
        """Do nothing."""

    tags = {GRPC_INFO_TAG: json.dumps(place)}
    run = launcher._instance.create_run_for_job(nothing, tags=tags)
    told = EngineEventData.in_process(pid)
    launcher._instance.report_engine_event("Started process for run", run, told)
    return run


def test_run_whose_process_died_is_noticed(
    launcher: LocalRunLauncher, sleeper: "subprocess.Popen[bytes]"
) -> None:
    """Expect a healthy run while the process lives, and then a reason that says what is left."""
    run = begun(launcher, sleeper.pid, {"host": "localhost", "socket": "/tmp/code.sock"})  # noqa: S108 - a name only
    assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING
    sleeper.kill()
    sleeper.wait()
    found = launcher.check_run_worker_health(run)
    assert found.status is WorkerStatus.FAILED
    assert "its process exited without reporting" in str(found)


def test_run_of_another_machine_is_left_alone(launcher: LocalRunLauncher) -> None:
    """Expect a number that no process here has to mean nothing."""
    run = begun(launcher, 2**22 + 1, {"host": "worker-7", "port": 4000})
    assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING


def test_run_that_has_no_process_yet_is_left_alone(launcher: LocalRunLauncher) -> None:
    """Expect Dagster's own timeout for runs that start to be the judge."""

    @dg.job
    def nothing() -> None:
        """Do nothing."""

    run = launcher._instance.create_run_for_job(nothing)
    assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING


def test_run_whose_code_server_is_gone_can_be_terminated(
    launcher: LocalRunLauncher, sleeper: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """Expect its process to be asked to end, and the run to be on its way there."""
    socket = str(tmp_path / "gone.sock")
    run = begun(launcher, sleeper.pid, {"host": "localhost", "socket": socket})
    assert launcher.terminate(run.run_id)
    assert sleeper.wait() == -signal.SIGTERM
    found = launcher._instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is dg.DagsterRunStatus.CANCELING


def test_stopped_server_leaves_nothing_behind_that_has_lost_its_parent(tmp_path: Path) -> None:
    """Expect the child of a killed server to be found and ended, too."""
    log = tmp_path / "log"
    command = [sys.executable, "-c", PARENT]
    server = GuardedServer(name="server", command=command, environment={}, log=log)
    server.start()
    while not log.read_text().endswith("\n"):
        assert server.exit_code is None
    orphan = psutil.Process(int(log.read_text()))
    [front] = [one for one in server.family() if one.pid != orphan.pid]
    front.kill()
    while server.exit_code is None:
        assert is_running(orphan)
    assert server.exit_code == 137
    assert is_running(orphan)
    stop([server])
    assert not is_running(orphan)
