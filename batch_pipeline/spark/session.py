"""The one Spark session of this process: local, on a cluster, or of a Connect client.

This module decides which session to open, keep or replace, and holds the JVM of a classic session.
The JVM is started here and not by pyspark, because pyspark connects it to this terminal's error
output, forks with a hook (unsafe in a process with threads) and keeps it running after the session
ends. pyspark is imported when a session is opened.

Encoding needs no DataFrames, so it gets the *engine* of the session: for a classic one its context,
which opens twice as fast as the session.
"""

import atexit
import importlib
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from batch_pipeline.model.errors import ConflictError, PipelineError, SparkUnavailableError
from batch_pipeline.spark import driver, warm_server
from batch_pipeline.spark.diagnostics import (
    check_executors,
    engine_errors,
    failure_reason,
    has_executors,
    is_stopped,
)
from batch_pipeline.spark.spark_connect import (
    ConnectSession,
    server_address,
    without_session_id,
)
from batch_pipeline.storage.filesystem import raise_as

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from batch_pipeline.spark.diagnostics import SparkEngine

START_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 15

_Opened = TypeVar("_Opened")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Settings of a session.

    Files (logs, temporary files, the Java wrapper) go below `home`. With `remote`, an address
    `sc://host:port/;token=…`, the session is a Connect client's and `master` is not used; if the
    address has a `session_id`, processes share that session. `conf` overrides the settings of this
    package. `packed` is the archive of the modules that tasks import, for executors that lack them.
    With `keep_minutes`, a local session belongs to a warm server, which keeps running for that long
    while it is idle; other processes use the same session if it `is_shared`.
    """

    home: Path
    remote: str | None = field(default=None, repr=False)  # holds a token
    master: str = "local[*]"
    packed: Path | None = None
    conf: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    keep_minutes: int = 0
    is_shared: bool = True

    @property
    def target(self) -> str:
        """Master or server address, without credentials."""
        return self.master if self.remote is None else server_address(self.remote)

    def unshared(self) -> "SparkSettings":
        """Return the settings of a session that no other process shares.

        A user's transform needs one, because temporary views, settings and functions that it
        registers belong to the session.
        """
        if self.remote is not None:
            return replace(self, remote=without_session_id(self.remote))
        return replace(self, is_shared=False) if self.keeps_server else self

    @property
    def keeps_server(self) -> bool:
        """Whether the session belongs to a warm server that other processes use, too."""
        is_local = self.remote is None and driver.runs_in_driver(self.master)
        return is_local and self.keep_minutes > 0

    def server_spec(self) -> warm_server.ServerSpec:
        """Return the spec with which the warm server of the session is started."""
        return warm_server.ServerSpec(
            home=self.home.absolute(),
            master=self.master,
            packed=self.packed,
            conf=tuple(sorted(self.conf.items())),
            keep_seconds=60 * self.keep_minutes,
        )


class LocalSession:
    """A classic session on `master`, its context and its JVM.

    The JVM is started immediately and takes about a second; `open_engine` and `open` wait for it.
    Other imports can run in the meantime.
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
        """Start the JVM; `packed` is the archive of the modules that tasks import.

        Raises:
            ConfigurationError: there is no Java, or the archive does not exist or is for another
                Python or release.
            SparkUnavailableError: the master cannot be reached, or files or processes that the JVM
                needs cannot be created.
        """
        home = home.absolute()
        self._master, self._runs_tasks = master, driver.runs_in_driver(master)
        self._stop_timeout_seconds = stop_timeout_seconds
        # Settings may name listeners, logs, files or folders: a JVM must complete or delete them
        # before it exits.
        local_folders = os.environ.get("SPARK_LOCAL_DIRS")
        self._has_user_conf = bool(conf or local_folders or driver.spark_defaults(os.environ))
        with raise_as(partial(SparkUnavailableError, master)):
            self._log = driver.rotate_log(home, "spark.log")
            self._log_start = self._log.stat().st_size if self._log.exists() else 0
            self._scratch = driver.create_scratch(home)
        self._jvm: subprocess.Popen[bytes] | None = None
        self._gateway: Any = None
        self._context: SparkContext | None = None
        self._session: SparkSession | None = None
        try:
            driver.check_cluster(master, packed)
            with raise_as(partial(SparkUnavailableError, master)):
                settings, self._environment = driver.driver_settings(
                    home, self._scratch, conf | {"spark.master": master}, packed
                )
                self._start_jvm(settings)
        except BaseException:
            self._end_jvm()
            raise

    def open_engine(self) -> "SparkContext":
        """Return the context; the first call waits for the JVM and opens it.

        Raises:
            ConfigurationError: an executor of the cluster cannot run tasks.
            SparkUnavailableError: the JVM or the context does not start, or no executor registers.
        """
        if self._context is not None:
            return self._context
        try:
            port, secret = self._connect()
            gateway = {
                "PYSPARK_GATEWAY_PORT": str(port),
                "PYSPARK_GATEWAY_SECRET": secret,
                "PYSPARK_PYTHON": self._environment["PYSPARK_PYTHON"],
            }
            with _patched_environment(gateway), _restored_interrupt_handler():
                self._context = self._open(self._open_context)
            if not self._runs_tasks:
                check_executors(self._context)
            return self._context
        except BaseException:
            self.close()
            raise

    def open(self) -> "SparkSession":
        """Return the session; the first call opens it.

        Raises:
            ConfigurationError, SparkUnavailableError: as `open_engine`.
        """
        context = self.open_engine()
        if self._session is not None:
            return self._session
        from pyspark.sql import SparkSession

        try:
            with _patched_environment({}):
                self._session = self._open(lambda: SparkSession(context))
            return self._session
        except BaseException:
            self.close()
            raise

    def is_alive(self) -> bool:
        """Return whether the context runs and, on a cluster, has an executor."""
        if self._context is None or self._jvm is None or self._jvm.poll() is not None:
            return False
        if is_stopped(self._context):
            return False
        return self._runs_tasks or has_executors(self._context)

    def close(self) -> None:
        """Stop the session and its JVM, and wait until both have ended."""
        # If the JVM has died, the first stop fails halfway. The next one resets the rest of
        # pyspark's state, so that another session can be opened.
        for opened in (self._session, self._context, self._context):
            if opened is not None:
                _stop(opened)
        self._end_jvm()

    def end_processes(self) -> None:
        """End the JVM and its Python workers immediately; the session can no longer be used.

        For a process that is about to exit, because stopping a session takes more than a second. If
        the process continues, `close` completes the cleanup. If the way a session ends is visible
        elsewhere (on a cluster, or to listeners and logs of the user's settings), it is closed
        instead.
        """
        if self._has_user_conf or not self._runs_tasks:
            self.close()
            return
        self._end_jvm(at_once=True)

    def _start_jvm(self, settings: dict[str, str]) -> None:
        self._connection_file = self._scratch / "gateway"
        with self._log.open("ab") as log:
            # The JVM ends when its standard input closes, so it cannot outlive this process. In a
            # process group of its own it does not get this terminal's Ctrl-C.
            self._jvm = subprocess.Popen(
                driver.driver_command(self._scratch, settings, "pyspark-shell"),
                env=self._environment
                | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._connection_file)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def _connect(self) -> tuple[int, str]:
        """Return port and secret of the JVM."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while self._jvm is not None and self._jvm.poll() is None and time.monotonic() < deadline:
            if not self._connection_file.exists():
                time.sleep(0.02)
                continue
            content = self._connection_file.read_bytes()
            self._connection_file.unlink()
            # Spark has read its settings, which may hold secrets.
            (self._scratch / "spark.properties").unlink(missing_ok=True)
            (port,) = struct.unpack_from(">i", content)  # then the secret's length, and the secret
            return port, content[8:].decode()
        lines = driver.last_lines(self._log, start=self._log_start)
        raise SparkUnavailableError(self._master, f"the JVM did not start: {lines}")

    def _open(self, open_it: "Callable[[], _Opened]") -> "_Opened":
        errors: tuple[type[Exception], ...] = (ValueError, *engine_errors())
        try:
            return open_it()
        except errors as error:
            raise SparkUnavailableError(self._master, failure_reason(error)) from error

    def _open_context(self) -> "SparkContext":
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        logging.getLogger().addFilter(_is_not_of_py4j)
        # pyspark has no types
        self._gateway = gateway = launch_gateway()  # type: ignore[no-untyped-call]
        if SparkContext._active_spark_context is None:  # noqa: SLF001 - there is no public API
            _reset_gateway()  # of a session that the user opened and stopped
        _defer_numpy_converters()
        context = SparkContext(gateway=gateway)
        updates = getattr(context, "_accumulatorServer", None)  # private: may be missing
        if updates is not None:
            # Its thread would print the end of the JVM as an error.
            updates.handle_error = lambda *_: None
        return context

    def _end_jvm(self, *, at_once: bool = False) -> None:
        """End the JVM and the processes that it started, and wait until they have ended."""
        if self._gateway is not None:
            from pyspark import SparkContext

            self._gateway.shutdown()
            if SparkContext._gateway is self._gateway:  # noqa: SLF001 - there is no public API
                _reset_gateway()
            self._gateway = None
        if self._jvm is not None:
            driver.end_process(self._jvm, 0 if at_once else self._stop_timeout_seconds)
        driver.delete_scratch(self._scratch)


def _stop(opened: "SparkEngine") -> None:
    with warnings.catch_warnings(), suppress(*engine_errors()):
        warnings.simplefilter("ignore", RuntimeWarning)
        opened.stop()


def _reset_gateway() -> None:
    """Make pyspark forget its first gateway, which it keeps for the life of the process.

    Otherwise the next session would be one of that gateway's JVM.
    """
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - there is no public API


class _NumpyConverter:
    """One of pyspark's converters of arguments, which is used for values of numpy only.

    On its own it imports pandas for any argument, to find out that numpy is installed: 0.3 s.
    """

    def __init__(self, converter: Any) -> None:
        self._converter = converter

    def can_convert(self, value: object) -> bool:
        numpy = sys.modules.get("numpy")  # perhaps another thread is importing it
        types = tuple(getattr(numpy, name, _NumpyConverter) for name in ("generic", "ndarray"))
        return isinstance(value, types) and bool(self._converter.can_convert(value))

    def convert(self, value: object, client: object) -> Any:
        return self._converter.convert(value, client)


def _defer_numpy_converters() -> None:
    converters: list[Any] = importlib.import_module("py4j.protocol").INPUT_CONVERTER
    for index, converter in enumerate(converters):
        if type(converter).__name__ in {"NumpyArrayConverter", "NumpyScalarConverter"}:
            converters[index] = _NumpyConverter(converter)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Return False for the tracebacks that py4j logs, to the root logger, if a connection breaks.

    The errors are raised, too. The filter stays, because the thread in which py4j frees Java
    objects may log after the JVM has ended.
    """
    return "py4j" not in record.pathname


