"""The class-data archive: classes that a JVM maps from a file, and so starts in half the time.

An archive serves one Java runtime and one Spark. The JVM checks that itself and ignores an archive
that does not fit. A session must also start without one; `class_data_builder` builds it.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path

from batch_pipeline.spark.sessions import launch
from batch_pipeline.spark.sessions.java import java_version

# Since then archives need no base archive, which slimmed runtimes such as the bundled one lack.
AOT_CACHE_VERSION = 25


def archive_paths(home: Path, java: Path) -> tuple[Path, Path]:
    """Return where the archive for this Java and the installed Spark may be, preferred path first.

    All homes share the one in the user's cache. The one below `home` is for users without a cache.
    """
    identity = "\n".join(launch.java_identity(java))
    digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:12]
    name = f"classes-{digest}.archive"
    cache = user_cache_path("batch-pipeline", appauthor=False)
    return cache / "java" / name, home.absolute() / "java" / name


def find_archive(home: Path, java: Path) -> Path | None:
    """Return the archive, if there is one that this user owns: its classes are run."""
    for path in archive_paths(home, java):
        with suppress(OSError):
            if path.stat().st_uid == os.geteuid():
                return path
    return None


def archive_options(home: Path, java: Path) -> tuple[str, ...]:
    """Return the Java options that use the archive; none while there is no archive."""
    path = find_archive(home, java)
    if path is None:
        return ()
    with suppress(OSError):
        os.utime(path)  # the builder deletes archives that were not used for months
    name = "AOTCache" if java_version(java) >= AOT_CACHE_VERSION else "SharedArchiveFile"
    return (f'"-XX:{name}={path}"',)


def write_option(java: Path, path: Path) -> str:
    """Return the Java option that writes the archive when the JVM ends."""
    name = "AOTCacheOutput" if java_version(java) >= AOT_CACHE_VERSION else "ArchiveClassesAtExit"
    return f'"-XX:{name}={path}"'
