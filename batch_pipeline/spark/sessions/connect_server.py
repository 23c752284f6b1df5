"""Runs one warm Spark Connect server on this machine, for as long as its owner lives.

It listens on the loopback interface only and asks every client for a random token.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from batch_pipeline.domain.errors import PortInUseError, SparkUnavailableError
from batch_pipeline.spark.clusters.archive_note import check_archive
from batch_pipeline.spark.clusters.conf import Cluster
from batch_pipeline.spark.clusters.master import Place, check_reachable, place_of
from batch_pipeline.spark.sessions import connect_session, launch
from batch_pipeline.spark.sessions.class_data import archive_options
from batch_pipeline.spark.sessions.fair_jobs import fair_conf
from batch_pipeline.spark.sessions.java import java_home

SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
GUARDIAN = Path(__file__).with_name("guardian.py")
START_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 15

# Below the ports that systems give to outgoing connections: one of those, even our own call that
# asks whether the server answers, could take the port in the seconds until the server binds it.
_PORTS = range(20_000, 32_000)
_PORT_TRIES = 50


@dataclass(frozen=True, slots=True)
class _Running:
    guardian: "subprocess.Popen[bytes]"
    scratch: Path
    port: int
    session: str
    token: str = field(repr=False)


class SparkConnectServer:
    """A Spark Connect server below `home`, as a context manager or by `start` and `stop`.

    Its process tree ends with `stop`, and by itself when the process that started it dies.
    """

    def __init__(
        self,
        home: Path,
        *,
        port: int | None = None,
        conf: Mapping[str, str] | None = None,
        packed: Path | None = None,
    ) -> None:
        """Describe the server; without `port` a free one is taken. `conf` adds to the settings.

        Its tasks run in itself, or where the `spark.master` of `conf` says; `packed` is the archive
        of what the executors there import.
        """
        self._home = home.absolute()
        self._packed = packed
        self._port = port
        self._conf = dict(conf or {})
        self._running: _Running | None = None

    @property
    def is_running(self) -> bool:
        """Tell whether its process runs."""
        return self._running is not None and self._running.guardian.poll() is None

    def failure(self) -> str | None:
        """Return how its process ended, None while it runs."""
        code = None if self._running is None else self._running.guardian.poll()
        return None if code is None else f"ended with exit code {code}"

    @property
    def remote(self) -> str:
        """The address that a client connects to; it holds the token.

        It names the session that all clients share, since Spark keeps for each session, even for
        one that was released, a thread and what starts Python workers; clients of one session also
        find warm workers. The host is `localhost` because pyspark sends a token without TLS to that
        name only.
        """
        running = self._running
        if running is None:
            raise SparkUnavailableError("the warm server", "it is not started")
        shared = f"{connect_session.SESSION_PARAMETER}={running.session}"
        return f"sc://localhost:{running.port}/;token={running.token};{shared}"

    @property
    def log(self) -> Path:
        """Where the server writes its log; truncated at each start."""
        return self._home / "logs" / "spark-connect.log"

    def start(self) -> None:
        """Start the server and wait until it answers; no effect on one that runs.

        Raises:
            JavaMissingError: there is no Java to start it with.
            PackedUnusableError: the archive is not there, or for another Python or release.
            PortInUseError: the port that was asked for is taken.
            SparkUnavailableError: it ends early or does not answer in time; tells its last lines.
        """
        if not self.is_running:
            self.stop()
            self._start_at(_free_port(self._port), secrets.token_urlsafe(32))

    def _start_at(self, port: int, token: str) -> None:
        self._running = running = self._launched(port, token)
        try:
            self._wait_until_it_answers(running)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and everything it started, and wait until it is gone."""
        running, self._running = self._running, None
        if running is None:
            return
        family = _family(running.guardian.pid)
        if running.guardian.stdin is not None:
            with suppress(BrokenPipeError):
                running.guardian.stdin.close()
        _, left = psutil.wait_procs(family, timeout=STOP_TIMEOUT_SECONDS)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        running.guardian.wait()
        launch.remove_scratch(running.scratch)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _launched(self, port: int, token: str) -> _Running:
        scratch = launch.new_scratch(self._home)
        try:
            conf, environment = self._conf_and_environment(scratch)
        except BaseException:
            launch.remove_scratch(scratch)
            raise
        # In the environment, not on the command line: other users can read command lines.
        environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = token
        properties = launch.properties_file(scratch, conf | _listening(port))
        command = launch.submit_command(properties, "--class", SERVER_CLASS)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", str(GUARDIAN), *command],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C of this terminal is the owner's business
            )
        return _Running(guardian, scratch, port, str(uuid.uuid4()), token)

    def _conf_and_environment(self, scratch: Path) -> tuple[dict[str, str], dict[str, str]]:
        java = java_home(self._home, os.environ)
        options = archive_options(self._home, java)
        told = fair_conf(self._home) | {"spark.master": "local[*]"} | self._conf
        master = told["spark.master"]
        if place_of(master) is Place.DRIVER:
            conf = launch.local_conf(self._home, scratch, options, told)
            return conf, launch.child_environment(java, os.environ)
        if self._packed is not None:
            check_archive(self._packed)
        check_reachable(master)
        cluster = Cluster(master=master, environment=os.environ, packed=self._packed)
        conf = cluster.conf(self._home, scratch, options, told)
        return conf, cluster.driver_environment(java, scratch, conf["spark.pyspark.python"])

    def _wait_until_it_answers(self, running: _Running) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            try:
                connect_session.check(self.remote)
                return
            except SparkUnavailableError as error:
                reason = error.reason
            with suppress(subprocess.TimeoutExpired):
                code = running.guardian.wait(timeout=0.1)
                reason = f"it ended with exit code {code}"
                break
            if time.monotonic() > deadline:
                break
        said = launch.last_lines(self.log, start=0)
        address = f"sc://localhost:{running.port}"
        raise SparkUnavailableError(address, f"{reason}; last lines of {self.log}: {said}")


def _listening(port: int) -> dict[str, str]:
    return {
        "spark.connect.grpc.binding.address": launch.LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.port.maxRetries": "0",  # else it silently listens on another port
        "spark.connect.session.manager.defaultSessionTimeout": "-1",  # the shared one is for ever
    }


def _free_port(asked: int | None) -> int:
    for port in [asked] if asked else (secrets.choice(_PORTS) for _ in range(_PORT_TRIES)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((launch.LOOPBACK, port))
                return port
    raise PortInUseError(asked or _PORTS.start)


def _family(pid: int) -> list[psutil.Process]:
    try:
        guardian = psutil.Process(pid)
        return [*guardian.children(recursive=True), guardian]
    except psutil.NoSuchProcess:
        return []
