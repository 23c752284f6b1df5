"""The command `doctor`: check the installation and suggest fixes."""

import json
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
import psutil

from batch_pipeline.app import Pipeline
from batch_pipeline.cli.console import EXIT_OPERATOR, out, print_json
from batch_pipeline.cli.dev import port_problem
from batch_pipeline.cli.options import as_json
from batch_pipeline.config.environment import ENV_FILE, PREFIX, Settings
from batch_pipeline.config.home import Home
from batch_pipeline.config.stream_file import load_valid_streams, no_streams
from batch_pipeline.config.units import format_bytes
from batch_pipeline.inventory.database import open_database
from batch_pipeline.inventory.diagnostics import (
    check_dagster,
    check_inventory,
    check_server,
    check_source,
    check_work,
)
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.chained_table import PUBLISHED_COLUMNS, is_published
from batch_pipeline.inventory.meta_tables.sources import SourceTerms, UserMetaTable
from batch_pipeline.inventory.meta_tables.watermarks import SettleBy
from batch_pipeline.model import failpoint
from batch_pipeline.model.checks import (
    Finding,
    Level,
    attempted,
    compare_clocks,
    failure,
    fine,
    warning,
)
from batch_pipeline.model.errors import InvalidValueError, SettingError, did_you_mean
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.location import shown, to_path
from batch_pipeline.model.stream import Source, Strategy, Stream
from batch_pipeline.spark.java import (
    JAVA_VARIABLE,
    MIN_JAVA_VERSION,
    java_candidates,
    java_version,
)
from batch_pipeline.storage.filesystem import filesystem_of, reason_of

_CEILINGS = click.Choice([one.value for one in Strategy])  # for enums, `click` shows member names
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@click.command()
@click.option("--meta-table", metavar="TABLE", help="Check this meta table instead of the streams.")
@click.option("--job", metavar="NAME", help="Job that acquires from it.")
@click.option("--uid", metavar="COLUMN", help="Column of ids.")
@click.option("--item", metavar="COLUMN", help="Column of items.")
@click.option("--weight", metavar="COLUMN", help="Column of weights, or 'none'.")
@click.option("--where", metavar="JSON", help="Filter.")
@click.option("--ceiling", type=_CEILINGS, help="Strategy for its high watermark.")
@click.option("--settle-by", metavar="COLUMN", help="Column of insert times.")
@as_json
def doctor(meta_table: str | None, as_json: bool, **table: str | None) -> None:
    """Check the installation and suggest fixes.

    Checks settings, versions, home folder, disk space, inventory, database privileges, Dagster and
    all streams; with --meta-table, that table instead of the streams. Prints one line per finding:
    ok, warn (works, but needs attention) or fail. Changes nothing; meta tables are only read, at
    most 100,000 rows of each.

    Exit codes: 1 if a check fails.

    \b
    Example:
      batch-pipeline doctor --meta-table ops.files --item path
    """
    given = [name for name, value in table.items() if value is not None]
    if meta_table is None and given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} needs --meta-table.")

    job = table.pop("job") or "doctor"
    terms = None if meta_table is None else _terms(meta_table, job, table)
    findings = list(diagnose(terms, job))
    is_well = not any(one.level is Level.FAIL for one in findings)
    if as_json:
        print_json({"ok": is_well, "findings": [asdict(one) for one in findings]})
    else:
        for one in findings:
            out.print(f"{one.level.value:<5}", style=_STYLES[one.level], end="")
            out.print(f"{one.subject}: {one.text}")
    if not is_well:
        sys.exit(EXIT_OPERATOR)


def _terms(meta_table: str, job: str, table: dict[str, Any]) -> SourceTerms:
    columns = {role: table[role] for role in ("uid", "item", "weight") if table[role] is not None}
    if columns.get("weight") == "none":
        columns["weight"] = None
    where = None
    if table["where"] is not None:
        try:
            where = parse_filter(json.loads(table["where"]), "--where")
        except ValueError as error:
            example = '[{"column": "kind", "operator": "=", "value": "a"}]'
            expected = f"JSON such as {example} ({error})"
            raise InvalidValueError("--where", table["where"], expected) from error
    usual = PUBLISHED_COLUMNS if is_published(meta_table) else MetaColumns()
    return SourceTerms(
        name=meta_table,
        columns=replace(usual, **columns),
        where=where,
        strategy=None if table["ceiling"] is None else Strategy(table["ceiling"]),
        settle_by=None if table["settle_by"] is None else SettleBy(table["settle_by"]),
        reader=job if is_published(meta_table) else None,
    )


