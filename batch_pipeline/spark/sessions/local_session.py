"""A JVM of this process with a classic Spark session, local or as the driver of a cluster.

The JVM is started here and not by pyspark, because pyspark gives it this terminal's error output,
forks with a hook (unsafe in a process with threads) and keeps it running after the session ends.
"""

import importlib
import logging
import os
import signal
import struct
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from batch_pipeline.model.errors import SparkUnavailableError
from batch_pipeline.spark.cluster import Cluster, check_reachable, runs_in_driver, spark_defaults
from batch_pipeline.spark.engine import has_executors, is_stopped
from batch_pipeline.spark.executor_diagnostics import check_executors
from batch_pipeline.spark.packed_archive import check_archive
from batch_pipeline.spark.sessions import launch
from batch_pipeline.spark.sessions.class_data import archive_options
from batch_pipeline.spark.sessions.java import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 15
KILL_TIMEOUT_SECONDS = 2


class LocalSession:
    """A classic session on `master` and the JVM that it lives in.

    The JVM is started at once and needs about half a second; `open` waits for it. Other imports can
    go on meanwhile.
    """

    def __init__(
        self,
        home: Path,
        master: str,
        conf: dict[str, str],
        *,
        packed: Path | None = None,
        stop_timeout_seconds: float = STOP_TIMEOUT_SECONDS,
    ) -> None:
        """Start the JVM; `packed` is the archive of what tasks import.

        Raises:
            ConfigurationError: there is no Java, or the archive is not there or for another Python
                or release.
            SparkUnavailableError: the master cannot be reached.
        """
        home = home.absolute()
        self._master, self._runs_tasks = master, runs_in_driver(master)
        self._stop_timeout_seconds = stop_timeout_seconds
        # Settings may name listeners, logs or files that a JVM has to complete as it ends.
        self._has_user_conf = bool(conf or spark_defaults(os.environ))
        self._log = launch.rotate_log(home, "spark.log")
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self._scratch = launch.create_scratch(home)
        self._jvm: subprocess.Popen[bytes] | None = None
        self._gateway: Any = None
        self._session: SparkSession | None = None
        try:
            settings, self._environment = driver_settings(
                home, self._scratch, conf | {"spark.master": master}, packed
            )
            self._start_jvm(home, settings)
        except BaseException:
            self._end_jvm()
            raise

    def open(self) -> "SparkSession":
        """Return the session; the first call waits for the JVM and opens it.

        Raises:
            ConfigurationError: an executor of the cluster cannot run tasks.
            SparkUnavailableError: the JVM or the session does not start, or no executor registers.
        """
        if self._session is not None:
            return self._session
        try:
            port, secret = self._connect()
            gateway = {
                "PYSPARK_GATEWAY_PORT": str(port),
                "PYSPARK_GATEWAY_SECRET": secret,
                "PYSPARK_PYTHON": self._environment["PYSPARK_PYTHON"],
            }
            with (
                _patched_environment(gateway),
                _restored_interrupt_handler(),
                _without_py4j_logs(),
            ):
                self._session = self._open_session()
            if not self._runs_tasks:
                check_executors(self._session, self._master)
            return self._session
        except BaseException:
            self.close()
            raise

    def is_alive(self) -> bool:
        """Return whether the context runs and, on a cluster, has an executor."""
        if self._session is None or self._jvm is None or self._jvm.poll() is not None:
            return False
        if is_stopped(self._session):
            return False
        return self._runs_tasks or has_executors(self._session)

    def close(self) -> None:
        """Stop the session and its JVM, and wait until both have ended."""
        if self._session is not None:
            _stop_session(self._session)
        self._end_jvm()

    def end_processes(self) -> None:
        """End the JVM and its Python workers at once; the session cannot be used any more.

        For a process that is about to end: to stop a session takes more than a second. `close`
        makes up for it if the process goes on. Where others could notice how a session ends (a
        cluster, or listeners and logs of the user's settings), it is closed.
        """
        if self._has_user_conf or not self._runs_tasks:
            self.close()
            return
        context = getattr(self._session, "sparkContext", None)
        updates = getattr(context, "_accumulatorServer", None)  # private: may be missing
        if updates is not None:
            # Its thread would print the end of the JVM as an error.
            updates.handle_error = lambda *_: None
        self._end_jvm(at_once=True)

    def _start_jvm(self, home: Path, settings: dict[str, str]) -> None:
        self._connection_file = self._scratch / "gateway"
        self._command = launch.DriverCommand(
            home, self._scratch, settings, self._environment, "pyspark-shell"
        )
        with self._log.open("ab") as log:
            # The JVM ends when its standard input closes, so it cannot outlive this process. In a
            # process group of its own it does not get this terminal's Ctrl-C.
            self._jvm = subprocess.Popen(
                self._command.words(),
                env=self._environment
                | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._connection_file)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def _connect(self) -> tuple[int, str]:
        """Return port and secret of the JVM."""
        jvm = self._jvm
        if jvm is None or not _wait_for_file(self._connection_file, jvm):
            lines = launch.last_lines(self._log, start=self._log_start)
            raise SparkUnavailableError(self._master, f"the JVM did not start: {lines}")
        content = self._connection_file.read_bytes()
        self._connection_file.unlink()
        self._command.store(jvm.pid)
        (port,) = struct.unpack_from(">i", content)  # then the length of the secret, and the secret
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

    def _end_jvm(self, *, at_once: bool = False) -> None:
        """End the JVM and what it has started, and wait until they have ended."""
        if self._gateway is not None:
            self._gateway.shutdown()
            _reset_gateway()
            self._gateway = None
        if self._jvm is not None:
            _end_process(self._jvm, 0 if at_once else self._stop_timeout_seconds)
        launch.delete_scratch(self._scratch)


