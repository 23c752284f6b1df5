"""Starts a JVM for this process and opens a classic session in it; ends both. Nothing else.

The JVM is started here and not by pyspark because pyspark gives it this terminal's error output,
forks with a hook (unsafe in a process with threads) and keeps it running after the session ends.
"""

import importlib
import logging
import os
import signal
import struct
import subprocess
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from batch_pipeline.domain.errors import SparkUnavailableError
from batch_pipeline.spark.clusters.archive_note import check_archive
from batch_pipeline.spark.clusters.conf import Cluster
from batch_pipeline.spark.clusters.engine_state import has_executors, is_stopped
from batch_pipeline.spark.clusters.fitness import check_executors
from batch_pipeline.spark.clusters.master import Place, check_reachable, place_of
from batch_pipeline.spark.sessions import launch
from batch_pipeline.spark.sessions.class_data import archive_options
from batch_pipeline.spark.sessions.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 15


class LocalSession:
    """A classic session on `master` and the JVM that it lives in."""

    def __init__(
        self,
        home: Path,
        master: str,
        conf: dict[str, str],
        *,
        packed: Path | None = None,
        stop_timeout_seconds: float = STOP_TIMEOUT_SECONDS,
    ) -> None:
        """Start the JVM and open the session; `packed` is the archive of what executors import.

        Raises:
            ExecutorUnfitError: an executor of the cluster cannot run tasks.
            JavaMissingError: there is no Java to start it with.
            PackedUnusableError: the archive is not there, or for another Python or release.
            SparkUnavailableError: the JVM or the session does not start, or no executor comes.
        """
        home = home.absolute()
        self._master = master
        self._stop_timeout_seconds = stop_timeout_seconds
        self._log = launch.log_file(home, "spark.log")
        self._scratch = launch.new_scratch(home)
        self._jvm: subprocess.Popen[bytes] | None = None
        self._gateway: Any = None
        try:
            self._start(home, conf, packed)
        except BaseException:
            self._end_jvm()
            raise

    def is_alive(self) -> bool:
        """Tell whether the session can be used: its context runs and, on a cluster, an executor."""
        if self._jvm is None or self._jvm.poll() is not None or is_stopped(self.session):
            return False
        return place_of(self._master) is Place.DRIVER or has_executors(self.session)

    def close(self) -> None:
        """Stop the session and its JVM and wait until both are gone."""
        self._stop()
        self._end_jvm()

    def _stop(self) -> None:
        # The JVM may have died before. Then the first stop breaks off half way and the second lets
        # go of the rest, so that another session can be opened.
        for stop in (self.session.stop, self.session.sparkContext.stop):
            with warnings.catch_warnings(), _py4j_silent(), suppress(_py4j_error(), OSError):
                warnings.simplefilter("ignore", RuntimeWarning)
                stop()

    def _start(self, home: Path, conf: dict[str, str], packed: Path | None) -> None:
        java = java_home(home, os.environ)
        options = archive_options(home, java)
        if place_of(self._master) is Place.DRIVER:
            conf = launch.local_conf(home, self._scratch, options, conf)
            conf["spark.master"] = self._master
            self._open(conf, launch.child_environment(java, os.environ))
            return
        if packed is not None:
            check_archive(packed)
        check_reachable(self._master)
        cluster = Cluster(master=self._master, environment=os.environ, packed=packed)
        conf = cluster.conf(home, self._scratch, options, conf)
        python = conf["spark.pyspark.python"]
        self._open(conf, cluster.driver_environment(java, self._scratch, python))
        try:
            check_executors(self.session, self._master)
        except BaseException:
            self._stop()
            raise

    def _open(self, conf: dict[str, str], environment: dict[str, str]) -> None:
        port, secret = self._start_jvm(conf, environment)
        gateway = {
            "PYSPARK_GATEWAY_PORT": str(port),
            "PYSPARK_GATEWAY_SECRET": secret,
            "PYSPARK_PYTHON": environment["PYSPARK_PYTHON"],
        }
        with _environment(gateway), _interrupt_handler_kept():
            self.session = self._open_session()

    def _start_jvm(self, conf: dict[str, str], environment: dict[str, str]) -> tuple[int, str]:
        answer = self._scratch / "gateway"
        properties = launch.properties_file(self._scratch, conf)
        start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            # The JVM ends when its standard input does, so it cannot outlive this process; in a
            # process group of its own it does not get this terminal's Ctrl-C.
            self._jvm = subprocess.Popen(
                launch.submit_command(properties, "pyspark-shell"),
                env=environment | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        if not _appears(answer, self._jvm):
            raise SparkUnavailableError(
                self._master, f"the JVM did not start: {launch.last_lines(self._log, start=start)}"
            )
        content = answer.read_bytes()
        properties.unlink()
        answer.unlink()
        (port,) = struct.unpack_from(">i", content)
        return port, content[8:].decode()

    def _open_session(self) -> "SparkSession":
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        try:
            self._gateway = launch_gateway()  # type: ignore[no-untyped-call] # pyspark has no types
            return SparkSession(SparkContext(gateway=self._gateway))
        except (_py4j_error(), ValueError) as error:
            raise SparkUnavailableError(
                self._master, str(error).strip().splitlines()[-1]
            ) from error

    def _end_jvm(self) -> None:
        if self._gateway is not None:
            self._gateway.shutdown()
            _forget_gateway()
        if self._jvm is not None:
            _end(self._jvm, self._stop_timeout_seconds)
        launch.remove_scratch(self._scratch)


def _py4j_error() -> type[Exception]:
    error: type[Exception] = importlib.import_module("py4j.protocol").Py4JError  # has no types
    return error


def _appears(answer: Path, process: "subprocess.Popen[bytes]") -> bool:
    for _ in range(START_TIMEOUT_SECONDS * 20):
        if answer.exists():
            return True
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
            return False
    return False


def _end(process: "subprocess.Popen[bytes]", timeout_seconds: float) -> None:
    """Close the standard input of a process and wait; what does not end is killed."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
    try:
        process.wait(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, left = psutil.wait_procs(family, timeout=2)
    for child in left:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def _forget_gateway() -> None:
    """Let pyspark start anew: it keeps its first JVM for the life of the process."""
    from pyspark import SparkContext

    SparkContext._gateway = None  # noqa: SLF001 - there is no public way
    SparkContext._jvm = None  # noqa: SLF001


@contextmanager
def _py4j_silent() -> Iterator[None]:
    """Keep what py4j logs of a connection that broke off, with its traceback, from the console."""
    root = logging.getLogger()  # where py4j logs it

    def is_of_others(record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname

    root.addFilter(is_of_others)
    try:
        yield
    finally:
        root.removeFilter(is_of_others)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    # pyspark reads these from the process only; Connect's mark would forbid a classic session.
    marks = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")
    before = {name: os.environ.get(name) for name in (*variables, *marks)}
    for name in marks:
        os.environ.pop(name, None)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _interrupt_handler_kept() -> Iterator[None]:
    """Undo that pyspark installs a handler of its own for Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
