"""The command `doctor`: check the installation and suggest fixes."""

import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from batch_pipeline.cli.console import EXIT_OPERATOR, out, print_json
from batch_pipeline.cli.options import as_json
from batch_pipeline.model.checks import Level
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.stream import Strategy

if TYPE_CHECKING:
    from batch_pipeline.inventory.meta_tables.sources import SourceTerms

_CEILINGS = click.Choice([one.value for one in Strategy])  # of enums `click` shows other names
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
    from batch_pipeline.cli.doctor_checks import diagnose

    job = table.pop("job") or "doctor"
    terms = None if meta_table is None else _terms(meta_table, job, table)
    findings = list(diagnose(terms, job))
    is_well = not any(one.level is Level.FAIL for one in findings)
    if as_json:
        print_json({"ok": is_well, "findings": [asdict(one) for one in findings]})
    else:
        for one in findings:
            out.print(f"{one.level.value:<5}", style=_STYLES[one.level], end="")
            out.print(f"{one.subject}: {one.text}", markup=False)
    if not is_well:
        sys.exit(EXIT_OPERATOR)


def _terms(meta_table: str, job: str, table: dict[str, Any]) -> "SourceTerms":
    from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
    from batch_pipeline.inventory.meta_tables.chained_table import PUBLISHED_COLUMNS, is_published
    from batch_pipeline.inventory.meta_tables.sources import SourceTerms
    from batch_pipeline.inventory.meta_tables.watermarks import SettleBy
    from batch_pipeline.model.filter import parse_filter

    columns = {role: table[role] for role in ("uid", "item", "weight") if table[role] is not None}
    if columns.get("weight") == "none":
        columns["weight"] = None
    where, condition = table["where"], None
    if where is not None:
        try:
            condition = json.loads(where)
        except ValueError as error:
            example = '[{"column": "kind", "operator": "=", "value": "a"}]'
            raise InvalidValueError(
                "--where", where, f"JSON such as {example} ({error})"
            ) from error
    usual = PUBLISHED_COLUMNS if is_published(meta_table) else MetaColumns()
    return SourceTerms(
        name=meta_table,
        columns=replace(usual, **columns),
        where=None if where is None else parse_filter(condition, "--where"),
        strategy=None if table["ceiling"] is None else Strategy(table["ceiling"]),
        settle_by=None if table["settle_by"] is None else SettleBy(table["settle_by"]),
        reader=job if is_published(meta_table) else None,
    )
