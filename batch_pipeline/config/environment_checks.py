"""Checks of environment variables: set, unknown, or readable by others. Values are never shown."""

import difflib
import os
import platform
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from batch_pipeline.config.environment import ENV_FILE, PREFIX, Settings
from batch_pipeline.config.home import Home
from batch_pipeline.config.units import format_bytes
from batch_pipeline.model import failpoint
from batch_pipeline.model.checks import Finding, Level, compare_clocks, failure, fine, warning
from batch_pipeline.model.location import shown, to_path
from batch_pipeline.model.stream import Source, Stream
from batch_pipeline.spark.sessions.java import (
    JAVA_VARIABLE,
    MIN_JAVA_VERSION,
    java_candidates,
    java_version,
)
from batch_pipeline.storage.filesystem import filesystem_of, reason_of

_SUBJECT = "settings"
_OTHERS = (ENV_FILE, JAVA_VARIABLE, failpoint.VARIABLE, f"{PREFIX}SERVER_MARK")
_OF_OTHERS = 0o077


def check_configuration(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Look at the variables of this process and at the dot-env file that it was given."""
    fields = [f"{PREFIX}{name.upper()}" for name in Settings.model_fields]
    known = [*fields, *_OTHERS]
    given = sorted(name for name in environment if name.startswith(PREFIX) and environment[name])
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f" Did you mean {close[0]}?" if close else ""
            text = f"{name} is set, but this release does not know it.{meant} Correct or unset it."
            yield warning(_SUBJECT, text)
    if environment.get(failpoint.VARIABLE):
        text = f"{failpoint.VARIABLE} is set: processes end or wait on purpose. Unset it."
        yield warning(_SUBJECT, text)
    if file := environment.get(ENV_FILE):
        mode = Path(file).expanduser().stat().st_mode
        if mode & _OF_OTHERS:
            text = (
                f"other users can read {file} (mode {mode & 0o777:04o}), which may hold passwords. "
                f"Run `chmod 600 {file}`."
            )
            yield warning(_SUBJECT, text)
    used = ", ".join(name for name in given if name in known) or "none"
    text = f"home {settings.home}, streams {settings.streams}; variables that are set: {used}."
    yield fine(_SUBJECT, text)


# To read and write; a server that root starts as another user passes through.
_FOLDERS_OF_OTHERS = 0o066
_LITTLE = 2**30
_TOO_LITTLE = 100 * 2**20
_SHARED_MEMORY = Path("/dev", "shm")
_LITTLE_SHARED = 64 * 2**20  # what containers have where nobody asks for more
_READ, _WRITE = os.R_OK | os.X_OK, os.R_OK | os.W_OK | os.X_OK


def check_home(home: Home) -> Iterator[Finding]:
    """Look at the home: is it ours alone, can it be written, and who works in it?"""
    if not _is_there(home.path):
        yield from _absent("home", home.path, "the first command that needs it creates it")
        return
    facts = home.path.stat()
    if not os.access(home.path, _WRITE):
        yield failure("home", f"{home.path} cannot be written. {_right(home.path)}")
        return
    if facts.st_mode & _FOLDERS_OF_OTHERS:
        text = f"other users can read {home.path} (mode {facts.st_mode & 0o777:04o}), where the"
        step = f"Run `chmod 700 {home.path}`."
        yield warning("home", f"{text} database and the logs lie. {step}")
    if facts.st_uid != os.geteuid():
        text = f"{home.path} belongs to another user (id {facts.st_uid}). Use another home folder."
        yield warning("home", text)
    holder = home.holder()
    used = "not in use" if holder is None else f"in use by {holder}"
    yield fine("home", f"{home.path}; {used}.")


def check_disks(home: Home, streams: Iterable[Stream]) -> Iterator[Finding]:
    """Look how much is free on the disks that are written to, and as shared memory."""
    places = {"the home": home.path, "temporary files": Path(tempfile.gettempdir())}
    for stream in streams:
        if filesystem_of(stream.storage.root).is_local:
            places[f"files of {stream.name}"] = Path(to_path(stream.storage.root))
    disks: dict[int, tuple[Path, list[str]]] = {}
    for name, place in places.items():
        path = next(filter(_is_there, (place, *place.parents)))
        disks.setdefault(path.stat().st_dev, (path, []))[1].append(name)
    for path, names in disks.values():
        yield _room("disk", path, f"for {', '.join(names)}", (_LITTLE, _TOO_LITTLE))
    if _SHARED_MEMORY.is_dir():
        yield _room("memory", _SHARED_MEMORY, "for PostgreSQL and Spark", (_LITTLE_SHARED, 2**20))


def check_places(stream: Stream, now: datetime) -> Iterator[Finding]:
    """Look whether a stream's files can be read, and what it writes be written.

    `now` is the time of this machine, with which stores are compared.
    """
    yield from _place(stream.name, "storage.root", stream.storage.root, _WRITE, now)
    if isinstance(stream.source, Source):
        yield from _place(stream.name, "source.uri", stream.source.uri, _READ, now)


def _place(name: str, key: str, uri: str, rights: int, now: datetime) -> Iterator[Finding]:
    if not filesystem_of(uri).is_local:
        try:
            store_time = filesystem_of(uri).ping(uri)
        except OSError as error:
            yield failure(name, f"{shown(uri)} cannot be listed ({key}): {reason_of(error)}.")
            return
        if store_time is not None:
            yield from compare_clocks(f"the store of {shown(uri)}", store_time, now)
        return
    path = Path(to_path(uri))
    if not _is_there(path) and rights == _WRITE:
        yield from _absent(name, path, f"the first batch creates it ({key})")
    elif not _is_there(path):
        text = f"{path} is not there ({key}): nothing lands. Make it, or correct the file."
        yield warning(name, text)
    elif not path.is_dir():
        yield failure(name, f"{path} is not a folder ({key}). Name another one, or move it away.")
    elif not os.access(path, rights):
        verb = "written" if rights == _WRITE else "read"
        yield failure(name, f"{path} cannot be {verb} ({key}). {_right(path)}")


def _absent(subject: str, path: Path, made_by: str) -> Iterator[Finding]:
    above = next(filter(_is_there, path.parents))
    if os.access(above, _WRITE):
        yield fine(subject, f"{path} does not exist yet; {made_by}.")
    else:
        text = f"{path} is not there and cannot be made in {above}. {_right(above)}"
        yield failure(subject, text)


def _right(path: Path) -> str:
    user = psutil.Process().username()
    return f"Give the user {user} the right to, or take another place than {path}."


def _is_there(path: Path) -> bool:
    """Return whether a path exists and can be examined."""
    try:
        return path.exists()
    except OSError:  # a folder above keeps us out
        return False


def _room(subject: str, path: Path, purpose: str, bounds: tuple[int, int]) -> Finding:
    room = shutil.disk_usage(path)
    little, too_little = bounds
    text = f"{format_bytes(room.free)} of {format_bytes(room.total)} free at {path}, {purpose}."
    if room.free >= little:
        return fine(subject, text)
    level = Level.WARN if room.free >= too_little else Level.FAIL
    step = "Free space: `batch-pipeline gc --dry-run` lists what is not needed."
    if subject == "memory":
        step = "Give the container more, for example `--shm-size 256m`."
    return Finding(subject=subject, level=level, text=f"{text} {step}")


DEV_PORT = 3000


def check_ports(port: int = DEV_PORT) -> Iterator[Finding]:
    """Look at the one port of `dev` that is not picked when it starts: that of Dagster's pages."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            text = (
                f"{port} is taken by {_holder(port)}. If that is no `dev` of yours, run "
                f"`batch-pipeline dev --port {port + 1}`."
            )
            yield warning("ports", text)
            return
    yield fine("ports", f"{port}, where `dev` shows Dagster, is free.")


