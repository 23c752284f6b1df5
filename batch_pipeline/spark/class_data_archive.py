"""Build the class-data archive, once for each Java runtime and Spark.

When a JVM exits, it writes the archive of the classes that it has loaded, so the builder starts a
session, runs a job and closes it. That takes 40 s of one core, so it runs in a process of the
lowest priority: while `dev` runs, or detached after a command that started a JVM. Run as a module
(`python -m … HOME`) it builds in the foreground.
"""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from batch_pipeline.spark import driver
from batch_pipeline.spark.java import (
    archive_path,
    archive_writing_option,
    find_java_home,
    has_archive,
)
from batch_pipeline.spark.session import LocalSession

if TYPE_CHECKING:
    import pyarrow as pa

STOP_TIMEOUT_SECONDS = 1_800  # the JVM writes when it ends, with the lowest priority
UNUSED_SECONDS = 90 * 86_400
RETRY_SECONDS = 86_400
_LOWEST_PRIORITY = "--lowest-priority"

_detached: "list[subprocess.Popen[bytes]]" = []  # kept: Python warns about unreferenced processes


def build_archive(home: Path) -> bool:
    """Build the archive unless it exists or is being built; return whether it was built.

    Takes about 40 s of one core and 175 MB on disk. The archive appears atomically. Archives that
    were not used for 90 days are deleted.

    Raises:
        ConfigurationError: there is no Java.
        SparkUnavailableError: no session could be started.
    """
    java = find_java_home(home, os.environ)
    archive = archive_path(java)
    if not _is_own_folder(archive.parent):
        return False
    with archive.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return not has_archive(archive) and _build(java, archive)


def build_later(home: Path) -> None:
    """Start a detached process that builds the archive, unless the archive exists.

    The process outlives this one and exits when it is done. It is started at most once a day.
    """
    archive = archive_path(find_java_home(home, os.environ))
    started = archive.with_suffix(".started")
    if has_archive(archive) or not _is_own_folder(archive.parent) or _is_recent(started):
        return
    with suppress(OSError):  # the archive only makes later starts faster
        started.touch()
        _detached.append(_start_builder(home))


@contextmanager
def build_meanwhile(home: Path) -> Iterator[None]:
    """Build the archive, unless it exists, in a process that is killed when the block ends."""
    has_one = has_archive(archive_path(find_java_home(home, os.environ)))
    builder = None
    try:
        with suppress(OSError):
            builder = None if has_one else _start_builder(home)
        yield
    finally:
        if builder is not None:
            driver.end_process(builder, timeout_seconds=0)


def _is_recent(path: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_mtime > time.time() - RETRY_SECONDS
    return False


def _start_builder(home: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", __name__, str(home), _LOWEST_PRIORITY]
    with driver.rotate_log(home, "class-data.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _is_own_folder(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK)
    except OSError:
        return False


def _build(java: Path, archive: Path) -> bool:
    from batch_pipeline.spark.spark_job import warm_up  # imports what commands need later

    unfinished = archive.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    conf = {"spark.driver.extraJavaOptions": archive_writing_option(java, unfinished)}
    local = LocalSession(
        archive.parent, "local[*]", conf, stop_timeout_seconds=STOP_TIMEOUT_SECONDS
    )
    try:
        warm_up(local.open_engine())
        local.open().range(1).mapInArrow(_unchanged, "id long").collect()  # as transforms do
    finally:
        local.close()
    if not is_complete(unfinished):
        return False
    unfinished.replace(archive)
    archive.with_suffix(".started").unlink(missing_ok=True)
    for other in archive.parent.glob("classes-*"):
        if other.stat().st_mtime < archive.stat().st_mtime - UNUSED_SECONDS:
            other.unlink(missing_ok=True)
    return True


def is_complete(archive: Path) -> bool:
    """Return whether the JVM was not killed while it wrote: it writes the header last."""
    with suppress(OSError), archive.open("rb") as file:
        return any(file.read(4))
    return False


def _unchanged(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    return batches


if __name__ == "__main__":
    if _LOWEST_PRIORITY in sys.argv:
        os.nice(19)
    build_archive(Path(sys.argv[1]))