@contextmanager
def _patched_environment(variables: dict[str, str]) -> Iterator[None]:
    # pyspark reads these only from the process environment. With a variable of Connect it would
    # refuse to open a classic session.
    connect_variables = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")
    before = {name: os.environ.get(name) for name in (*variables, *connect_variables)}
    for name in connect_variables:
        os.environ.pop(name, None)
    os.environ.update(variables)  # other threads never find a variable missing meanwhile
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
    """Restore the handler of Ctrl-C, which pyspark replaces with its own."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@dataclass(slots=True)
class _ProcessState:
    """The session of this process; pyspark allows only one, too."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    settings: SparkSettings | None = None
    opened: LocalSession | ConnectSession | None = None
    is_requested: bool = True  # False for a session that was only started in advance


_process = _ProcessState()


def start_session(settings: SparkSettings) -> None:
    """Start the JVM of a local session that is likely to be opened soon; returns at once.

    If a warm server is to be kept, that server is started. Has no effect for clusters and Connect
    clients, or if a session exists. If the JVM cannot be started, `open_session` raises the error.
    """
    if settings.remote is not None or not driver.runs_in_driver(settings.master):
        return
    if settings.keeps_server:
        with suppress(OSError):
            warm_server.start(settings.server_spec())
        return
    with _process.lock, suppress(PipelineError):
        if _process.opened is None:
            _set_session(_new_session(settings), settings, is_requested=False)


