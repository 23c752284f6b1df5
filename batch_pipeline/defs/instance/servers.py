"""Dagster's code server, webserver and daemon as child processes of `batch-pipeline dev`.

Each is a part that is started again when it ends. Runs are children of the code server, and go on
when it is replaced; who looks after them then is the `launcher`.
"""

import os
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import yaml
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._grpc.client import DagsterGrpcClient

from batch_pipeline.defs.instance.bounded_log import bound
from batch_pipeline.defs.instance.guarded import GuardedServer, stop
from batch_pipeline.defs.instance.home import prepare_dagster_home
from batch_pipeline.defs.instance.keeping import Part
from batch_pipeline.domain.errors import DagsterStartError, PortInUseError
from batch_pipeline.settings.home import Home
from batch_pipeline.stores.private_folder import PrivateFolder

_MODULE = "batch_pipeline.definitions"
_WEBSERVER = "batch_pipeline.defs.instance.dagster_webserver"
_LOCATION = "batch_pipeline"  # as in workspace.yaml, so that `dagster dev` goes on with the same
_START_SECONDS = 90
_RELOAD_SECONDS = 60


def check_port(port: int) -> None:
    """Check that a port of the loopback interface is free.

    Raises:
        PortInUseError: it is not.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortInUseError(port) from error


@dataclass(frozen=True, slots=True)
class _Server:
    """A server that is started again as it was."""

    server: GuardedServer

    @property
    def name(self) -> str:
        return self.server.name

    def trouble(self) -> str | None:
        code = self.server.exit_code
        return None if code is None else f"ended with exit code {code}; see {self.server.log}"

    def restore(self) -> None:
        self.server.start()


@dataclass(frozen=True, slots=True)
class _CodeServer(_Server):
    """The code server: a process that stays, in front of one that has the definitions."""

    socket: str

    def trouble(self) -> str | None:
        ended = _Server.trouble(self)
        processes = self.server.family()
        is_front_there = any(_runs(process, "code-server") for process in processes)
        if ended is None and is_front_there and not any(_runs(one, "api") for one in processes):
            return "the process with the definitions is gone"
        return ended

    def restore(self) -> None:
        if self.server.exit_code is None:
            # Its runs are not its children any more: replacing all of it would end them.
            with suppress(DagsterUserCodeUnreachableError):  # it also says farewell to the dead one
                DagsterGrpcClient(socket=self.socket).reload_code(_RELOAD_SECONDS)
            return
        Path(self.socket).unlink(missing_ok=True)
        self.server.start()
        self.wait()

    def wait(self) -> None:
        """Wait until it answers."""
        client, deadline = DagsterGrpcClient(socket=self.socket), time.monotonic() + _START_SECONDS
        while self.server.exit_code is None and time.monotonic() < deadline:
            with suppress(DagsterUserCodeUnreachableError):
                client.get_server_id(timeout=5)
                return
            time.sleep(0.1)
        raise DagsterStartError(str(self.server.log), _last_line(self.server.log))


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
        self._socket = str(self._scratch.path / "code.sock")
        code = ["dagster", "code-server", "start", "--socket", self._socket]
        code += ["--module-name", _MODULE, "--location-name", _LOCATION]
        web = [_WEBSERVER, "--host", "127.0.0.1", "--port", str(port)]
        web += ["--live-data-poll-rate", "2000"]
        shared = ["--workspace", str(self._workspace)]
        self._code = _CodeServer(self._server("code server", code), self._socket)
        self._web = _Server(self._server("webserver", web + shared))
        daemon = ["dagster._daemon", "run", *shared]
        self._daemon = _Server(self._server("daemon", daemon))

    @property
    def log(self) -> Path:
        """Where the servers write what they have to say."""
        return self._home.logs / "dagster.log"

    @property
    def parts(self) -> list[Part]:
        """What has to stay up."""
        return [self._code, self._web, self._daemon]

    def __enter__(self) -> Self:
        self._home.logs.mkdir(parents=True, exist_ok=True)
        bound(self.log)
        prepare_dagster_home(self._home)
        server = {"location_name": _LOCATION, "socket": self._socket, "host": "localhost"}
        self._workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}))
        try:
            self._code.server.start()
            self._code.wait()
            self._web.server.start()
            self._daemon.server.start()
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

    def _server(self, name: str, arguments: list[str]) -> GuardedServer:
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
        command = [sys.executable, "-m", *arguments]
        return GuardedServer(name=name, command=command, environment=environment, log=self.log)

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        url = f"http://127.0.0.1:{self._port}/server_info"
        while time.monotonic() < deadline:
            if self._web.trouble() or self._daemon.trouble():
                break
            with suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(url, timeout=5).close()
                return
            time.sleep(0.25)
        raise DagsterStartError(str(self.log), _last_line(self.log))

    def _stop(self) -> None:
        # The code server last: a sensor whose tick loses it would be shown as failed.
        stop([self._daemon.server, self._web.server])
        stop([self._code.server])
        self._scratch.close()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