def _stop_session(session: "SparkSession") -> None:
    # If the JVM has died, the first stop fails half way. The second one resets the rest of
    # pyspark's state, so that another session can be opened.
    for stop in (session.stop, session.sparkContext.stop):
        with warnings.catch_warnings(), _without_py4j_logs(), suppress(_py4j_error(), OSError):
            warnings.simplefilter("ignore", RuntimeWarning)
            stop()


def driver_settings(
    home: Path, scratch: Path, conf: Mapping[str, str], packed: Path | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings and the environment of a driver's JVM on the `spark.master` of `conf`.

    Raises:
        ConfigurationError: there is no Java, or the archive is not there or for another Python or
            release.
        SparkUnavailableError: the master cannot be reached.
    """
    java, master = find_java_home(home, os.environ), conf["spark.master"]
    options = archive_options(home, java)
    if runs_in_driver(master):
        settings = launch.local_conf(home, scratch, options, conf)
        return settings, launch.jvm_environment(java, os.environ)
    if packed is not None:
        check_archive(packed)
    check_reachable(master)
    cluster = Cluster(master=master, environment=os.environ, packed=packed)
    settings = cluster.conf(home, scratch, options, conf)
    return settings, cluster.driver_environment(java, scratch, settings["spark.pyspark.python"])


def _py4j_error() -> type[Exception]:
    error: type[Exception] = importlib.import_module("py4j.protocol").Py4JError  # has no types
    return error


def _wait_for_file(path: Path, process: "subprocess.Popen[bytes]") -> bool:
    for _ in range(START_TIMEOUT_SECONDS * 20):
        if path.exists():
            return True
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
            return False
    return False


def _end_process(process: "subprocess.Popen[bytes]", timeout_seconds: float) -> None:
    """Close the standard input of a process, wait, and kill what is left of its tree."""
    children: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    if timeout_seconds == 0:
        process.kill()
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=timeout_seconds)
    process.kill()
    process.wait()
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
    while any(map(_is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.005)


def _is_running(process: psutil.Process) -> bool:
    # Not `wait_procs`: its wait ends when the system has removed an ended process from its table,
    # which takes the first process of a container up to two seconds.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _reset_gateway() -> None:
    """Make pyspark forget the gateway: it keeps its first one for the life of the process.

    A later session would connect to the JVM that has ended.
    """
    from pyspark import SparkContext

    SparkContext._gateway = None  # noqa: SLF001 - there is no public way
    SparkContext._jvm = None  # noqa: SLF001


@contextmanager
def _without_py4j_logs() -> Iterator[None]:
    """Drop the tracebacks that py4j logs, to the root logger, when its connection breaks off."""
    root = logging.getLogger()

    def is_not_py4j(record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname

    root.addFilter(is_not_py4j)
    try:
        yield
    finally:
        root.removeFilter(is_not_py4j)


@contextmanager
def _patched_environment(variables: dict[str, str]) -> Iterator[None]:
    # pyspark reads these only from the process. With a variable of Connect it would refuse to open
    # a classic session.
    connect_variables = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")
    before = {name: os.environ.get(name) for name in (*variables, *connect_variables)}
    for name in connect_variables:
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
def _restored_interrupt_handler() -> Iterator[None]:
    """Restore the handler of Ctrl-C, which pyspark replaces by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
