"""A standalone Spark cluster on this machine: a master and workers of one core and 1 GB each."""

import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from batch_pipeline.spark.sessions import launch
from batch_pipeline.spark.sessions.java import find_java_home
from batch_pipeline_tests.acceptance.sandbox import wait_until

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
START_SECONDS = 120
_OPTIONS = " ".join([*launch.JVM_OPTIONS, "-Dspark.master.rest.enabled=false"])


@dataclass
class Worker:
    """A worker, and by its executor the processes that run tasks."""

    process: "subprocess.Popen[bytes]"
    folder: Path

    def family(self) -> list[psutil.Process]:
        """Give the processes of the worker, itself last."""
        worker = psutil.Process(self.process.pid)
        return [*worker.children(recursive=True), worker]

    def kill(self) -> None:
        """End the worker and its executors as a power cut would: by SIGKILL, all at once."""
        family = self.family()
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, timeout=START_SECONDS)
        self.process.wait(START_SECONDS)


@dataclass
class StandaloneCluster:
    """A master that listens on the loopback interface, and the workers that have come to it."""

    folder: Path
    port: int
    environment: Mapping[str, str]
    workers: list[Worker] = field(default_factory=list)
    master_process: "subprocess.Popen[bytes] | None" = None

    @property
    def master(self) -> str:
        """The master's URL."""
        return f"spark://{launch.LOOPBACK}:{self.port}"

    def add_worker(self, **variables: str) -> Worker:
        """Start a worker with more variables; its executors have them too."""
        name = f"worker-{len(self.workers) + 1}"
        folder = self.folder / name
        arguments = ("--host", launch.LOOPBACK, "--port", "0", "--webui-port", "0")
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder))
        process = self._started(name, WORKER, (*arguments, *size, self.master), variables)
        self.workers.append(Worker(process, folder))
        return self.workers[-1]

    def wait(self) -> None:
        """Wait until all workers are registered."""
        for number in range(1, len(self.workers) + 1):
            self._says(f"worker-{number}", "Successfully registered with master")

    def start_master(self) -> None:
        """Start the master and wait until it listens."""
        where = ("--host", launch.LOOPBACK, "--port", str(self.port), "--webui-port", "0")
        self.master_process = self._started("master", MASTER, where, {})
        self._says("master", "I have been elected leader")

    def kill_master(self) -> None:
        """End the master by SIGKILL; workers and executors go on."""
        if self.master_process is not None:
            self.master_process.kill()
            self.master_process.wait(START_SECONDS)

    def restart_master(self) -> None:
        """Let a master without a memory take the place of this one, and the workers come to it."""
        alive = [one for one in self.workers if one.process.poll() is None]
        before = {one.folder.name: self._registrations(one) for one in alive}
        self.kill_master()
        self.start_master()
        for one in alive:
            wait_until(
                lambda one=one: self._registrations(one) > before[one.folder.name],  # type: ignore[misc]
                f"{one.folder.name} comes back",
                seconds=START_SECONDS,
            )

    def _registrations(self, worker: Worker) -> int:
        log = (self.folder / f"{worker.folder.name}.log").read_text()
        return log.count("Successfully registered with master")

    def _started(
        self, name: str, main: str, arguments: tuple[str, ...], variables: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        command = [str(launch.spark_home() / "bin" / "spark-class"), main, *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                env={**self.environment, **variables},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _says(self, name: str, words: str) -> None:
        log = self.folder / f"{name}.log"
        wait_until(lambda: words in log.read_text(), f"{name}: {words}", seconds=START_SECONDS)


@contextmanager
def standalone_cluster(
    folder: Path, *workers: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> Iterator[StandaloneCluster]:
    """Start a master, and a worker for each mapping of more variables; nothing of them stays."""
    folder.mkdir(parents=True, exist_ok=True)
    given = dict(os.environ if environment is None else environment)
    clean = {name: text for name, text in given.items() if not re.match("PY|SPARK_", name)}
    settled = clean | {
        "JAVA_HOME": str(find_java_home(folder, given)),
        "SPARK_CONF_DIR": str(folder),  # which has no settings in it
        "SPARK_DAEMON_JAVA_OPTS": _OPTIONS,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(launch.spark_home()),
        "SPARK_LAUNCHER_OPTS": " ".join(launch.JVM_OPTIONS),
        "SPARK_LOCAL_IP": launch.LOOPBACK,
    }
    cluster = StandaloneCluster(folder, _free_port(), settled)
    try:
        cluster.start_master()
        for variables in workers:
            cluster.add_worker(**variables)
        cluster.wait()
        yield cluster
    finally:
        for worker in cluster.workers:
            if worker.process.poll() is None:
                worker.kill()
        cluster.kill_master()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((launch.LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