def _holder(port: int) -> str:
    with suppress(psutil.Error):
        for one in psutil.net_connections("tcp"):
            is_listening = one.status == psutil.CONN_LISTEN
            if is_listening and getattr(one.laddr, "port", None) == port and one.pid:
                return f"{psutil.Process(one.pid).name()} (process {one.pid})"
    return "another process"


_LIBRARIES = ("dagster-postgres", "dagster-aws", "dagster-pyspark")  # numbered apart from Dagster
_BEHIND = 16  # the minor version of these for Dagster's 1.0
_AS_DAGSTER = ("dagster-webserver", "dagster-graphql")  # of the extra `embedded`
_REQUIRED = ("dagster", *_LIBRARIES, "pyspark", "sqlalchemy", "psycopg")
_SYNC = "Install the versions that this release names: `uv sync`, or reinstall the package."


def check_versions(found: Callable[[str], str] = version) -> Iterator[Finding]:
    """Look whether what is installed belongs together; `found` gives the version of a package."""
    here: dict[str, str] = {}
    for name in (*_REQUIRED, *_AS_DAGSTER):
        try:
            here[name] = found(name)
        except PackageNotFoundError:
            if name in _AS_DAGSTER:
                continue
            yield failure("versions", f"the package {name} is not installed. {_SYNC}")
    dagster = here.get("dagster", "")
    major, minor, *rest = (*dagster.split("."), "", "")
    of_library = (
        ".".join(["0", str(int(minor) + _BEHIND), *filter(None, rest)])
        if major == "1" and minor.isdigit()
        else ""
    )
    wanted = dict.fromkeys(_AS_DAGSTER, dagster) | dict.fromkeys(_LIBRARIES, of_library)
    apart = [
        f"{name} {here[name]}" for name in wanted if here.get(name, wanted[name]) != wanted[name]
    ]
    if apart:
        text = f"Dagster {dagster} is not of a release with {', '.join(apart)}. {_SYNC}"
        yield warning("versions", text)
    python = platform.python_version()
    yield fine("versions", f"Python {python}, Dagster {dagster}, PySpark {here.get('pyspark')}.")


def check_java(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Look for the Java that a session of Spark would start with, unless Spark is elsewhere."""
    if settings.spark_remote is not None:
        yield fine("java", "not needed here: Spark is reached by BATCH_PIPELINE_SPARK_REMOTE.")
        return
    tried: list[str] = []
    for label, java in java_candidates(environment):
        try:
            number = java_version(java.resolve(strict=True).parent.parent)
        except OSError:
            number = None
        if number is None or 0 < number < MIN_JAVA_VERSION:
            tried.append(f"{label} ({'is not there' if number is None else f'Java {number}'})")
            continue
        java_text = f"Java {number}" if number else "a Java of unknown version"
        yield fine("java", f"{java_text}, {label}.")
        return
    looked = f"; looked at {', '.join(tried)}" if tried else ""
    text = (
        f"there is no Java of {MIN_JAVA_VERSION} or later{looked}. Install one and set JAVA_HOME, "
        f"or unset BATCH_PIPELINE_JAVA so that the bundled one is used."
    )
    yield failure("java", text)
