"""Runs on a separate code server: health checks, forked processes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher.base import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._core.test_utils import create_run_for_test
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import GrpcServerTarget
from dagster._grpc.client import DagsterGrpcClient

from batch_pipeline.defs.instance.served_runs import ServedRunLauncher
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import LONGEST_SECONDS, wait_until
from batch_pipeline_tests.concurrency import is_running

DEFINITIONS = """
import os
import time
import dagster as dg

SERVER = os.getppid()  # a run's process evaluates this before it reports its start

@dg.op
def wait():
    while os.getppid() == SERVER:  # while the server lives
        time.sleep(0.05)

@dg.job(executor_def=dg.in_process_executor)
def waits():
    wait()

defs = dg.Definitions(jobs=[waits])
"""

FORKED = f"""
import atexit
from pathlib import Path
from batch_pipeline.defs.instance.private_api import fork_runs
{DEFINITIONS}
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


def test_run_unknown_to_its_restarted_server_fails_its_health_check(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """A run that the server has started is healthy."""
    port = free_port()
    with _server(tmp_path, port):
        run = _launch(instance, port)
        alive = instance.run_launcher.check_run_worker_health(run)
        dead = instance.run_launcher.check_run_worker_health(_run(instance, {"port": port}))
    assert alive.status is WorkerStatus.RUNNING
    assert dead.status is WorkerStatus.FAILED
    assert dead.msg is not None
    assert "What it had published stays published" in dead.msg


def test_run_on_an_unreachable_server_is_healthy(instance: dg.DagsterInstance) -> None:
    """The server may be restarting."""
    run = _run(instance, {"port": free_port()})
    assert ServedRunLauncher().check_run_worker_health(run).status is WorkerStatus.RUNNING


def test_run_on_a_local_socket_is_checked_by_its_process(instance: dg.DagsterInstance) -> None:
    """As in `batch-pipeline dev`."""
    launcher = ServedRunLauncher()
    launcher.register_instance(instance)
    run = _run(instance, {"socket": "/tmp/none"})  # noqa: S108 - no server listens there
    assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING


def test_forked_run_can_be_cancelled_and_calls_its_exit_functions(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    port = free_port()
    parents, ended = tmp_path / "parents", tmp_path / "ended"
    parents.mkdir()
    ended.mkdir()
    with _server(tmp_path, port, FORKED) as server:
        run = _launch(instance, port)
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


def _run(instance: dg.DagsterInstance, server: dict[str, object]) -> dg.DagsterRun:
    tags = {GRPC_INFO_TAG: json.dumps({"host": "127.0.0.1", **server})}
    run: dg.DagsterRun = create_run_for_test(instance, job_name="waits", tags=tags)
    return run


@contextmanager
def _server(folder: Path, port: int, definitions: str = DEFINITIONS) -> Iterator[int]:
    """Start a code server and yield the id of its process."""
    path = folder / "waiting_job.py"
    path.write_text(definitions)
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
