"""Dagster's webserver and daemon as child processes of `batch-pipeline dev`."""

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from batch_pipeline.defs.instance.home import prepare_dagster_home
from batch_pipeline.domain.errors import DagsterStartError, PortInUseError
from batch_pipeline.settings.home import Home
from batch_pipeline.spark.sessions.connect_server import GUARDIAN

_START_SECONDS = 90
_STOP_SECONDS = 15


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


class DagsterServers:
    """`dagster dev` with the home's instance, as a context manager; leaves no process behind."""

    def __init__(self, home: Home, *, port: int, spark_remote: str) -> None:
        self._home = home
        self._port = port
        self._spark_remote = spark_remote
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Where the servers write what they have to say."""
        return self._home.logs / "dagster.log"

    def __enter__(self) -> Self:
        self._home.logs.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "DAGSTER_HOME": str(prepare_dagster_home(self._home)),
            "BATCH_PIPELINE_HOME": str(self._home.path),
            "BATCH_PIPELINE_SPARK_REMOTE": self._spark_remote,
        }
        # The guardian ends Dagster when this process is gone, however it went.
        command = [sys.executable, "-I", "-S", str(GUARDIAN)]
        command += [sys.executable, "-m", "dagster", "dev"]
        command += ["--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--module-name", "batch_pipeline.definitions"]
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal reaches this process only, which then
            # stops the parts in order.
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
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

    def wait(self, stop: threading.Event) -> str | None:
        """Wait until `stop` is set; gives a sentence when the servers ended by themselves."""
        while not stop.wait(0.5):
            if self._process is not None and self._process.poll() is not None:
                return str(DagsterStartError(str(self.log), self._last_line()))
        return None

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        url = f"http://127.0.0.1:{self._port}/server_info"
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            with suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(url, timeout=5).close()
                return
            time.sleep(0.25)
        raise DagsterStartError(str(self.log), self._last_line())

    def _last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _stop(self) -> None:
        if self._process is None:
            return
        family: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        _, alive = psutil.wait_procs(family, timeout=3)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None