def diagnose(terms: SourceTerms | None, job: str) -> Iterator[Finding]:
    """Yield the findings of all checks; with a meta table, check it instead of the streams."""
    try:
        pipeline = Pipeline.from_environment()
    except SettingError as error:
        yield failure("settings", f"{error} Nothing else was checked.")
        return
    with closing(pipeline):
        settings, environment = pipeline.settings, pipeline.environment
        home = Home(path=settings.home)
        streams, of_files = _stream_files(settings.streams)
        yield from attempted("settings", lambda: check_configuration(settings, environment))
        yield from attempted("versions", check_versions)
        yield from attempted("java", lambda: check_java(settings, environment))
        yield from attempted("home", lambda: check_home(home))
        yield from attempted("disk", lambda: check_disks(home, streams.values()))
        yield from attempted("ports", check_port)
        if settings.inventory_conn is None and not _exists(home.postgres):
            text = f"there is none in {home.path} yet. `batch-pipeline run` creates it."
            yield warning("inventory", text)
            if terms is not None:
                yield warning(terms.name, "not checked: there is no inventory yet.")
                return
            yield from of_files
            for stream in streams.values():
                yield from attempted(stream.name, partial(check_places, stream, datetime.now(UTC)))
            return
        of_inventory = list(attempted("inventory", lambda: _inventory(pipeline)))
        yield from of_inventory
        if any(one.level is Level.FAIL for one in of_inventory):
            yield warning("meta tables", "not checked: correct the inventory first.")
        elif terms is not None:
            yield from attempted(terms.name, lambda: _table(pipeline, terms, job))
        else:
            yield from of_files
            yield from attempted("streams", lambda: check_work(pipeline.database.engine))
            # Dagster runs the streams with valid files, so they are checked even if others are not.
            for stream in streams.values():
                yield from attempted(stream.name, partial(_stream, pipeline, stream))


def _inventory(pipeline: Pipeline) -> Iterator[Finding]:
    is_own = pipeline.settings.inventory_conn is None
    with closing(open_database(pipeline.database_url, migrated=None)) as database:
        yield from check_inventory(database.engine, is_own=is_own)
        yield from attempted("server", lambda: check_server(database.engine))
        yield from attempted("dagster", lambda: check_dagster(database.engine, is_own=is_own))


def _stream_files(folder: Path) -> tuple[Mapping[str, Stream], list[Finding]]:
    """Return the valid streams of a folder, and the findings of its files."""
    streams, errors = load_valid_streams(folder)
    findings = [failure("streams", str(error)) for error in errors]
    if not streams and not errors:
        findings.append(warning("streams", str(no_streams(folder))))
    return streams, findings


def _stream(pipeline: Pipeline, stream: Stream) -> Iterator[Finding]:
    yield from attempted(stream.name, lambda: check_places(stream, datetime.now(UTC)))
    meta_table = pipeline.meta_table(stream)
    if isinstance(meta_table, UserMetaTable):
        inventory = pipeline.database.engine
        yield from check_source(stream.name, inventory, meta_table.source, stream.name)
    else:
        yield fine(stream.name, "its files are registered here, with ids in commit order.")


def _table(pipeline: Pipeline, terms: SourceTerms, job: str) -> Iterator[Finding]:
    inventory, sources = pipeline.database.engine, pipeline.sources_of(terms.name)
    yield from sources.use(
        terms, lambda source: list(check_source(source.name, inventory, source, job))
    )


_OTHER_VARIABLES = (ENV_FILE, JAVA_VARIABLE, failpoint.VARIABLE, f"{PREFIX}SERVER_MARK")


