"""The checks of `doctor`: settings, machine, inventory, rights, Dagster, streams, meta tables."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial

from batch_pipeline.app import Pipeline
from batch_pipeline.config.environment_checks import (
    check_configuration,
    check_disks,
    check_home,
    check_java,
    check_places,
    check_ports,
    check_versions,
)
from batch_pipeline.config.home import Home
from batch_pipeline.config.stream_file import load_valid_streams, no_streams
from batch_pipeline.inventory.database import open_database
from batch_pipeline.inventory.diagnostics import (
    check_dagster,
    check_inventory,
    check_server,
    check_source,
    check_work,
)
from batch_pipeline.inventory.meta_tables.sources import SourceTerms, UserMetaTable
from batch_pipeline.model.checks import Finding, Level, attempted, failure, fine, warning
from batch_pipeline.model.errors import SettingError
from batch_pipeline.model.stream import Stream


def diagnose(terms: SourceTerms | None, job: str) -> Iterator[Finding]:
    """Yield the findings of all checks; with a meta table, check it instead of the streams."""
    try:
        pipeline = Pipeline.from_environment()
    except SettingError as error:
        yield failure("settings", f"{error} Nothing else was checked.")
        return
    with closing(pipeline):
        yield from _machine(pipeline)
        yield from _findings(pipeline, terms, job)


def _machine(pipeline: Pipeline) -> Iterator[Finding]:
    settings, environment = pipeline.settings, pipeline.environment
    home, streams = Home(path=settings.home), load_valid_streams(settings.streams)[0]
    yield from attempted("settings", lambda: check_configuration(settings, environment))
    yield from attempted("versions", check_versions)
    yield from attempted("java", lambda: check_java(settings, environment))
    yield from attempted("home", lambda: check_home(home))
    yield from attempted("disk", lambda: check_disks(home, streams.values()))
    yield from attempted("ports", check_ports)


def _findings(pipeline: Pipeline, terms: SourceTerms | None, job: str) -> Iterator[Finding]:
    of_inventory = list(attempted("inventory", lambda: _inventory(pipeline)))
    yield from of_inventory
    if any(one.level is Level.FAIL for one in of_inventory):
        yield warning("meta tables", "not checked: correct the inventory first.")
    elif terms is not None:
        yield from attempted(terms.name, lambda: _table(pipeline, terms, job))
    else:
        yield from attempted("streams", lambda: _streams(pipeline))


def _inventory(pipeline: Pipeline) -> Iterator[Finding]:
    is_own = pipeline.settings.inventory_conn is None
    with closing(open_database(pipeline.database_url, migrated=None)) as database:
        yield from check_inventory(database.engine, is_own=is_own)
        yield from attempted("server", lambda: check_server(database.engine))
        yield from attempted("dagster", lambda: check_dagster(database.engine, is_own=is_own))


def _streams(pipeline: Pipeline) -> Iterator[Finding]:
    folder = pipeline.settings.streams
    streams, problems = load_valid_streams(folder)
    if not streams and not problems:
        yield warning("streams", str(no_streams(folder)))
    for problem in problems:  # the other streams run in Dagster, so they are looked at here
        yield failure("streams", str(problem))
    yield from attempted("streams", lambda: check_work(pipeline.database.engine))
    for stream in streams.values():
        yield from attempted(stream.name, partial(_stream, pipeline, stream))


def _stream(pipeline: Pipeline, stream: Stream) -> Iterator[Finding]:
    yield from attempted(stream.name, lambda: check_places(stream, datetime.now(UTC)))
    meta_table = pipeline.meta_table(stream)
    if not isinstance(meta_table, UserMetaTable):
        text = "its files are registered here, with ids in commit order."
        yield fine(stream.name, text)
        return
    inventory = pipeline.database.engine
    yield from check_source(stream.name, inventory, meta_table.source, stream.name)


def _table(pipeline: Pipeline, terms: SourceTerms, job: str) -> Iterator[Finding]:
    inventory, sources = pipeline.database.engine, pipeline.sources_of(terms.name)
    yield from sources.use(
        terms, lambda source: list(check_source(source.name, inventory, source, job))
    )
