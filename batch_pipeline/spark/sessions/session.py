"""The one Spark session of this process: local, on a cluster, or of a Connect client.

Decides which session to open, keep or replace. pyspark is imported when a session is opened.
"""

import atexit
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from batch_pipeline.model.errors import ConflictError, PipelineError
from batch_pipeline.spark.cluster import runs_in_driver
from batch_pipeline.spark.engine import engine_errors
from batch_pipeline.spark.executor_diagnostics import diagnose_engine_error
from batch_pipeline.spark.packed_archive import with_archive
from batch_pipeline.spark.sessions.connect_session import ConnectSession, without_session_id
from batch_pipeline.spark.sessions.local_session import LocalSession

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

WARM_MODULES = ("pyarrow", "batch_pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Settings of a session.

    Files (logs, temporary files, the Java wrapper) go below `home`. With `remote`, an address
    `sc://host:port/;token=…`, the session is a Connect client's and `master` is not used; if it has
    a `session_id`, processes share that session. `conf` wins over what this package sets. `packed`
    is the archive of what tasks import, for executors that do not have it.
    """

    home: Path
    remote: str | None = field(default=None, repr=False)  # holds a token
    master: str = "local[*]"
    packed: Path | None = None
    conf: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)

    @property
    def target(self) -> str:
        """Master or server address, without credentials."""
        return self.master if self.remote is None else self.remote.partition("/;")[0]

    def unshared(self) -> "SparkSettings":
        """Return the settings of a session that no other process shares.

        A user's transform needs one, because temporary views, settings and functions that it
        registers belong to the session.
        """
        if self.remote is None:
            return self
        return replace(self, remote=without_session_id(self.remote))


@dataclass(slots=True)
class _ProcessState:
    """The session of this process; pyspark allows one as well."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    settings: SparkSettings | None = None
    opened: LocalSession | ConnectSession | None = None
    is_requested: bool = True  # False for a session that was only started ahead


_process = _ProcessState()


def start_session(settings: SparkSettings) -> None:
    """Start the JVM of a local session that is likely to be opened soon; returns at once.

    No effect for clusters and Connect clients, and if there is a session. If the JVM cannot be
    started, `open_session` raises the error.
    """
    if settings.remote is not None or not runs_in_driver(settings.master):
        return
    with _process.lock, suppress(PipelineError):
        if _process.opened is None:
            _set_session(_new_session(settings), settings, is_requested=False)


def open_in_background() -> None:
    """Open the session that was started ahead in a thread; `open_session` waits for it.

    Call it when the modules of a command are imported: of threads that import pyspark at the same
    time, one can get modules that are half initialized.
    """
    if not _process.is_requested:
        import_module("pyspark.sql")
        threading.Thread(target=_open_started, daemon=True).start()


def open_session(settings: SparkSettings) -> "SparkSession":
    """Open the session, or return the open one if it has equal settings and still works.

    An unshared session also serves requests for the shared one, and replaces it if it is open. A
    local session ends with the process, also if the process is killed.

    Raises:
        InvalidValueError: the address or the choice of Java is not valid.
        ConfigurationError: there is no Java, the archive is not there or for another Python or
            release, or an executor of the cluster cannot run tasks.
        ConflictError: a session with other settings is open.
        SparkUnavailableError: the JVM does not start, or the server does not answer or refuses
            the token.
    """
    with _process.lock:
        opened, known = _process.opened, _process.settings
        if opened is not None and known is not None:
            is_equal = known in (settings, settings.unshared())
            if not _process.is_requested and is_equal and isinstance(opened, LocalSession):
                _process.is_requested = True
            elif not _process.is_requested or not opened.is_alive():
                close_session()
            elif not is_equal and known.unshared() != settings:
                raise _session_conflict(known.target, settings.target)
            elif not is_equal:
                close_session()
        opened = _process.opened or _new_session(settings)
        if _process.opened is None:
            _set_session(opened, settings)
        return _open(opened)


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
    `open_session` makes up for that.
    """
    opened = _process.opened
    if isinstance(opened, LocalSession):
        _process.is_requested = True
        opened.end_processes()  # without the lock, which a thread holds that opens the session
        return True
    close_session()
    return False


def _new_session(settings: SparkSettings) -> LocalSession | ConnectSession:
    conf = dict(settings.conf)
    if settings.remote is not None:
        return ConnectSession(settings.remote, conf, packed=settings.packed)
    return LocalSession(settings.home, settings.master, conf, packed=settings.packed)


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


def _open(opened: LocalSession | ConnectSession) -> "SparkSession":
    try:
        return opened.open()
    except BaseException:
        _set_session(None, None)
        raise


def _open_started() -> None:
    # `open_session` tries again and raises the error. If the process is about to end, the JVM that
    # this thread talks to is killed, and any exception can follow.
    with _process.lock, suppress(Exception):
        if _process.opened is not None and not _process.is_requested:
            _open(_process.opened)


def warm_up(session: "SparkSession") -> None:
    """Run a tiny job, so that Python workers have started and imported what tasks need.

    Raises:
        ConfigurationError: an executor lacks what tasks need.
        SparkUnavailableError: the engine is gone.
    """
    tasks = os.cpu_count() or 1
    function = with_archive(session, _import_modules)
    try:
        session.range(0, tasks, 1, tasks).mapInArrow(function, "id long").collect()
    except engine_errors() as error:
        raise diagnose_engine_error(session, error) from error


def _import_modules(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    for module in WARM_MODULES:
        import_module(module)
    yield from batches


def _session_conflict(open_target: str, requested_target: str) -> ConflictError:
    return ConflictError(
        f"A Spark session with other settings is open in this process ({open_target}), so "
        f"none was opened on {requested_target}. The open session was not changed. Close it first "
        f"(`close_session()`), or use another process."
    )
