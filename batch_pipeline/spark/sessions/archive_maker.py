"""Makes the class-data archive, once for each Java runtime and Spark, beside the work of others."""

import fcntl
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from batch_pipeline.spark.sessions import launch
from batch_pipeline.spark.sessions.class_data import archive, make_option, places
from batch_pipeline.spark.sessions.java import java_home
from batch_pipeline.spark.sessions.local_session import LocalSession
from batch_pipeline.spark.sessions.session import warm_up

STOP_TIMEOUT_SECONDS = 1_800  # the JVM writes when it ends, with the lowest priority
UNUSED_SECONDS = 90 * 86_400


def make_archive(home: Path) -> bool:
    """Make the archive unless it is there or being made; tell whether it was made.

    Takes about 40 s of one core and 160 MB on disk. The archive appears whole or not at all; others
    that were not used for months are removed.

    Raises:
        JavaMissingError: there is no Java.
        SparkUnavailableError: no session could be started.
    """
    java = java_home(home, os.environ)
    for path in places(home, java):
        if not _is_own_folder(path.parent):
            continue
        with path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return archive(home, java) is None and _is_made(home, java, path)
    return False


def _is_own_folder(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK)
    except OSError:
        return False


def _is_made(home: Path, java: Path, path: Path) -> bool:
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    options = {"spark.driver.extraJavaOptions": make_option(java, unfinished)}
    session = LocalSession(home, "local[*]", options, stop_timeout_seconds=STOP_TIMEOUT_SECONDS)
    try:
        warm_up(session.session)
    finally:
        session.close()
    if not unfinished.exists():
        return False
    unfinished.replace(path)
    for other in path.parent.glob("classes-*"):
        if other.stat().st_mtime < path.stat().st_mtime - UNUSED_SECONDS:
            other.unlink(missing_ok=True)
    return True


class BackgroundArchive:
    """Makes the archive in a low-priority process of its own while the context lasts."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if archive(self._home, java_home(self._home, os.environ)) is None:
            command = [
                sys.executable,
                "-m",
                "batch_pipeline.spark.sessions.archive_maker",
                str(self._home),
            ]
            with launch.log_file(self._home, "class-data.log").open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is None:
            return
        with suppress(psutil.NoSuchProcess):
            maker = psutil.Process(self._process.pid)
            for process in (*maker.children(recursive=True), maker):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()


if __name__ == "__main__":
    os.nice(19)
    make_archive(Path(sys.argv[1]))
