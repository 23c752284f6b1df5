"""Makes and finds the class-data archive with which a JVM starts in half the time.

An archive serves one Java runtime and one Spark; the JVM checks that itself and ignores one that
does not fit. Nothing here may be needed for a session to start.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from batch_pipeline.spark import launch
from batch_pipeline.spark.java import java_home, java_version

# From here on archives need no base archive, which slimmed runtimes such as the bundled one lack.
AOT_CACHE_VERSION = 25


def archive(home: Path, java: Path) -> Path:
    """Give where the archive for this Java and the installed Spark is, or would be."""
    release, jars = java / "release", launch.spark_home() / "jars"
    identity = [str(java.resolve()), str(jars), str(jars.stat().st_mtime_ns), *launch.JVM_OPTIONS]
    if release.exists():
        identity.append(release.read_text())
    digest = hashlib.sha256(os.fsencode("\n".join(identity))).hexdigest()[:12]
    return home.absolute() / "java" / f"classes-{digest}.archive"


def archive_options(home: Path, java: Path) -> tuple[str, ...]:
    """Give the Java options that use the archive; none while there is no archive."""
    path = archive(home, java)
    return (_use_option(java, path),) if path.exists() else ()


def _use_option(java: Path, path: Path) -> str:
    name = "AOTCache" if java_version(java) >= AOT_CACHE_VERSION else "SharedArchiveFile"
    return f'"-XX:{name}={path}"'


def _make_option(java: Path, path: Path) -> str:
    name = "AOTCacheOutput" if java_version(java) >= AOT_CACHE_VERSION else "ArchiveClassesAtExit"
    return f'"-XX:{name}={path}"'


def make_archive(home: Path) -> bool:
    """Make the archive unless it is there or being made; tell whether it was made.

    Takes about 25 s of one core and 160 MB on disk. The archive appears whole or not at all.

    Raises:
        JavaMissingError: there is no Java.
        SparkUnavailableError: no session could be started.
    """
    from batch_pipeline.spark.local_session import LocalSession
    from batch_pipeline.spark.session import warm_up

    java = java_home(home, os.environ)
    path = archive(home, java)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if path.exists():
            return False
        unfinished = path.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        options = {"spark.driver.extraJavaOptions": _make_option(java, unfinished)}
        session = LocalSession(home, "local[*]", options, stop_timeout_seconds=120)
        try:
            warm_up(session.session)
        finally:
            session.close()
        if not unfinished.exists():
            return False
        unfinished.replace(path)
        return True


class BackgroundArchive:
    """Makes the archive in a low-priority process of its own while the context lasts."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if not archive(self._home, java_home(self._home, os.environ)).exists():
            command = [sys.executable, "-m", "batch_pipeline.spark.class_data", str(self._home)]
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
