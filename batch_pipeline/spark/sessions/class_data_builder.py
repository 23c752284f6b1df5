"""Build the class-data archive, once for each Java runtime and Spark.

A JVM writes the archive of the classes that it has loaded when it ends, so the builder starts a
session, runs a job and closes it. That takes 40 s of a core, so it is done by a process of lowest
priority: while `dev` runs, or detached after a command that started a JVM. Run as a module
(`python -m … HOME`) it builds in the foreground.
"""

import fcntl
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from batch_pipeline.spark.sessions import launch
from batch_pipeline.spark.sessions.class_data import archive_paths, find_archive, write_option
from batch_pipeline.spark.sessions.java import find_java_home
from batch_pipeline.spark.sessions.local_session import LocalSession
from batch_pipeline.spark.sessions.session import warm_up

STOP_TIMEOUT_SECONDS = 1_800  # the JVM writes when it ends, with the lowest priority
UNUSED_SECONDS = 90 * 86_400
RETRY_SECONDS = 86_400

_detached: "list[subprocess.Popen[bytes]]" = []  # kept, since Python warns of a forgotten process


def build_archive(home: Path) -> bool:
    """Build the archive unless it exists or is being built; return whether it was built.

    Takes about 40 s of one core and 175 MB on disk. The archive appears whole or not at all.
    Archives that were not used for 90 days are deleted.

    Raises:
        ConfigurationError: there is no Java.
        SparkUnavailableError: no session could be started.
    """
    java = find_java_home(home, os.environ)
    for path in archive_paths(home, java):
        if not _is_own_folder(path.parent):
            continue
        with path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return find_archive(home, java) is None and _build(path.parent, java, path)
    return False


def build_later(home: Path) -> None:
    """Start a detached process that builds the archive, unless there is one.

    The process outlives this one and ends by itself. It is started at most once a day.
    """
    java = find_java_home(home, os.environ)
    if find_archive(home, java) is not None:
        return
    archive = next(
        (path for path in archive_paths(home, java) if _is_own_folder(path.parent)), None
    )
    if archive is None or _is_recent(started := archive.with_suffix(".started")):
        return
    started.touch()
    _detached.append(_start(home))


def _is_recent(path: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_mtime > time.time() - RETRY_SECONDS
    return False


def _start(home: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", __name__, str(home)]
    with launch.rotate_log(home, "class-data.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _is_own_folder(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK)
    except OSError:
        return False


def _build(home: Path, java: Path, path: Path) -> bool:
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    options = {"spark.driver.extraJavaOptions": write_option(java, unfinished)}
    local = LocalSession(home, "local[*]", options, stop_timeout_seconds=STOP_TIMEOUT_SECONDS)
    try:
        warm_up(local.open())
    finally:
        local.close()
    if not unfinished.exists():
        return False
    unfinished.replace(path)
    path.with_suffix(".started").unlink(missing_ok=True)
    for other in path.parent.glob("classes-*"):
        if other.stat().st_mtime < path.stat().st_mtime - UNUSED_SECONDS:
            other.unlink(missing_ok=True)
    return True


class BackgroundBuild:
    """Builds the archive in a low-priority process while the context lasts."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if find_archive(self._home, find_java_home(self._home, os.environ)) is None:
            self._process = _start(self._home)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is None:
            return
        with suppress(psutil.NoSuchProcess):
            builder = psutil.Process(self._process.pid)
            for process in (*builder.children(recursive=True), builder):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()


if __name__ == "__main__":
    os.nice(19)
    build_archive(Path(sys.argv[1]))
