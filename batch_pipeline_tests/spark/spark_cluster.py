"""A standalone Spark cluster on this machine: a master and workers of one core and 1 GB each."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from batch_pipeline.spark.driver import LOOPBACK
from batch_pipeline.spark.java import JVM_OPTIONS, find_java_home, spark_home
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import wait_until

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
REGISTERED = "Successfully registered with master"
START_SECONDS = 120
_OPTIONS = " ".join([*JVM_OPTIONS, "-Dspark.master.rest.enabled=false"])


@dataclass
class Worker:
    """A worker, whose executors run tasks in child processes."""

    process: "subprocess.Popen[bytes]"
    name: str

    def kill(self) -> None:
        """Kill the worker and its executors, like a power failure."""
        worker = psutil.Process(self.process.pid)
        family = [*worker.children(recursive=True), worker]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=START_SECONDS)
        self.process.wait(START_SECONDS)


@dataclass
class StandaloneCluster:
    """A master that listens on the loopback interface, and its workers."""

    folder: Path
    port: int
    environment: Mapping[str, str]
    workers: list[Worker] = field(default_factory=list)
    master_process: "subprocess.Popen[bytes] | None" = None

    @property
    def master(self) -> str:
        return f"spark://{LOOPBACK}:{self.port}"

    def add_worker(self, **variables: str) -> None:
        """Start a worker with additional environment variables, which its executors inherit."""
        name = f"worker-{len(self.workers) + 1}"
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name))
        process = self._start(name, WORKER, "0", *size, self.master, **variables)
        self.workers.append(Worker(process, name))

    def start_master(self) -> None:
        """Start the master and wait until it listens."""
        self.master_process = self._start("master", MASTER, str(self.port))
        self._wait_for_log("master", "I have been elected leader")

    def kill_master(self) -> None:
        """Kill the master; workers and executors continue."""
        if self.master_process is not None:
            self.master_process.kill()
            self.master_process.wait(START_SECONDS)

    def restart_master(self) -> None:
        """Replace the master with a master without state and wait until the workers register."""
        alive = [worker.name for worker in self.workers if worker.process.poll() is None]
        counts = {name: self._log(name).count(REGISTERED) for name in alive}
        self.kill_master()
        self.start_master()
        for name, count in counts.items():
            self._wait_for_log(name, REGISTERED, times=count + 1)

    def applications(self) -> int:
        """Return the number of drivers that have registered with the master."""
        return self._log("master").count("Registered app ")

    def _start(
        self, name: str, main: str, port: str, *arguments: str, **variables: str
    ) -> "subprocess.Popen[bytes]":
        command = [str(spark_home() / "bin" / "spark-class"), main]
        where = ["--host", LOOPBACK, "--port", port, "--webui-port", "0"]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, *where, *arguments],
                env={**self.environment, **variables},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def _wait_for_log(self, name: str, message: str, *, times: int = 1) -> None:
        wait_until(
            lambda: self._log(name).count(message) >= times,
            f"{name}: {message}",
            seconds=START_SECONDS,
        )


@contextmanager
def standalone_cluster(
    folder: Path, *workers: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> Iterator[StandaloneCluster]:
    """Start a master and a worker per mapping of environment variables; kill all at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    initial = dict(os.environ if environment is None else environment)
    clean = {name: text for name, text in initial.items() if not re.match("PY|SPARK_", name)}
    worker_environment = clean | {
        "JAVA_HOME": str(find_java_home(folder, initial)),
        "SPARK_CONF_DIR": str(folder),  # without settings
        "SPARK_DAEMON_JAVA_OPTS": _OPTIONS,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(spark_home()),
        "SPARK_LAUNCHER_OPTS": " ".join(JVM_OPTIONS),
        "SPARK_LOCAL_IP": LOOPBACK,
    }
    cluster = StandaloneCluster(folder, free_port(), worker_environment)
    try:
        cluster.start_master()
        for variables in workers:
            cluster.add_worker(**variables)
        for worker in cluster.workers:
            cluster._wait_for_log(worker.name, REGISTERED)
        yield cluster
    finally:
        for worker in cluster.workers:
            if worker.process.poll() is None:
                worker.kill()
        cluster.kill_master()
