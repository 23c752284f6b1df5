"""Gives the process its one Spark session: a tuned local one, a cluster's, or a Connect client's.

Only decides which to open or keep. pyspark is imported when a session is opened, not before.
"""

import atexit
import importlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from batch_pipeline.domain.errors import SparkSessionOpenError
from batch_pipeline.spark.clusters.fitness import trouble
from batch_pipeline.spark.clusters.shipped import shipped
from batch_pipeline.spark.engine_errors import engine_errors
from batch_pipeline.spark.sessions.connect_session import ConnectSession, unshared
from batch_pipeline.spark.sessions.local_session import LocalSession

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

WARM_MODULES = ("pyarrow", "batch_pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Which session to open.

    Files (logs, temporary files, the Java wrapper) go below `home`. With `remote`, an address
    `sc://host:port/;token=…`, the session is a Connect client's and `master` is not used; where it
    names a `session_id`, processes share that session. `conf` adds to the configuration and wins
    over what this package sets. `packed` is the archive of what tasks import, for executors that do
    not have it.
    """

    home: Path
    remote: str | None = field(default=None, repr=False)  # holds a token
    master: str = "local[*]"
    packed: Path | None = None
    conf: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)

    @property
    def target(self) -> str:
        """Name the engine, without credentials."""
        return self.master if self.remote is None else self.remote.partition("/;")[0]

    def unshared(self) -> "SparkSettings":
        """Give the settings of a session of this process alone.

        Code of others wants one: its views, settings and functions are those of its session.
        """
        if self.remote is None:
            return self
        return replace(self, remote=unshared(self.remote))


@dataclass(slots=True)
class _Process:
    """What is open in this process; pyspark, too, allows one."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    settings: SparkSettings | None = None
    opened: LocalSession | ConnectSession | None = None


_process = _Process()


def open_session(settings: SparkSettings) -> "SparkSession":
    """Open the session, or give the open one when it has equal settings and still works.

    One that is not shared serves where a shared one would, too, and takes its place. A local
    session is closed when the process ends, its JVM even when the process is killed.

    Raises:
        ExecutorUnfitError: an executor of the cluster cannot run tasks.
        InvalidValueError: the address or the choice of Java makes no sense.
        JavaMissingError: a JVM must be started and there is no Java.
        PackedUnusableError: the archive is not there, or for another Python or release.
        SparkSessionOpenError: a session with other settings is open.
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
                raise SparkSessionOpenError(_process.settings.target, settings.target)
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


def close_session() -> None:
    """Close the open session, if any, and wait until its JVM is gone."""
    with _process.lock:
        opened, _process.opened, _process.settings = _process.opened, None, None
        atexit.unregister(close_session)
        if opened is not None:
            opened.close()


def warm_up(session: "SparkSession") -> None:
    """Run one tiny job, so that Python workers are up and have imported what tasks need.

    Raises:
        ExecutorUnfitError: an executor lacks what tasks need.
        SparkUnavailableError: the engine is gone.
    """
    tasks = os.cpu_count() or 1
    warming = shipped(session, _imported)
    try:
        session.range(0, tasks, 1, tasks).mapInArrow(warming, "id long").collect()
    except engine_errors() as error:
        raise trouble(session, error) from error


def _imported(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    for module in WARM_MODULES:
        importlib.import_module(module)
    yield from batches
