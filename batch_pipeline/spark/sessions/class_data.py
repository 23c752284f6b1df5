"""Finds the class-data archive with which a JVM starts in half the time; `archive_maker` makes it.

An archive serves one Java runtime and one Spark; the JVM checks that itself and ignores one that
does not fit. Nothing here may be needed for a session to start.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path

from batch_pipeline.spark.sessions import launch
from batch_pipeline.spark.sessions.java import java_version

# From here on archives need no base archive, which slimmed runtimes such as the bundled one lack.
AOT_CACHE_VERSION = 25


def places(home: Path, java: Path) -> tuple[Path, Path]:
    """Give where the archive for this Java and the installed Spark may be, the better place first.

    In the user's cache all homes share one; below `home` it lies where there can be no such cache.
    """
    release, jars = (java / "release").resolve(), launch.spark_home() / "jars"
    # The folder of a runtime's release, for those of its wrappers differ from home to home.
    identity = [str(release.parent), str(jars), str(jars.stat().st_mtime_ns), *launch.JVM_OPTIONS]
    if release.exists():
        identity.append(release.read_text())
    digest = hashlib.sha256(os.fsencode("\n".join(identity))).hexdigest()[:12]
    name = f"classes-{digest}.archive"
    cache = user_cache_path("batch-pipeline", appauthor=False)
    return cache / "java" / name, home.absolute() / "java" / name


def archive(home: Path, java: Path) -> Path | None:
    """Find the archive; one that somebody else made is none, since its classes would be run."""
    for path in places(home, java):
        with suppress(OSError):
            if path.stat().st_uid == os.geteuid():
                return path
    return None


def archive_options(home: Path, java: Path) -> tuple[str, ...]:
    """Give the Java options that use the archive; none while there is no archive."""
    path = archive(home, java)
    if path is None:
        return ()
    with suppress(OSError):
        os.utime(path)  # those that nobody uses any more are removed
    return (_use_option(java, path),)


def _use_option(java: Path, path: Path) -> str:
    name = "AOTCache" if java_version(java) >= AOT_CACHE_VERSION else "SharedArchiveFile"
    return f'"-XX:{name}={path}"'


def make_option(java: Path, path: Path) -> str:
    """Give the Java option that writes the archive when the JVM ends."""
    name = "AOTCacheOutput" if java_version(java) >= AOT_CACHE_VERSION else "ArchiveClassesAtExit"
    return f'"-XX:{name}={path}"'