def open_in_background() -> None:
    """In a thread, open the engine of the session that was started in advance.

    `open_engine` and `open_session` wait for it. The thread imports nothing, so the caller can go
    on importing: if several threads import pyspark at the same time, one of them can get partially
    initialized modules.
    """
    if not _process.is_requested:
        importlib.import_module("pyspark.sql")
        threading.Thread(target=_open_started, daemon=True).start()


def open_session(settings: SparkSettings) -> "SparkSession":
    """Open the session, or return the open one if it has equal settings and still works.

    An unshared session also serves requests for the shared one, and replaces it if it is open. A
    local session ends with the process, even if the process is killed.

    Raises:
        InvalidValueError: the address or the choice of Java is not valid.
        ConfigurationError: there is no Java, the archive does not exist or is for another Python or
            release, or an executor of the cluster cannot run tasks.
        ConflictError: a session with other settings is open.
        SparkUnavailableError: the JVM does not start, or the server does not answer or refuses
            the token.
    """
    with _process.lock:
        return _forgotten_on_error(_opened(settings).open)


def open_engine(settings: SparkSettings) -> "SparkEngine":
    """Open the engine of the session, as `open_session` does; for a classic session its context.

    Raises:
        InvalidValueError, ConfigurationError, ConflictError, SparkUnavailableError: as
            `open_session`.
    """
    with _process.lock:
        open_it: Callable[[], SparkEngine] = _opened(settings).open_engine
        return _forgotten_on_error(open_it)


