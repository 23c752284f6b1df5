"""A warm Spark Connect server on this machine, which ends with the process that started it.

Runs share it, so that none of them waits for a JVM. It listens on the loopback interface only and
requires a random token of every client.
"""

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
from typing import Self

import psutil

from batch_pipeline.model.errors import SparkUnavailableError, port_in_use
from batch_pipeline.spark.sessions import connect_session, launch
from batch_pipeline.spark.sessions.local_session import driver_settings

_SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
GUARDIAN = Path(__file__).with_name("guardian.py")
START_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 15

# Below the ports that systems give to outgoing connections: one of those, even our own check that
# the server answers, could take the port in the seconds until the server binds it.
_PORTS = range(20_000, 32_000)
_PORT_TRIES = 50

# Jobs of several runs share the JVM. FIFO would start a job's tasks only when the jobs before it
# have none left; FAIR gives each running job its share of free cores. The file is needed because
# the pool that FAIR creates without one is itself FIFO.
_POOLS = """\
<?xml version="1.0"?>
<allocations>
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode>
  </pool>
</allocations>
"""


@dataclass(frozen=True, slots=True)
class _RunningServer:
    guardian: "subprocess.Popen[bytes]"
    scratch: Path
    port: int
    session: str
    token: str = field(repr=False)


class SparkConnectServer:
    """A Spark Connect server below `home`, as a context manager or by `start` and `stop`.

    Its process tree ends with `stop`, and also if this process is killed: a guardian process starts
    it and ends it when the pipe to this process closes.
    """

    def __init__(
        self,
        home: Path,
        *,
        port: int | None = None,
        conf: Mapping[str, str] | None = None,
        packed: Path | None = None,
    ) -> None:
        """Configure the server; without `port` it takes a free one. `conf` adds to the settings.

        Its tasks run in itself, or on the `spark.master` of `conf`; `packed` is the archive of what
        tasks there import.
        """
        self._home = home.absolute()
        self._packed = packed
        self._port = port
        self._conf = dict(conf or {})
        self._running: _RunningServer | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._running is not None and self._running.guardian.poll() is None

    def failure(self) -> str | None:
        """Return how its process ended; None while it runs."""
        code = None if self._running is None else self._running.guardian.poll()
        return None if code is None else f"ended with exit code {code}"

    @property
    def remote(self) -> str:
        """The address for clients, with the token and the id of a session that they share.

        The server keeps a thread and a daemon of Python workers for each session, even for a
        released one, so it would grow with every client. Clients of one session also find warm
        workers. The host is `localhost`: only to that name does pyspark send a token without TLS.
        """
        running = self._running
        if running is None:
            raise SparkUnavailableError("the warm server", "it is not running")
        shared = f"{connect_session.SESSION_PARAMETER}={running.session}"
        return f"sc://localhost:{running.port}/;token={running.token};{shared}"

    @property
    def log(self) -> Path:
        """The log file of the server; truncated at each start."""
        return self._home / "logs" / "spark-connect.log"

    def start(self) -> None:
        """Start the server and wait until it answers; no effect if it is running.

        Raises:
            ConfigurationError: there is no Java, the archive is not there or for another Python or
                release, or the requested port is in use.
            SparkUnavailableError: it ends early or does not answer in time; has its last log lines.
        """
        if not self.is_running:
            self.stop()
            self._start_at(_free_port(self._port), secrets.token_urlsafe(32))

    def _start_at(self, port: int, token: str) -> None:
        self._running = running = self._launch(port, token)
        try:
            self._wait_until_ready(running)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and everything that it started, and wait until they have ended."""
        running, self._running = self._running, None
        if running is None:
            return
        processes = _process_tree(running.guardian.pid)
        if running.guardian.stdin is not None:
            with suppress(BrokenPipeError):
                running.guardian.stdin.close()
        _, left = psutil.wait_procs(processes, timeout=STOP_TIMEOUT_SECONDS)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        running.guardian.wait()
        launch.delete_scratch(running.scratch)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _launch(self, port: int, token: str) -> _RunningServer:
        scratch = launch.create_scratch(self._home)
        try:
            conf = _fair_conf(self._home) | {"spark.master": "local[*]"} | self._conf
            conf, environment = driver_settings(self._home, scratch, conf, self._packed)
        except BaseException:
            launch.delete_scratch(scratch)
            raise
        # In the environment, not on the command line: other users can read command lines.
        environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = token
        conf |= _listen_conf(port)
        command = launch.DriverCommand(
            self._home, scratch, conf, environment, "--class", _SERVER_CLASS
        )
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", str(GUARDIAN), *command.words()],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # without this terminal's Ctrl-C: the owner decides
            )
        return _RunningServer(guardian, scratch, port, str(uuid.uuid4()), token)

    def _wait_until_ready(self, running: _RunningServer) -> None:
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
        lines = launch.last_lines(self.log, start=0)
        address = f"sc://localhost:{running.port}"
        raise SparkUnavailableError(address, f"{reason}; last lines of {self.log}: {lines}")


def _fair_conf(home: Path) -> dict[str, str]:
    """Return the settings by which running jobs share the cores, task by task."""
    pools = launch.write_file(home / "spark" / "pools.xml", _POOLS)
    return {
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": pools.as_uri(),
    }


def _listen_conf(port: int) -> dict[str, str]:
    return {
        "spark.connect.grpc.binding.address": launch.LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.port.maxRetries": "0",  # else it listens on another port without an error
        "spark.connect.session.manager.defaultSessionTimeout": "-1",  # never: it is shared
    }


def _free_port(requested: int | None) -> int:
    for port in [requested] if requested else (secrets.choice(_PORTS) for _ in range(_PORT_TRIES)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((launch.LOOPBACK, port))
                return port
    raise port_in_use(requested or _PORTS.start)


def _process_tree(pid: int) -> list[psutil.Process]:
    try:
        guardian = psutil.Process(pid)
        return [*guardian.children(recursive=True), guardian]
    except psutil.NoSuchProcess:
        return []
