"""What works and what does not: settings, machine, inventory, rights, Dagster and streams."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from batch_pipeline.cli.console import out, print_json
from batch_pipeline.cli.exits import EXIT_OPERATOR
from batch_pipeline.cli.streams import as_json
from batch_pipeline.domain.ceiling import Strategy
from batch_pipeline.domain.errors import InvalidValueError, NoStreamsError, SettingError
from batch_pipeline.domain.filter import parse_filter
from batch_pipeline.domain.finding import Finding, Level, attempted, failure, fine, warning
from batch_pipeline.domain.stream import Stream
from batch_pipeline.inventory.database import open_database
from batch_pipeline.inventory.meta.ceilings.settle import SettleBy
from batch_pipeline.inventory.meta.column_roles import MetaColumns
from batch_pipeline.inventory.meta.meta_sources import SourceTerms
from batch_pipeline.inventory.meta.published import PUBLISHED_COLUMNS, is_published
from batch_pipeline.inventory.meta.user_meta_table import UserMetaTable
from batch_pipeline.inventory.upkeep.checkup import check_inventory, check_source
from batch_pipeline.inventory.upkeep.server_checkup import check_server
from batch_pipeline.inventory.upkeep.work_checkup import check_dagster, check_work
from batch_pipeline.settings.checkup.configuration import check_configuration
from batch_pipeline.settings.checkup.folders import check_disks, check_home, check_places
from batch_pipeline.settings.checkup.ports import check_ports
from batch_pipeline.settings.checkup.versions import check_java, check_versions
from batch_pipeline.settings.home import Home
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.settings.stream_file import load_streams_tolerantly

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}
_ONLY_WITH_META_TABLE = ("job", "uid", "item", "weight", "where", "ceiling", "settle_by")


@click.command(short_help="Tell what works and what does not, and what to do.")
@click.option("--meta-table", metavar="TABLE", help="Look at this table, as the library reads it.")
@click.option("--job", metavar="NAME", help="The job that acquires from it.")
@click.option("--uid", metavar="COLUMN", help="Its column of ids.")
@click.option("--item", metavar="COLUMN", help="Its column of items.")
@click.option("--weight", metavar="COLUMN", help="Its column of weights; 'none' if it has none.")
@click.option("--where", metavar="JSON", help="Its filter.")
@click.option("--ceiling", type=click.Choice(list(Strategy)), help="How its ceiling is found.")
@click.option("--settle-by", metavar="COLUMN", help="Its column of insert times.")
@as_json
def doctor(meta_table: str | None, as_json: bool, **table: str | None) -> None:
    """Look at settings, versions, home, disks, inventory, rights, Dagster, and all streams.

    With --meta-table, at that table in place of the streams. One line for each finding: ok, warn
    (it works; somebody should know) or fail (it does not). Nothing is changed; meta tables are only
    read, at most 100,000 rows of each. The exit code is 1 when something fails.
    """
    given = [name for name in _ONLY_WITH_META_TABLE if table[name] is not None]
    if meta_table is None and given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} needs --meta-table.")
    asked = None if meta_table is None else _terms(meta_table, table)
    findings = list(_all(asked, _job(table)))
    is_well = not any(one.level is Level.FAIL for one in findings)
    if as_json:
        told = [
            {"subject": one.subject, "level": one.level.value, "text": one.text} for one in findings
        ]
        print_json({"ok": is_well, "findings": told})
    else:
        for one in findings:
            out.print(f"{one.level.value:<5}", style=_STYLES[one.level], end="")
            out.print(f"{one.subject}: {one.text}", markup=False)
    if not is_well:
        sys.exit(EXIT_OPERATOR)


def _all(asked: SourceTerms | None, job: str) -> Iterator[Finding]:
    try:
        pipeline = Pipeline.from_environment()
    except SettingError as error:
        yield failure("settings", f"{error} Nothing else was looked at.")
        return
    with closing(pipeline):
        yield from _machine(pipeline)
        yield from _findings(pipeline, asked, job)


def _machine(pipeline: Pipeline) -> Iterator[Finding]:
    settings, environment = pipeline.settings, pipeline.environment
    home, streams = Home(path=settings.home), load_streams_tolerantly(settings.streams)[0]
    yield from attempted("settings", lambda: check_configuration(settings, environment))
    yield from attempted("versions", check_versions)
    yield from attempted("java", lambda: check_java(settings, environment))
    yield from attempted("home", lambda: check_home(home))
    yield from attempted("disk", lambda: check_disks(home, streams.values()))
    yield from attempted("ports", check_ports)


def _findings(pipeline: Pipeline, asked: SourceTerms | None, job: str) -> Iterator[Finding]:
    of_inventory = list(attempted("inventory", lambda: _inventory(pipeline)))
    yield from of_inventory
    if any(one.level is Level.FAIL for one in of_inventory):
        yield warning("meta tables", "not looked at: the inventory comes first.")
    elif asked is not None:
        yield from attempted(asked.name, lambda: _table(pipeline, asked, job))
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
    streams, problems = load_streams_tolerantly(folder)
    if not streams and not problems:
        yield warning("streams", str(NoStreamsError(str(folder))))
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


def _terms(meta_table: str, table: dict[str, Any]) -> SourceTerms:
    columns = {role: table[role] for role in ("uid", "item", "weight") if table[role] is not None}
    if columns.get("weight") == "none":
        columns["weight"] = None
    usual = PUBLISHED_COLUMNS if is_published(meta_table) else MetaColumns()
    return SourceTerms(
        name=meta_table,
        columns=replace(usual, **columns),
        where=None if table["where"] is None else parse_filter(_parsed(table["where"]), "--where"),
        ceiling=None if table["ceiling"] is None else Strategy(table["ceiling"]),
        settle_by=None if table["settle_by"] is None else SettleBy(table["settle_by"]),
        reader=_job(table) if is_published(meta_table) else None,
    )


def _job(table: dict[str, Any]) -> str:
    return table["job"] or "doctor"


def _parsed(where: str) -> object:
    try:
        return json.loads(where)
    except ValueError as error:
        expected = f'JSON such as [{{"column": "kind", "operator": "=", "value": "a"}}] ({error})'
        raise InvalidValueError("--where", where, expected) from error
