"""The services of `batch-pipeline dev`, watched until one of them ends or `dev` is stopped."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from threading import Event
from types import TracebackType
from typing import Any, Self

import psutil
import yaml
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._grpc.client import DagsterGrpcClient

from batch_pipeline.config.home import Home
from batch_pipeline.defs.instance.dagster_home import prepare_dagster_home
from batch_pipeline.model.errors import RetryableError, port_in_use
from batch_pipeline.spark import run_while_parent_lives
from batch_pipeline.storage.local import PrivateFolder

_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server that has to run as long as `dev`; `failure` returns why it does not."""

    name: str
    log: Path
    failure: Callable[[], str | None]


def watch(services: Sequence[Service], stop: Event, pause_seconds: float = _PAUSE_SECONDS) -> None:
    """Wait until `stop` is set.

    Raises:
        RetryableError: a service ended first. The services are checked in order, so that one
            comes before those that depend on it.
    """
    while not stop.wait(pause_seconds):
        for service in services:
            failure = service.failure()
            if failure is not None:
                raise service_ended(service.name, failure, str(service.log))


def service_ended(service: str, failure: str, log: str) -> RetryableError:
    """Build the error of a service that ended or does not answer."""
    return RetryableError(
        f"The {service} {failure}. Published batches are not affected. All other "
        f"services were stopped. See {log}, then start `batch-pipeline dev` again."
    )


_STOP_SECONDS = 15
_MARK = "BATCH_PIPELINE_SERVER_MARK"


@dataclass(kw_only=True)
class GuardedServer:
    """A command that ends with this process, however the process ends.

    Its log is truncated at the start.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    log: Path
    mark: str = field(default_factory=lambda: token_hex(8))
    _guardian: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start the command; may be called only once."""
        environment = {**self.environment, _MARK: self.mark}
        self._guardian = run_while_parent_lives.start(self.command, environment, self.log)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the command, or None while it runs."""
        return None if self._guardian is None else self._guardian.poll()

    def failure(self) -> str | None:
        """Return how the command ended, or None while it runs."""
        code = self.exit_code
        return None if code is None else f"ended with exit code {code}"

    def last_line(self) -> str:
        """Return the last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"

    @property
    def session(self) -> int | None:
        """The session of the command and of all processes that it started."""
        return None if self._guardian is None else self._guardian.pid

    def family(self) -> list[psutil.Process]:
        """Return the command's process and all its descendants."""
        with suppress(psutil.NoSuchProcess):
            if self._guardian is not None:
                return psutil.Process(self._guardian.pid).children(recursive=True)
        return []

    def ask_to_end(self) -> None:
        """Close the guardian's input, which makes it end the command."""
        if self._guardian is not None and self._guardian.stdin is not None:
            self._guardian.stdin.close()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the guardian has ended, or for the given time."""
        if self._guardian is not None:
            with suppress(subprocess.TimeoutExpired):
                self._guardian.wait(seconds)


def stop(servers: Sequence[GuardedServer]) -> None:
    """Stop servers together, and wait until they and all processes that they started have ended.

    Also stops orphaned processes, such as runs of a server that was killed.
    """
    for server in servers:
        server.ask_to_end()
    for server in servers:
        server.wait(_STOP_SECONDS)
    left = [process for server in servers for process in _left_by(server)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(left, timeout=_STOP_SECONDS)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for server in servers:
        server.wait()


def _left_by(server: GuardedServer) -> list[psutil.Process]:
    """Find the processes that still run in the session of a server.

    The number of an empty session may have been reused by another program; the mark excludes that.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == server.session:
                is_marked = process.environ().get(_MARK) == server.mark
                if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


_MODULE = "batch_pipeline.definitions"
_WEBSERVER = "batch_pipeline.defs.instance.dagster_webserver"
_LOCATION = "batch_pipeline"  # as in workspace.yaml, so that `dagster dev` uses the same name
_START_SECONDS = 90


