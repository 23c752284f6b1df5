"""The command `migrate`: the inventory's schema, and the rights of roles on it."""

import click

from batch_pipeline.cli.console import print_json, say
from batch_pipeline.cli.streams import as_json, opened


@click.command()
@click.option("--roles", metavar="PREFIX", help="Make the group roles PREFIX_owner, … and grant.")
@click.option("--print", "print_only", is_flag=True, help="Only print the SQL of --roles.")
@as_json
def migrate(roles: str | None, print_only: bool, as_json: bool) -> None:
    """Bring the inventory schema to this release's revision.

    With --roles PREFIX, also make the group roles PREFIX_owner, PREFIX_planner, PREFIX_worker and
    PREFIX_reader where they are missing, and give each the rights it needs and no others. An
    embedded inventory is migrated by whatever command opens it first; here none is made.

    \b
    Example:
      batch-pipeline migrate --roles orders
    """
    if print_only:
        from batch_pipeline.inventory.upkeep.roles import script

        if roles is None:
            raise click.UsageError("--print needs --roles PREFIX.")
        click.echo(script(roles), nl=False)
        return
    with opened() as pipeline:
        before, after, place = pipeline.migrate(role_prefix=roles)
    if as_json:
        print_json({"database": place, "before": before, "after": after, "roles": roles})
        return
    if before == after:
        say(f"The inventory at {place} is at revision {after} already.")
    else:
        say(f"The inventory at {place} went from revision {before} to {after}.")
    if roles is not None:
        say(
            f"Rights are granted to {roles}_owner, {roles}_planner, {roles}_worker, {roles}_reader."
        )
