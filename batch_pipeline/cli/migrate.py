"""The command `migrate`: the inventory's schema."""

from typing import Any

import click

from batch_pipeline.cli.console import print_json, say
from batch_pipeline.cli.streams import as_json, opened


def _refuse(context: click.Context, option: click.Parameter, value: object) -> None:
    if not value:
        return
    from importlib.resources import files

    file = files("batch_pipeline.inventory") / "roles.sql"
    message = (
        f"The option {option.opts[0]} was removed. After `batch-pipeline migrate`, let an "
        f"administrator run: psql -v ON_ERROR_STOP=1 -f {file} DATABASE"
    )
    raise click.UsageError(message, context)


_REMOVED: dict[str, Any] = {
    "hidden": True,
    "expose_value": False,
    "callback": _refuse,
    "help": "Removed.",
}


@click.command()
@click.option("--roles", **_REMOVED)
@click.option("--print", is_flag=True, **_REMOVED)
@as_json
def migrate(as_json: bool) -> None:
    """Bring the inventory schema to this release's revision.

    An embedded inventory is migrated by whatever command opens it first; here none is made. Where
    roles are used, run inventory/roles.sql with psql afterwards, so that new tables get their
    rights.

    \b
    Example:
      batch-pipeline migrate
    """
    with opened() as pipeline:
        before, after, place = pipeline.migrate()
    if as_json:
        print_json({"database": place, "before": before, "after": after})
    elif before == after:
        say(f"The inventory at {place} is at revision {after} already.")
    else:
        say(f"The inventory at {place} went from revision {before} to {after}.")
