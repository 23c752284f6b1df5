"""The command `migrate`: the inventory's schema."""

import click

from batch_pipeline.cli.console import print_json, say
from batch_pipeline.cli.options import as_json, opened, removed_option


def _instead() -> str:
    from importlib.resources import files

    file = files("batch_pipeline.inventory") / "roles.sql"
    return (
        f"After `batch-pipeline migrate`, let an administrator run: "
        f"psql -v ON_ERROR_STOP=1 -f {file} DATABASE"
    )


@click.command()
@removed_option("--roles", _instead, is_flag=False)
@removed_option("--print", _instead)
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