def check_port(port: int) -> None:
    """Check that a port of the loopback interface is free.

    Raises:
        ConfigurationError: it is not.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise port_in_use(port) from error


@dataclass(kw_only=True)
class _CodeServer(GuardedServer):
    """The code server: a permanent proxy for a process that loads the definitions."""

    socket: str

    def failure(self) -> str | None:
        """Return how either process ended, or None while both run."""
        ended = GuardedServer.failure(self)
        processes = self.family()
        is_front_there = any(_runs(process, "code-server") for process in processes)
        if ended is None and is_front_there and not any(_runs(one, "api") for one in processes):
            return "lost the process that loads the definitions"
        return ended

    def wait_until_ready(self) -> None:
        """Wait until the server answers.

        Raises:
            RetryableError: the server ended or does not answer in time.
        """
        client, deadline = DagsterGrpcClient(socket=self.socket), time.monotonic() + _START_SECONDS
        while self.exit_code is None and time.monotonic() < deadline:
            with suppress(DagsterUserCodeUnreachableError):
                client.get_server_id(timeout=5)
                return
            time.sleep(0.1)
        raise _not_started(self)


def _runs(process: psutil.Process, command: str) -> bool:
    """Return whether a process runs a command of Dagster; False if it has ended."""
    with suppress(psutil.Error):
        return {"dagster", command} <= {*process.cmdline()}
    return False


class DagsterServers:
    """Dagster with the home's instance, as a context manager; leaves no process behind."""

    def __init__(self, home: Home, *, port: int, spark_remote: str) -> None:
        self._home = home
        self._port = port
        self._spark_remote = spark_remote
        # Not below the home: the path of a socket must be short.
        self._scratch = PrivateFolder("dev")
        self._workspace = self._scratch.path / "workspace.yaml"
        socket_path = str(self._scratch.path / "code.sock")
        code = ["dagster", "code-server", "start", "--socket", socket_path]
        code += ["--module-name", _MODULE, "--location-name", _LOCATION]
        web = [_WEBSERVER, "--host", "127.0.0.1", "--port", str(port)]
        web += ["--live-data-poll-rate", "2000"]
        shared = ["--workspace", str(self._workspace)]
        daemon = ["dagster._daemon", "run", *shared]
        self._code = _CodeServer(**self._options("code server", code), socket=socket_path)
        self._web = GuardedServer(**self._options("webserver", web + shared))
        self._daemon = GuardedServer(**self._options("daemon", daemon))

    @property
    def services(self) -> list[Service]:
        """The servers, in the order of their start."""
        return [
            Service(name=server.name, log=server.log, failure=server.failure)
            for server in (self._code, self._web, self._daemon)
        ]

    def __enter__(self) -> Self:
        self._home.logs.mkdir(parents=True, exist_ok=True)
        prepare_dagster_home(self._home)
        server = {"location_name": _LOCATION, "socket": self._code.socket, "host": "localhost"}
        self._workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}))
        try:
            self._code.start()
            self._code.wait_until_ready()
            self._web.start()
            self._daemon.start()
            self._wait_until_it_answers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _options(self, name: str, arguments: list[str]) -> dict[str, Any]:
        environment = os.environ | {
            "DAGSTER_HOME": str(self._home.dagster),
            "BATCH_PIPELINE_HOME": str(self._home.path),
            "BATCH_PIPELINE_SPARK_REMOTE": self._spark_remote,
            # Without this, a backfill and its runs fail if the backfill is evaluated while the code
            # server is being replaced; with it, the backfill waits.
            "DAGSTER_BACKFILL_RETRY_DEFINITION_CHANGED_ERROR": "1",
            # Dagster creates sockets of its own here, whose permissions depend on the umask.
            "TMPDIR": str(self._scratch.path),
        }
        return {
            "name": name,
            "command": [sys.executable, "-m", *arguments],
            "environment": environment,
            "log": self._home.logs / f"{name.replace(' ', '-')}.log",
        }

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        url = f"http://127.0.0.1:{self._port}/server_info"
        while self._web.exit_code is None and time.monotonic() < deadline:
            if self._daemon.exit_code is not None:
                raise _not_started(self._daemon)
            with suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(url, timeout=5).close()
                return
            time.sleep(0.25)
        raise _not_started(self._web)

    def _stop(self) -> None:
        # Stop the code server last: a sensor tick that loses it would be shown as failed.
        stop([self._daemon, self._web])
        stop([self._code])
        self._scratch.close()


def _not_started(server: GuardedServer) -> RetryableError:
    failure = server.failure() or f"did not answer within {_START_SECONDS} seconds"
    return service_ended(server.name, f"{failure} ({server.last_line()})", str(server.log))