def check_configuration(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check the variables of this process, and the mode of its dot-env file; no value is shown."""
    known = [*(f"{PREFIX}{name.upper()}" for name in Settings.model_fields), *_OTHER_VARIABLES]
    given = sorted(name for name in environment if name.startswith(PREFIX) and environment[name])
    for name in given:
        if name not in known:
            meant = did_you_mean(name, known)
            text = f"{name} is set, but there is no such setting.{meant} Correct or unset it."
            yield warning("settings", text)
    if environment.get(failpoint.VARIABLE):
        what = "a test setting that makes processes exit or pause"
        text = f"{failpoint.VARIABLE} is set, {what}. Unset it."
        yield warning("settings", text)
    if file := environment.get(ENV_FILE):
        path = Path(file).expanduser()
        mode = path.stat().st_mode
        if mode & 0o077:
            text = (
                f"other users can access {file} (mode {mode & 0o777:04o}), which may have "
                f"passwords. Run `chmod 600 {shlex.quote(str(path))}`."
            )
            yield warning("settings", text)
    used = ", ".join(name for name in given if name in known) or "none"
    text = f"home {settings.home}, streams {settings.streams}; variables that are set: {used}."
    yield fine("settings", text)


_LIBRARIES = ("dagster-postgres", "dagster-aws", "dagster-pyspark")  # not versioned like Dagster
_BEHIND = 16  # minor version of these libraries for Dagster 1.0
_EMBEDDED = ("dagster-webserver", "dagster-graphql")  # of the extra; versioned like Dagster
_REQUIRED = ("dagster", *_LIBRARIES, "pyspark", "sqlalchemy", "psycopg")
_SYNC = "Install the versions that this release requires: `uv sync`, or reinstall the package."


def check_versions(installed: Callable[[str], str] = version) -> Iterator[Finding]:
    """Check that the installed packages are compatible; `installed` returns a version."""
    versions: dict[str, str] = {}
    for name in (*_REQUIRED, *_EMBEDDED):
        try:
            versions[name] = installed(name)
        except PackageNotFoundError:
            if name not in _EMBEDDED:
                yield failure("versions", f"the package {name} is not installed. {_SYNC}")
    dagster = versions.get("dagster", "")
    match = re.fullmatch(r"1\.([0-9]+)(.*)", dagster)
    library = f"0.{int(match[1]) + _BEHIND}{match[2]}" if match else ""
    expected = dict.fromkeys(_EMBEDDED, dagster) | dict.fromkeys(_LIBRARIES, library)
    other = [
        f"{name} {versions[name]}"
        for name, wanted in expected.items()
        if versions.get(name, wanted) != wanted
    ]
    if other:
        text = f"Dagster {dagster} does not match {', '.join(other)}. {_SYNC}"
        yield warning("versions", text)
    python = platform.python_version()
    yield fine(
        "versions", f"Python {python}, Dagster {dagster}, PySpark {versions.get('pyspark')}."
    )


def check_java(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check the Java that a Spark session would use, unless Spark runs elsewhere."""
    if settings.spark_remote is not None:
        yield fine("java", "not needed here: Spark is reached at BATCH_PIPELINE_SPARK_REMOTE.")
        return
    tried: list[str] = []
    for label, java in java_candidates(environment):
        try:
            number = java_version(java.resolve(strict=True).parent.parent)
        except OSError:
            tried.append(f"{label} (does not exist)")
            continue
        if number >= MIN_JAVA_VERSION or number == 0:
            yield fine("java", f"Java {number or 'of unknown version'}, {label}.")
            return
        tried.append(f"{label} (Java {number})")
    candidates = f"; tried {', '.join(tried)}" if tried else ""
    text = (
        f"there is no Java {MIN_JAVA_VERSION} or later{candidates}. Install one and set JAVA_HOME, "
        f"or unset BATCH_PIPELINE_JAVA to use the bundled one."
    )
    yield failure("java", text)


_READ, _WRITE = os.R_OK | os.X_OK, os.R_OK | os.W_OK | os.X_OK
# Read and write; a server that root starts as another user must be able to traverse the folder.
_FOLDERS_OF_OTHERS = 0o066


def check_home(home: Home) -> Iterator[Finding]:
    """Check that the home is private and writable, and report which command uses it."""
    if not _exists(home.path):
        yield _absent("home", home.path, "the first command that needs it creates it")
        return
    facts = home.path.stat()
    if not os.access(home.path, _WRITE):
        yield failure("home", f"{home.path} cannot be written. {_grant(home.path)}")
        return
    if facts.st_mode & _FOLDERS_OF_OTHERS:
        text = (
            f"other users can access {home.path} (mode {facts.st_mode & 0o777:04o}), which has the "
            f"database and the logs. Run `chmod 700 {shlex.quote(str(home.path))}`."
        )
        yield warning("home", text)
    if facts.st_uid != os.geteuid():
        text = f"{home.path} belongs to another user (id {facts.st_uid}). Use another home folder."
        yield warning("home", text)
    holder = home.holder()
    used = "not in use" if holder is None else f"in use by {holder}"
    yield fine("home", f"{home.path}; {used}.")


_LITTLE, _TOO_LITTLE = 2**30, 100 * 2**20
_SHARED_MEMORY = Path("/dev", "shm")
_LITTLE_SHARED = 64 * 2**20  # the default in containers


def check_disks(home: Home, streams: Iterable[Stream]) -> Iterator[Finding]:
    """Check the free space of the disks that are written to, and of shared memory."""
    places = {"the home": home.path, "temporary files": Path(tempfile.gettempdir())}
    for stream in streams:
        if filesystem_of(stream.storage.root).is_local:
            places[f"files of {stream.name}"] = Path(to_path(stream.storage.root))
    disks: dict[int, tuple[Path, list[str]]] = {}
    for name, place in places.items():
        path = next(filter(_exists, (place, *place.parents)))
        disks.setdefault(path.stat().st_dev, (path, []))[1].append(name)
    gc = "Free space: `batch-pipeline gc --dry-run` lists what is not needed."
    for path, names in disks.values():
        yield _space("disk", path, f"for {', '.join(names)}", (_LITTLE, _TOO_LITTLE), gc)
    if _SHARED_MEMORY.is_dir():
        more = "Give the container more, for example `--shm-size 256m`."
        limits = _LITTLE_SHARED, 2**20
        yield _space("memory", _SHARED_MEMORY, "for PostgreSQL and Spark", limits, more)


def _space(
    subject: str, path: Path, purpose: str, limits: tuple[int, int], next_step: str
) -> Finding:
    usage = shutil.disk_usage(path)
    little, too_little = limits
    text = f"{format_bytes(usage.free)} of {format_bytes(usage.total)} free at {path}, {purpose}."
    if usage.free >= little:
        return fine(subject, text)
    level = Level.WARN if usage.free >= too_little else Level.FAIL
    return Finding(subject=subject, level=level, text=f"{text} {next_step}")


def check_places(stream: Stream, now: datetime) -> Iterator[Finding]:
    """Check that a stream's files are readable and its storage is writable.

    `now` is the time of this machine; the clocks of stores are compared with it.
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
    if not _exists(path) and rights == _WRITE:
        yield _absent(name, path, f"the first batch creates it ({key})")
    elif not _exists(path):
        text = f"{path} does not exist ({key}), so no files land. Create it, or correct the file."
        yield warning(name, text)
    elif not path.is_dir():
        yield failure(name, f"{path} is not a folder ({key}). Name another one, or move it away.")
    elif not os.access(path, rights):
        verb = "written" if rights == _WRITE else "read"
        yield failure(name, f"{path} cannot be {verb} ({key}). {_grant(path)}")


def _absent(subject: str, path: Path, created_by: str) -> Finding:
    above = next(filter(_exists, path.parents))
    if os.access(above, _WRITE):
        return fine(subject, f"{path} does not exist yet; {created_by}.")
    text = f"{path} does not exist and cannot be created in {above}. {_grant(above)}"
    return failure(subject, text)


def _grant(path: Path) -> str:
    user = psutil.Process().username()
    return f"Grant user {user} that permission, or use another folder than {path}."


def _exists(path: Path) -> bool:
    """Return whether a path exists and can be examined."""
    try:
        return path.exists()
    except OSError:  # a parent folder is not accessible
        return False


def check_port(port: int = 3000) -> Iterator[Finding]:
    """Check that the port of Dagster's UI is free; `dev` does not choose another port."""
    problem = port_problem(port)
    if problem is None:
        yield fine("ports", f"{port}, for Dagster's UI in `dev`, is free.")
        return
    user = f" by {_listener(port)}" if problem == "is in use" else ""
    text = (
        f"{port} {problem}{user}. If that is not your `dev`, run "
        f"`batch-pipeline dev --port {port + 1}`."
    )
    yield warning("ports", text)


def _listener(port: int) -> str:
    with suppress(psutil.Error):
        for one in psutil.net_connections("tcp"):
            is_listening = one.status == psutil.CONN_LISTEN
            if is_listening and getattr(one.laddr, "port", None) == port and one.pid:
                return f"{psutil.Process(one.pid).name()} (process {one.pid})"
    return "another process"
