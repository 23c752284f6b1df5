"""Processes of runs, of this machine or of a code server: health, termination and orphans."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.events import EngineEventData
from dagster._core.launcher.base import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._core.test_utils import create_run_for_test
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import GrpcServerTarget
from dagster._grpc.client import DagsterGrpcClient

from batch_pipeline.defs.instance.launcher import LocalRunLauncher
from batch_pipeline.defs.instance.served_runs import ServedRunLauncher
from batch_pipeline.defs.instance.servers import GuardedServer, stop
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import LONGEST_SECONDS, wait_until
from batch_pipeline_tests.concurrency import is_running
from batch_pipeline_tests.defs.defs_fixture import empty_instance

SLEEP = "import time; time.sleep(600)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
print(child.pid, flush=True)
child.wait()
"""

DEFINITIONS = """
import atexit
import os
import time
from pathlib import Path
import dagster as dg
from batch_pipeline.defs.instance.private_api import fork_runs

SERVER = os.getppid()  # a run's process evaluates this before it reports its start

@dg.op
def wait():
    while os.getppid() == SERVER:  # while the server lives
        time.sleep(0.05)

@dg.job(executor_def=dg.in_process_executor)
def waits():
    wait()

defs = dg.Definitions(jobs=[waits])
FOLDER, NAME = Path(__file__).parent, str(os.getpid())
(FOLDER / "parents" / NAME).write_text(str(SERVER))
atexit.register((FOLDER / "ended" / NAME).touch)
fork_runs()
"""


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance whose runs are launched on a code server."""
    module, name = ServedRunLauncher.__module__, ServedRunLauncher.__name__
    launcher = {"run_launcher": {"module": module, "class": name}}
    with dg.instance_for_test(overrides=launcher) as opened:
        yield opened


def test_forked_run_can_be_cancelled_and_calls_its_exit_functions(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """Before that it is healthy, unlike a run that the server has not started."""
    port = free_port()
    parents, ended = tmp_path / "parents", tmp_path / "ended"
    parents.mkdir()
    ended.mkdir()
    with _server(tmp_path, port) as server:
        run = _launch(instance, port)
        alive = instance.run_launcher.check_run_worker_health(run)
        unknown = instance.run_launcher.check_run_worker_health(_run(instance, {"port": port}))
        [forked] = [path for path in parents.iterdir() if path.name != str(server)]
        parent = psutil.Process(int(forked.read_text()))
        command = " ".join(parent.cmdline())
        assert instance.run_launcher.terminate(run.run_id)
        wait_until(lambda: [path.name for path in ended.iterdir()] == [forked.name], "it ends")
        stored = instance.get_run_by_id(run.run_id)
    psutil.wait_procs([parent], timeout=LONGEST_SECONDS)
    assert not is_running(parent)
    assert "multiprocessing.forkserver" in command
    assert stored is not None
    assert stored.status is dg.DagsterRunStatus.CANCELED
    assert alive.status is WorkerStatus.RUNNING
    assert unknown.status is WorkerStatus.FAILED
    assert "What it had published stays published" in str(unknown.msg)


def test_run_on_an_unreachable_server_or_a_local_socket_is_healthy(
    instance: dg.DagsterInstance,
) -> None:
    """A server may be restarting; a run on a socket, as in `dev`, is checked by its process."""
    launcher = ServedRunLauncher()
    launcher.register_instance(instance)
    for server in ({"port": free_port()}, {"socket": "/tmp/none"}):  # noqa: S108 - no server listens there
        health = launcher.check_run_worker_health(_run(instance, server))
        assert health.status is WorkerStatus.RUNNING


def _launch(instance: dg.DagsterInstance, port: int) -> dg.DagsterRun:
    """Launch a run as the daemon does and wait for its start."""
    target = GrpcServerTarget(host="127.0.0.1", port=port, socket=None, location_name="code")
    with WorkspaceProcessContext(instance, target) as process:
        workspace = process.create_request_context()
        (repository,) = workspace.get_code_location("code").get_repositories().values()
        job = repository.get_full_job("waits")
        created = create_run_for_test(
            instance,
            job_name="waits",
            remote_job_origin=job.get_remote_origin(),
            job_code_origin=job.get_python_origin(),
        )
        instance.launch_run(created.run_id, workspace)

        def current() -> dg.DagsterRun:
            run = instance.get_run_by_id(created.run_id)
            assert run is not None
            assert not run.is_finished, run.status
            return run

        wait_until(lambda: current().status is dg.DagsterRunStatus.STARTED, "the run starts")
        return current()


def _run(instance: dg.DagsterInstance, server: Mapping[str, object]) -> dg.DagsterRun:
    tags = {GRPC_INFO_TAG: json.dumps({"host": "127.0.0.1", **server})}
    run: dg.DagsterRun = create_run_for_test(instance, job_name="waits", tags=tags)
    return run


@contextmanager
def _server(folder: Path, port: int) -> Iterator[int]:
    """Start a code server and yield the id of its process."""
    path = folder / "waiting_job.py"
    path.write_text(DEFINITIONS)
    command = [sys.executable, "-m", "dagster", "api", "grpc", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--python-file", str(path)]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(port), "the code server answers")
        yield process.pid
    finally:
        process.kill()  # like the end of a container, without any notification
        process.wait()


def _answers(port: int) -> bool:
    with suppress(DagsterUserCodeUnreachableError):
        DagsterGrpcClient(host="127.0.0.1", port=port).ping("")
        return True
    return False


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that sleeps."""
    process = subprocess.Popen([sys.executable, "-c", SLEEP])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def launcher() -> LocalRunLauncher:
    """The run launcher of an instance."""
    opened = LocalRunLauncher()
    opened.register_instance(empty_instance())
    return opened


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
