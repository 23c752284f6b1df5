"""Finds the class-data archive with which a JVM starts in half the time; `archive_maker` makes it.

An archive serves one Java runtime and one Spark; the JVM checks that itself and ignores one that
does not fit. Nothing here may be needed for a session to start.
"""

import hashlib
import os
from pathlib import Path

from batch_pipeline.spark.sessions import launch
from batch_pipeline.spark.sessions.java import java_version

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


def make_option(java: Path, path: Path) -> str:
    name = "AOTCacheOutput" if java_version(java) >= AOT_CACHE_VERSION else "ArchiveClassesAtExit"
    return f'"-XX:{name}={path}"'
