"""Looks at the programs that work together here: Python, Dagster, PySpark and Java.

Told by what is installed; nothing is imported or started.
"""

import platform
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from batch_pipeline.model.checks import Finding, failure, fine, warning
from batch_pipeline.settings.environment import Settings
from batch_pipeline.spark.sessions.java import MIN_JAVA_VERSION, java_candidates, java_version

_LIBRARIES = ("dagster-postgres", "dagster-aws", "dagster-pyspark")  # numbered apart from Dagster
_BEHIND = 16  # the minor version of these for Dagster's 1.0
_AS_DAGSTER = ("dagster-webserver", "dagster-graphql")
_ASKED = ("dagster", *_AS_DAGSTER, *_LIBRARIES, "pyspark", "sqlalchemy", "psycopg")
_SYNC = "Install the versions that this release names: `uv sync`, or the package anew."


def check_versions(found: Callable[[str], str] = version) -> Iterator[Finding]:
    """Look whether what is installed belongs together; `found` gives the version of a package."""
    here: dict[str, str] = {}
    for name in _ASKED:
        try:
            here[name] = found(name)
        except PackageNotFoundError:
            yield failure("versions", f"the package {name} is not installed. {_SYNC}")
    dagster = here.get("dagster", "")
    wanted = dict.fromkeys(_AS_DAGSTER, dagster) | dict.fromkeys(_LIBRARIES, _library(dagster))
    apart = [
        f"{name} {here[name]}" for name in wanted if here.get(name, wanted[name]) != wanted[name]
    ]
    if apart:
        text = f"Dagster {dagster} is not of a release with {', '.join(apart)}. {_SYNC}"
        yield warning("versions", text)
    told = f"Python {platform.python_version()}, Dagster {dagster}, PySpark {here.get('pyspark')}"
    yield fine("versions", f"{told}.")


def check_java(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Look for the Java that a session of Spark would start with, unless Spark is elsewhere."""
    if settings.spark_remote is not None:
        yield fine("java", "not needed here: Spark is reached by BATCH_PIPELINE_SPARK_REMOTE.")
        return
    tried: list[str] = []
    for label, java in java_candidates(environment):
        number = _version_of(java)
        if number is None or 0 < number < MIN_JAVA_VERSION:
            tried.append(f"{label} ({'is not there' if number is None else f'Java {number}'})")
            continue
        told = f"Java {number}" if number else "a Java of unknown version"
        yield fine("java", f"{told}, {label}.")
        return
    looked = f"; looked at {', '.join(tried)}" if tried else ""
    text = (
        f"there is no Java of {MIN_JAVA_VERSION} or later{looked}. Install one and set JAVA_HOME, "
        f"or unset BATCH_PIPELINE_JAVA so that the bundled one is used."
    )
    yield failure("java", text)


def _library(dagster: str) -> str:
    """Give the version of libraries that belongs to a version of Dagster."""
    major, minor, *rest = (*dagster.split("."), "", "")
    if major != "1" or not minor.isdigit():
        return ""
    return ".".join(["0", str(int(minor) + _BEHIND), *(part for part in rest if part)])


def _version_of(java: Path) -> int | None:
    """Read the version of a program; 0 when nothing tells, None when it is not there."""
    try:
        real = java.resolve(strict=True)
    except OSError:
        return None
    return java_version(real.parent.parent)
