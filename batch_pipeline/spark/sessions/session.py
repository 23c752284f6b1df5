"""The one Spark session of this process: local, on a cluster, or of a Connect client.

Decides which session to open, keep or replace. pyspark is imported when a session is opened.
"""

import atexit
import importlib
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from batch_pipeline.model.errors import ConflictError
from batch_pipeline.spark.engine import engine_errors
from batch_pipeline.spark.executor_diagnostics import diagnose_engine_error
from batch_pipeline.spark.packed_archive import with_archive
from batch_pipeline.spark.sessions.connect_session import ConnectSession, without_session_id
from batch_pipeline.spark.sessions.local_session import LocalSession

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PANDAS_WARNING = "PySpark does not yet fully support pandas"
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
    """The open session of this process; pyspark allows one as well."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    settings: SparkSettings | None = None
    opened: LocalSession | ConnectSession | None = None


_process = _ProcessState()


def open_session(settings: SparkSettings) -> "SparkSession":
    """Open the session, or return the open one if it has equal settings and still works.

    An unshared session also serves requests for the shared one, and replaces it if it is open. A
    local session is closed when the process ends, and its JVM ends even if the process is killed.

    Raises:
        InvalidValueError: the address or the choice of Java is not valid.
        ConfigurationError: there is no Java, the archive is not there or for another Python or
            release, or an executor of the cluster cannot run tasks.
        ConflictError: a session with other settings is open.
        SparkUnavailableError: the JVM does not start, or the server does not answer or refuses
            the token.
    """
    with _process.lock:
        if _process.opened is not None and _process.settings is not None:
            if not _process.opened.is_alive():
                close_session()
            elif _process.settings in (settings, settings.unshared()):
                return _process.opened.session
            elif _process.settings.unshared() == settings:
                close_session()
            else:
                raise _session_conflict(_process.settings.target, settings.target)
        # Records pass as Arrow data, so that pandas converts none of them.
        warnings.filterwarnings("ignore", _PANDAS_WARNING, FutureWarning)
        opened: LocalSession | ConnectSession
        if settings.remote is None:
            opened = LocalSession(
                settings.home, settings.master, dict(settings.conf), packed=settings.packed
            )
        else:
            opened = ConnectSession(settings.remote, dict(settings.conf), packed=settings.packed)
        _process.opened, _process.settings = opened, settings
        atexit.register(close_session)
        return opened.session


def close_session() -> bool:
    """Close the open session, if any, and wait until its JVM has ended.

    Returns whether a JVM of this process was closed.
    """
    with _process.lock:
        opened, _process.opened, _process.settings = _process.opened, None, None
        atexit.unregister(close_session)
        if opened is not None:
            opened.close()
        return isinstance(opened, LocalSession)


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
        importlib.import_module(module)
    yield from batches


def _session_conflict(open_target: str, requested_target: str) -> ConflictError:
    return ConflictError(
        f"A Spark session with other settings is open in this process ({open_target}), so "
        f"none was opened on {requested_target}. The open session was not changed. Close it first "
        f"(`close_session()`), or use another process."
    )
