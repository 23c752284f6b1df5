"""The command `register`: new files become items (stations 1 and 2)."""

from typing import TYPE_CHECKING

import click

from batch_pipeline.cli.console import print_json, say
from batch_pipeline.cli.progress import progress
from batch_pipeline.cli.streams import as_json, one_stream, opened
from batch_pipeline.domain.errors import PipelineError
from batch_pipeline.domain.item import Registered
from batch_pipeline.domain.progress import turn_to

if TYPE_CHECKING:
    from batch_pipeline.domain.stream import Stream
    from batch_pipeline.settings.pipeline import Pipeline


@click.command()
@one_stream
@click.option(
    "--accept-changed",
    is_flag=True,
    help="Take over size and time of files that changed after they were registered.",
)
@as_json
def register(stream: str, accept_changed: bool, as_json: bool) -> None:
    """Find new files of STREAM and give them ids (stations 1 and 2).

    Adds a row of the meta table for each new file; files themselves are only listed. A stream whose
    meta table is your own has nothing to register.

    \b
    Example:
      batch-pipeline register orders
    """
    with opened() as pipeline:
        one = pipeline.stream(stream)
        with progress():
            result, troubles = _register(pipeline, one, accept_changed=accept_changed)
    if as_json:
        print_json(
            {
                "stream": stream,
                "meta_table": None if one.user_table is None else one.user_table.table,
                "files_found": result.found,
                "items_registered": result.new_items,
                "files_changed": list(result.changed),
                "changes_accepted": result.accepted,
            }
        )
    else:
        _print(one, result, accept_changed=accept_changed)
    if troubles:
        raise troubles[0]


def _register(
    pipeline: "Pipeline", stream: "Stream", *, accept_changed: bool
) -> "tuple[Registered, tuple[PipelineError, ...]]":
    """Register what landed; gives what was done, and what kept it from some files."""
    from batch_pipeline.settings.restored import check_not_older
    from batch_pipeline.steps.register import register as register_step

    if stream.user_table is not None:
        return Registered(found=0, new_items=0), ()
    turn_to(stream.name, "looking for files")
    check_not_older(pipeline, stream)
    registry = pipeline.database.meta_table(stream.name)
    landing = pipeline.landing(stream, wait=True)
    cutter = pipeline.cutter(stream)
    result = register_step(landing, registry, accept_changed=accept_changed, cutter=cutter)
    return result, (*landing.troubles,)


def _print(one: "Stream", result: "Registered", *, accept_changed: bool) -> None:
    stream = one.name
    if one.user_table is not None:
        say(f"{stream}: {one.user_table.table} is a meta table of your own. Its rows are the")
        say(f"items, and nothing is registered. `batch-pipeline plan {stream}` plans them.")
        return
    say(f"{stream}: files found: {result.found}, registered: {result.new_items}.")
    if result.accepted:
        say(f"Changed files accepted: {result.accepted}. Batches that were published with the")
        say("earlier content keep it until their partition is materialized again.")
    advice = "(see --accept-changed)"
    if accept_changed:
        advice = "(its records are in other places now than its items say: land it by another name)"
    for location in result.changed:
        say(f"changed after it was registered: {location} {advice}")
