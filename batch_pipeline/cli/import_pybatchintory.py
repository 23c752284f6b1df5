"""The command `import-pybatchintory`: bookmarks and history of jobs that pybatchintory has kept."""

import os
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from batch_pipeline.cli.console import head, print_json, say
from batch_pipeline.cli.streams import as_json, dry_run
from batch_pipeline.domain.audit import Noted
from batch_pipeline.domain.imported import ImportedJob, NotImportedError, Running
from batch_pipeline.domain.words import agreeing, count_of

if TYPE_CHECKING:
    from batch_pipeline.inventory.imported.importing import Asked

_VARIABLE = "PYBATCHINTORY_INVENTORY_CONN"


@click.command()
@click.option(
    "--from",
    "url",
    metavar="URL",
    envvar=_VARIABLE,
    required=True,
    help=f"Database that has the inventory table; {_VARIABLE} if left out.",
)
@click.option(
    "--inventory-table",
    metavar="TABLE",
    default="inventory",
    show_default=True,
    help="The table, as table or schema.table.",
)
@click.option("--job", metavar="NAME", multiple=True, help="Only this job; may be repeated.")
@click.option(
    "--meta-conn",
    metavar="URL",
    help="Database that has the meta tables; BATCH_PIPELINE_META_CONN if left out.",
)
@click.option(
    "--running",
    type=click.Choice([one.value for one in Running]),
    help="What batches count as that were never released.",
)
@dry_run
@as_json
def import_pybatchintory(
    url: str, meta_conn: str | None, running: str | None, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Take over jobs of pybatchintory.

    From release 0.0.8; acquire_batch then goes on where they ended. All jobs, or the ones named,
    are imported with batches, attempts and times, all of it or nothing. The other inventory is only
    read. Run again, it adds what is new there, and does nothing otherwise. What is in contradiction
    is listed, and nothing is done then.

    \b
    Example:
      batch-pipeline import-pybatchintory --from postgresql://user@host/database --dry-run
    """
    from batch_pipeline.inventory.imported.importing import Asked

    chosen = None if running is None else Running(running)
    asked = Asked(
        table=given["inventory_table"], jobs=given["job"], running=chosen, dry_run=dry_run
    )
    try:
        done = _imported(url, meta_conn, asked)
    except NotImportedError as error:
        if as_json:
            print_json({"dry_run": dry_run, "jobs": [], "problems": list(error.problems)})
        raise
    if as_json:
        print_json({"dry_run": dry_run, "jobs": [_report(one) for one in done], "problems": []})
        return
    for one in done:
        _print(one)
    new, rest = sum(one.batches > 0 for one in done), sum(not one.batches for one in done)
    were = "would be" if dry_run else agreeing(new, "was", "were")
    say(f"{count_of(new, 'job')} {were} imported; {rest} had nothing new.")


def _imported(url: str, meta_conn: str | None, asked: "Asked") -> list[ImportedJob]:
    from batch_pipeline.inventory.imported.importing import Importing
    from batch_pipeline.inventory.meta.meta_connection import open_meta_engine
    from batch_pipeline.settings.environment import load_settings
    from batch_pipeline.settings.pipeline import Pipeline

    settings = load_settings(settings={"meta_conn": meta_conn}, environment=os.environ)
    engine = open_meta_engine(url, given_as="--from")
    with closing(Pipeline(settings)) as pipeline:
        try:
            importing = Importing(pipeline.database.engine, pipeline.meta_sources)
            return importing.run(engine, asked)
        finally:
            engine.dispose()


def _report(one: ImportedJob) -> dict[str, Any]:
    return {
        "job": one.name,
        "meta_table": one.meta_table,
        "batches": one.batches,
        "items": one.items,
        "weight": one.weight,
        "attempts": one.attempts,
        "bookmark": one.bookmark,
        "states": {state.value: count for state, count in one.states.items()},
        "late": asdict(one.late),
        "left": asdict(one.left),
        "doubts": list(one.doubts),
    }


def _print(one: ImportedJob) -> None:
    head(one.name)
    say(f"  job on {one.meta_table}, planned up to id {one.bookmark}")
    if one.batches:
        states = ", ".join(f"{count} {state.value}" for state, count in one.states.items())
        items, attempts = count_of(one.items, "item"), count_of(one.attempts, "attempt")
        say(f"  batches   {states}: {items}, {attempts}")
    else:
        say("  batches   nothing new")
    if one.late.count:
        say(f"  late      {_below(one.late)} in no batch ({one.late.ids}):")
        them = agreeing(one.late.count, "it", "them")
        say(f'            audit_job("{one.name}", since=None) plans {them}')
    if one.left.count:
        say(f"  left      {_below(one.left)} in no range ({one.left.ids}):")
        say(f"            acquire_batch takes {agreeing(one.left.count, 'it', 'them')} first")
    for doubt in one.doubts:
        say(f"  doubtful  {doubt}")


def _below(some: Noted) -> str:
    return f"{count_of(some.count, 'item')} below {agreeing(some.count, 'is', 'are')}"
