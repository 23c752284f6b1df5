"""The services of `batch-pipeline dev`, watched until one of them ends or `dev` is stopped."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from threading import Event
from typing import Self
from urllib.request import ProxyHandler, build_opener

import psutil
import yaml
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._grpc.client import DagsterGrpcClient

from batch_pipeline.config.home import Home
from batch_pipeline.defs.instance.dagster_home import prepare_dagster_home
from batch_pipeline.defs.instance.private_api import FORK_RUNS
from batch_pipeline.model.errors import RetryableError
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


@dataclass(frozen=True, kw_only=True)
class GuardedServer:
    """A running command that ends with this process, however the process ends.

    `guardian` is the process that ends it; closing its standard input requests that.
    """

    name: str
    log: Path
    mark: str
    guardian: "subprocess.Popen[bytes]" = field(repr=False)

    @classmethod
    def start(
        cls, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> Self:
        """Start the command; its log is truncated."""
        mark = token_hex(8)
        guardian = run_while_parent_lives.start(command, {**environment, _MARK: mark}, log)
        return cls(name=name, log=log, mark=mark, guardian=guardian)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the command, or None while it runs."""
        return self.guardian.poll()

    def failure(self) -> str | None:
        """Return how the command ended, or None while it runs."""
        code = self.exit_code
        return None if code is None else f"ended with exit code {code}"

    def last_line(self) -> str:
        """Return the last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"

    def family(self) -> list[psutil.Process]:
        """Return the command's process and all its descendants."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.guardian.pid).children(recursive=True)
        return []

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the guardian has ended, or for the given time."""
        with suppress(subprocess.TimeoutExpired):
            self.guardian.wait(seconds)


def stop(servers: Sequence[GuardedServer]) -> None:
    """Stop servers together, and wait until they and all processes that they started have ended.

    Also stops orphaned processes, such as runs of a server that was killed.
    """
    for server in servers:
        if server.guardian.stdin is not None:
            server.guardian.stdin.close()
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
            if os.getsid(process.pid) == server.guardian.pid:  # it has a session of its own
                is_marked = process.environ().get(_MARK) == server.mark
                if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


_MODULE = "batch_pipeline.definitions"
_WEBSERVER = "batch_pipeline.defs.instance.dagster_webserver"
_LOCATION = "batch_pipeline"  # as in workspace.yaml, so that `dagster dev` uses the same name
_START_SECONDS = 90


class _CodeServer(GuardedServer):
    """The code server: a permanent proxy for a process that loads the definitions."""

    def failure(self) -> str | None:
        """Return how either process ended, or None while both run."""
        ended = GuardedServer.failure(self)
        processes = self.family()
        is_front_there = any(_runs(process, "code-server") for process in processes)
        if ended is None and is_front_there and not any(_runs(one, "api") for one in processes):
            return "lost the process that loads the definitions"
        return ended


def _runs(process: psutil.Process, command: str) -> bool:
    """Return whether a process runs a command of Dagster; False if it has ended."""
    with suppress(psutil.Error):
        return {"dagster", command} <= {*process.cmdline()}
    return False


@contextmanager
def dagster_servers(home: Home, *, port: int, spark_remote: str) -> Iterator[list[Service]]:
    """Run Dagster with the home's instance; yield its servers in the order of their start.

    Leaves no process behind.

    Raises:
        RetryableError: a server ended or does not answer in time.
    """
    home.logs.mkdir(parents=True, exist_ok=True)
    prepare_dagster_home(home)
    servers: list[GuardedServer] = []
    # Not below the home: the path of a socket must be short.
    with PrivateFolder("dev") as scratch:
        environment = os.environ | {
            "DAGSTER_HOME": str(home.dagster),
            "BATCH_PIPELINE_HOME": str(home.path),
            "BATCH_PIPELINE_SPARK_REMOTE": spark_remote,
            FORK_RUNS: "1",
            # Without this, a backfill and its runs fail if the backfill is evaluated while the code
            # server is being replaced; with it, the backfill waits.
            "DAGSTER_BACKFILL_RETRY_DEFINITION_CHANGED_ERROR": "1",
            # Dagster creates sockets of its own here, whose permissions depend on the umask.
            "TMPDIR": str(scratch.path),
        }

        def start(kind: type[GuardedServer], name: str, *arguments: str) -> GuardedServer:
            command = [sys.executable, "-m", *arguments]
            log = home.logs / f"{name.replace(' ', '-')}.log"
            servers.append(kind.start(name, command, environment, log))
            return servers[-1]

        socket_path = str(scratch.path / "code.sock")
        server = {"location_name": _LOCATION, "socket": socket_path, "host": "localhost"}
        workspace = scratch.path / "workspace.yaml"
        workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}))
        shared = ["--workspace", str(workspace)]
        code = ["dagster", "code-server", "start", "--socket", socket_path]
        code += ["--module-name", _MODULE, "--location-name", _LOCATION]
        web = [_WEBSERVER, "--host", "127.0.0.1", "--port", str(port), *shared]
        web += ["--live-data-poll-rate", "2000"]
        try:
            code_server = start(_CodeServer, "code server", *code)
            client = DagsterGrpcClient(socket=socket_path)
            _wait_for_answer(lambda: client.get_server_id(timeout=5), code_server)
            webserver = start(GuardedServer, "webserver", *web)
            daemon = start(GuardedServer, "daemon", "dagster._daemon", "run", *shared)
            url = f"http://127.0.0.1:{port}/server_info"
            ask = build_opener(ProxyHandler({})).open  # no proxy reaches this machine's loopback
            _wait_for_answer(lambda: ask(url, timeout=5).close(), webserver, daemon)
            yield [Service(name=one.name, log=one.log, failure=one.failure) for one in servers]
        finally:
            # Stop the code server last: a sensor tick that loses it would be shown as failed.
            stop(servers[1:])
            stop(servers[:1])


def _wait_for_answer(
    ask: Callable[[], object], server: GuardedServer, *others: GuardedServer
) -> None:
    """Wait until a server answers; `others` have to run meanwhile.

    Raises:
        RetryableError: a server ended or does not answer in time.
    """
    wrong, deadline = server, time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if ended := [one for one in (server, *others) if one.exit_code is not None]:
            wrong = ended[0]
            break
        with suppress(DagsterUserCodeUnreachableError, OSError):
            ask()
            return
        time.sleep(0.1)
    failure = wrong.failure() or f"did not answer within {_START_SECONDS} seconds"
    raise service_ended(wrong.name, f"{failure} ({wrong.last_line()})", str(wrong.log))