def _opened(settings: SparkSettings) -> LocalSession | ConnectSession:
    """Return the session of the process, or a new one if it does not work or fit the settings."""
    opened, known = _process.opened, _process.settings
    if opened is not None and known is not None:
        is_equal = known in (settings, settings.unshared())
        # A session that was started in advance is not open yet.
        is_usable = opened.is_alive() if _process.is_requested else is_equal
        if is_usable and not is_equal and known.unshared() != settings:
            raise _session_conflict(known.target, settings.target)
        if not (is_usable and is_equal):
            close_session()
    opened = _process.opened
    if opened is None:
        opened = _new_session(settings)
        _set_session(opened, settings)
    _process.is_requested = True
    return opened


def close_session() -> None:
    """Close the session, if there is one, and wait until its JVM has ended."""
    with _process.lock:
        opened = _process.opened
        _set_session(None, None)
        if opened is not None:
            opened.close()


def end_session() -> bool:
    """End the session because this process is about to end; return whether it had a JVM.

    Faster than `close_session`, which also prepares pyspark for the next session of the process;
    `open_session` does that later.
    """
    opened = _process.opened
    if isinstance(opened, LocalSession):
        _process.is_requested = True
        opened.end_processes()  # without the lock, which a thread that opens the session holds
        return True
    close_session()
    return False


def _new_session(settings: SparkSettings) -> LocalSession | ConnectSession:
    conf = dict(settings.conf)
    if settings.remote is not None:
        return ConnectSession(settings.remote, conf, packed=settings.packed)
    session = _warm_session(settings, conf) if settings.keeps_server else None
    return session or LocalSession(settings.home, settings.master, conf, packed=settings.packed)


def _warm_session(settings: SparkSettings, conf: dict[str, str]) -> ConnectSession | None:
    """Return a session of the warm server; None if no server can be started or used."""
    with suppress(OSError):
        used = warm_server.use(settings.server_spec())
        if used is not None:
            remote = used.server.remote
            if not settings.is_shared:
                remote = without_session_id(remote)
            try:
                return ConnectSession(remote, conf, on_close=used.close)
            except BaseException as error:
                used.close()
                if not isinstance(error, SparkUnavailableError):
                    raise
    return None


def _set_session(
    opened: LocalSession | ConnectSession | None,
    settings: SparkSettings | None,
    *,
    is_requested: bool = True,
) -> None:
    _process.opened, _process.settings = opened, settings
    _process.is_requested = is_requested
    atexit.unregister(end_session)
    if opened is not None:
        atexit.register(end_session)


def _forgotten_on_error(open_it: Callable[[], _Opened]) -> _Opened:
    try:
        return open_it()
    except BaseException:
        _set_session(None, None)
        raise


def _open_started() -> None:
    # `open_engine` tries again and raises the error. If the process is about to end, the JVM that
    # this thread talks to is killed, and any exception can follow.
    with _process.lock, suppress(Exception):
        if _process.opened is not None and not _process.is_requested:
            _forgotten_on_error(_process.opened.open_engine)


def _session_conflict(open_target: str, requested_target: str) -> ConflictError:
    return ConflictError(
        f"A Spark session with other settings is open in this process ({open_target}), so "
        f"none was opened on {requested_target}. The open session was not changed. Close it first "
        f"(`close_session()`), or use another process."
    )
