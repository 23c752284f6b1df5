"""The command `reprocess`: what is published, made once more by the code of today."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import click

from batch_pipeline.cli.console import complain, head, note, print_json, progress, say
from batch_pipeline.cli.exit_codes import EXIT_SOME_FAILED
from batch_pipeline.cli.options import (
    as_json,
    dry_run,
    one_stream,
    opened,
    removed_option,
    some_batches,
)
from batch_pipeline.config.units import format_bytes, parse_time
from batch_pipeline.model.errors import PipelineError

if TYPE_CHECKING:
    from batch_pipeline.defs.in_process import ReprocessResult, ReprocessSelection

_SHOWN = 20


@click.command()
@one_stream
@some_batches
@click.option("--all", "everything", is_flag=True, help="All published batches.")
@click.option("--since", metavar="TIME", help="Only those published at this time or later.")
@click.option("--until", metavar="TIME", help="Only those published before this time.")
@removed_option("--before", lambda: "Use --until.", is_flag=False)
@dry_run
@as_json
def reprocess(
    stream: str,
    batch: tuple[str, ...],
    *,
    everything: bool,
    dry_run: bool,
    as_json: bool,
    **published: str | None,
) -> None:
    """Encode and publish batches of STREAM again, after a change of code, settings or sources.

    Each batch gets a new generation, which replaces the previous one in messages and targets. If it
    fails, the previous generation stays. After an interruption, the command prints the --until with
    which to continue. Give one of --batch, --all, --since or --until; times are ISO 8601 with a
    time zone, and a date is midnight UTC. --dry-run works while `dev` or other commands are
    running.

    Exit codes: 3 if some batches failed.

    \b
    Example:
      batch-pipeline reprocess orders --all --dry-run
    """
    from batch_pipeline.defs.in_process import open_exclusively, open_shared, select_batches
    from batch_pipeline.defs.in_process import reprocess as do_it

    if (batch and everything) or not (batch or everything or any(published.values())):
        raise click.UsageError("Choose: --batch BATCHES, --all, --since TIME or --until TIME.")
    times = {
        name: None if time is None else parse_time(time, name=f"--{name}")
        for name, time in published.items()
    }
    with ExitStack() as stack:
        pipeline = stack.enter_context(opened())
        one = pipeline.stream(stream)
        dagster = (
            open_shared(pipeline)
            if dry_run
            else open_exclusively(pipeline, "batch-pipeline reprocess")
        )
        instance = stack.enter_context(dagster)
        stack.enter_context(progress())
        chosen = select_batches(pipeline, one, instance, keys=batch, **times)
        try:
            remade = [] if dry_run else do_it(pipeline, one, instance, chosen)
        except (KeyboardInterrupt, PipelineError):
            _tell_rest(stream, batch, published["since"], chosen)
            raise
    if as_json:
        print_json({"stream": stream, "dry_run": dry_run, "batches": _batches(chosen, remade)})
    else:
        _print_batches(stream, chosen, remade)
    failed = [each for each in remade if not each.is_new]
    for each in failed:
        complain(each.after.error or "it was not started; see the log of its run in Dagster")
    sys.exit(EXIT_SOME_FAILED if failed else 0)


def _tell_rest(
    stream: str, keys: Sequence[str], since: str | None, chosen: "ReprocessSelection"
) -> None:
    if chosen.moment is not None:
        words = [stream, *(f"--batch {key}" for key in keys)]
        words += [] if since is None else ["--since", since]
        words += ["--until", chosen.moment.isoformat()]
        note(f"To process the rest, run: batch-pipeline reprocess {' '.join(words)}")


def _print_batches(
    stream: str, chosen: "ReprocessSelection", remade: "Sequence[ReprocessResult]"
) -> None:
    if not chosen.partitions:
        say(f"{stream}: no published batch is selected.")
        return
    head(stream)
    for (key, status), one in islice(zip_longest(chosen.partitions.items(), remade), _SHOWN):
        what = f"generation {status.generation}"
        if one is not None:
            what = f"generation {one.after.generation}" if one.is_new else f"failed, keeps {what}"
        weight = format_bytes(status.batch.weight)
        say(f"  {key}  files: {status.batch.count:>4}  {weight:>10}  {what}")
    if len(chosen.batches) > _SHOWN:
        say(f"  … and {len(chosen.batches) - _SHOWN} more")
    made, every = sum(one.is_new for one in remade), len(chosen.batches)
    done = f"{made} of {every} published again" if remade else f"{every} would be encoded"
    say(f"  batches     {done}")


def _batches(
    chosen: "ReprocessSelection", remade: "Sequence[ReprocessResult]"
) -> list[dict[str, Any]]:
    told = []
    for (key, status), one in zip_longest(chosen.partitions.items(), remade):
        is_new = one is not None and one.is_new
        told.append(
            {
                "batch_id": key,
                "items": status.batch.count,
                "weight_bytes": status.batch.weight,
                "generation": status.generation if one is None else one.after.generation,
                "is_new": is_new,
                "error": None if one is None or is_new else one.after.error,
            }
        )
    return told
