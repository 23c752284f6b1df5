"""Dagster's code server, webserver and daemon as child processes of `batch-pipeline dev`.

Runs are children of the code server; stopping it ends them, too.
"""

import os
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psutil
import yaml
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._grpc.client import DagsterGrpcClient

from batch_pipeline.config.home import Home
from batch_pipeline.defs.instance.guarded import GuardedServer, stop
from batch_pipeline.defs.instance.home import prepare_dagster_home
from batch_pipeline.defs.instance.services import Service, service_ended
from batch_pipeline.model.errors import RetryableError, port_in_use
from batch_pipeline.storage.local import PrivateFolder

_MODULE = "batch_pipeline.definitions"
_WEBSERVER = "batch_pipeline.defs.instance.dagster_webserver"
_LOCATION = "batch_pipeline"  # as in workspace.yaml, so that `dagster dev` goes on with the same
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
    """The code server: a process that stays, in front of one that has the definitions."""

    socket: str

    def failure(self) -> str | None:
        """Return how either process ended, None while both run."""
        ended = GuardedServer.failure(self)
        processes = self.family()
        is_front_there = any(_runs(process, "code-server") for process in processes)
        if ended is None and is_front_there and not any(_runs(one, "api") for one in processes):
            return "has lost the process with the definitions"
        return ended

    def wait_until_ready(self) -> None:
        """Wait until it answers.

        Raises:
            RetryableError: it ended or does not answer in time.
        """
        client, deadline = DagsterGrpcClient(socket=self.socket), time.monotonic() + _START_SECONDS
        while self.exit_code is None and time.monotonic() < deadline:
            with suppress(DagsterUserCodeUnreachableError):
                client.get_server_id(timeout=5)
                return
            time.sleep(0.1)
        raise _not_started(self)


def _runs(process: psutil.Process, command: str) -> bool:
    """Tell whether a process is that command of Dagster's; one that has ended is not."""
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
            # Else a backfill fails, and its runs with it, when it is looked at while the code
            # server is being replaced; with it, it waits.
            "DAGSTER_BACKFILL_RETRY_DEFINITION_CHANGED_ERROR": "1",
            # Where Dagster makes sockets of its own, which are open to whom the umask says.
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
        # The code server last: a sensor whose tick loses it would be shown as failed.
        stop([self._daemon, self._web])
        stop([self._code])
        self._scratch.close()


def _not_started(server: GuardedServer) -> RetryableError:
    failure = server.failure() or f"did not answer within {_START_SECONDS} seconds"
    return service_ended(server.name, f"{failure} ({server.last_line()})", str(server.log))
