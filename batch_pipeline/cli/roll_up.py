"""The command that rolls old partitions of a stream up into wider ones."""

import click

from batch_pipeline.cli.console import print_json, say
from batch_pipeline.cli.progress import progress
from batch_pipeline.cli.streams import as_json, dry_run, one_stream, opened
from batch_pipeline.domain.progress import turn_to
from batch_pipeline.domain.roll_up import DEFAULT_WIDTH, RollUp
from batch_pipeline.settings.times import parse_time

_SHOWN = 20


@click.command("roll-up")
@one_stream
@click.option(
    "--keep",
    metavar="COUNT",
    type=click.IntRange(min=0),
    help="All but so many of the newest batches.",
)
@click.option("--before", metavar="TIME", help="Batches published before this time (ISO 8601).")
@click.option(
    "--width",
    metavar="COUNT",
    type=click.IntRange(min=2),
    default=DEFAULT_WIDTH,
    show_default=True,
    help="So many batches become one partition.",
)
@dry_run
@as_json
def roll_up(
    stream: str, keep: int | None, before: str | None, width: int, *, dry_run: bool, as_json: bool
) -> None:
    """Make few wide partitions of the old ones of STREAM in Dagster, which copes with 100,000.

    Batches, manifests, messages and history stay as they are. Materializing a wide partition
    encodes each of its batches once more. State either --keep or --before.

    \b
    Example:
      batch-pipeline roll-up orders --keep 1000 --dry-run
    """
    from batch_pipeline.defs.instance.home import open_instance
    from batch_pipeline.defs.rolled_up import plan_roll_up
    from batch_pipeline.defs.rolled_up import roll_up as do_it

    until = None if before is None else parse_time(before, name="--before")
    wish = RollUp(keep=keep, before=until, width=width)
    with opened() as pipeline, open_instance(pipeline.home) as instance, progress():
        one = pipeline.stream(stream)
        turn_to(one.name, "rolling up")
        found = plan_roll_up(pipeline.database, one, instance, wish)
        if not dry_run:
            do_it(instance, one, found)
    if as_json:
        facts = {"stream": stream, "partitions": found.partitions, "partitions_left": found.left}
        print_json({**facts, "dry_run": dry_run, "wide": [*found.wide]})
        return
    narrow, wide = len(found.narrow), len(found.wide)
    would = "that would go" if dry_run else "gone"
    say(
        f"{stream}: partitions {would}: {narrow}, wider ones in their place: {wide}; "
        f"left: {found.left} of {found.partitions}."
    )
    for key in list(found.wide)[:_SHOWN]:
        say(f"    {key}")
    if len(found.wide) > _SHOWN:
        say(f"    … and {len(found.wide) - _SHOWN} more (--json lists all)")
