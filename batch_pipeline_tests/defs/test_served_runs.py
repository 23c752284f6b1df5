"""Runs of a code location that is a server of its own: are they alive?"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
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
from batch_pipeline_tests.acceptance.sandbox import wait_until

DEFINITIONS = """
import os
import time
import dagster as dg

SERVER = os.getppid()  # of a run's process, which reads this before it says that it has started

@dg.op
def wait():
    while os.getppid() == SERVER:  # as long as it lives
        time.sleep(0.05)

@dg.job(executor_def=dg.in_process_executor)
def waits():
    wait()

defs = dg.Definitions(jobs=[waits])
"""


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance whose runs are launched on a code location's server."""
    module, name = ServedRunLauncher.__module__, ServedRunLauncher.__name__
    launcher = {"run_launcher": {"module": module, "class": name}}
    with dg.instance_for_test(overrides=launcher) as opened:
        yield opened


def test_run_lives_as_long_as_its_server_knows_it(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """Expect a run that is under way to be alive, and one of a server of before to be dead."""
    port = free_port()
    with _server(tmp_path, port):
        run = _launched(instance, port)
        alive = instance.run_launcher.check_run_worker_health(run)
        dead = instance.run_launcher.check_run_worker_health(_run(instance, {"port": port}))
    assert alive.status is WorkerStatus.RUNNING
    assert dead.status is WorkerStatus.FAILED
    assert dead.msg is not None
    assert "What it had published stays published" in dead.msg


def test_run_is_taken_for_alive_while_its_server_does_not_answer(
    instance: dg.DagsterInstance,
) -> None:
    """Expect a server that is being restarted to tell nothing about its runs."""
    run = _run(instance, {"port": free_port()})
    assert ServedRunLauncher().check_run_worker_health(run).status is WorkerStatus.RUNNING


def test_run_on_this_machine_is_looked_at_here(instance: dg.DagsterInstance) -> None:
    """Expect runs of a local socket to be judged by their process, as in `dev`."""
    launcher = ServedRunLauncher()
    launcher.register_instance(instance)
    run = _run(instance, {"socket": "/tmp/none"})  # noqa: S108 - nothing is there
    assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING


def _launched(instance: dg.DagsterInstance, port: int) -> dg.DagsterRun:
    """Launch a run, as the daemon does it, and give it when it has started."""
    target = GrpcServerTarget(host="127.0.0.1", port=port, socket=None, location_name="one")
    with WorkspaceProcessContext(instance, target) as process:
        workspace = process.create_request_context()
        (repository,) = workspace.get_code_location("one").get_repositories().values()
        job = repository.get_full_job("waits")
        made = create_run_for_test(
            instance,
            job_name="waits",
            remote_job_origin=job.get_remote_origin(),
            job_code_origin=job.get_python_origin(),
        )
        instance.launch_run(made.run_id, workspace)

        def now() -> dg.DagsterRun:
            found = instance.get_run_by_id(made.run_id)
            assert found is not None
            assert not found.is_finished, found.status
            return found

        wait_until(lambda: now().status is dg.DagsterRunStatus.STARTED, "the run starts")
        return now()


def _run(instance: dg.DagsterInstance, server: dict[str, object]) -> dg.DagsterRun:
    tags = {GRPC_INFO_TAG: json.dumps({"host": "127.0.0.1", **server})}
    run: dg.DagsterRun = create_run_for_test(instance, job_name="waits", tags=tags)
    return run


@contextmanager
def _server(folder: Path, port: int) -> Iterator[None]:
    path = folder / "one.py"
    path.write_text(DEFINITIONS)
    command = [sys.executable, "-m", "dagster", "api", "grpc", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--python-file", str(path)]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(port), "the code server answers")
        yield
    finally:
        process.kill()  # as a container's end does it: nothing is told to anybody
        process.wait()


def _answers(port: int) -> bool:
    with suppress(DagsterUserCodeUnreachableError):
        DagsterGrpcClient(host="127.0.0.1", port=port).ping("")
        return True
    return False
