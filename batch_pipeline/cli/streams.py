"""Commands on streams: run, register, plan, status, messages, migrate."""

import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from batch_pipeline.cli.console import head, print_json, progress, say
from batch_pipeline.domain.batch import BatchState, BatchStatus
from batch_pipeline.domain.stream import Stream
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.settings.units import format_bytes

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@click.command()
@click.argument("stream", nargs=-1)
@as_json
def run(stream: tuple[str, ...], as_json: bool) -> None:
    """Register, plan, encode and publish until nothing is left.

    Takes all streams, or the ones named. What is wrong with one stream does not keep the others
    from going on. Exits with 3 when some batches failed.
    """
    from batch_pipeline.cli.walk import complain_of, drain_streams, drained_json, print_drained

    with closing(Pipeline.from_environment()) as pipeline:
        chosen = _chosen(pipeline, stream)
        with progress():
            results = drain_streams(pipeline, chosen, command="batch-pipeline run")
        if as_json:
            print_json({"streams": [drained_json(pipeline, result) for result in results]})
        else:
            for result in results:
                print_drained(pipeline, pipeline.stream(result.stream), result)
        code = complain_of(results)
    sys.exit(code)


@click.command()
@click.argument("stream")
@click.option(
    "--accept-changed",
    is_flag=True,
    help="Take over size and time of files that changed after they were registered.",
)
@as_json
def register(stream: str, accept_changed: bool, as_json: bool) -> None:
    """Find new files of STREAM and give them ids (stations 1 and 2)."""
    from batch_pipeline.steps.register import register as register_step

    with closing(Pipeline.from_environment()) as pipeline:
        one = pipeline.stream(stream)
        meta_table = pipeline.meta_table(one)
        landing = pipeline.landing(one, wait=True)
        result = register_step(landing, meta_table, accept_changed=accept_changed)
    if as_json:
        print_json(
            {
                "stream": stream,
                "files_found": result.found,
                "items_registered": result.new_items,
                "files_changed": list(result.changed),
                "changes_accepted": result.accepted,
            }
        )
        return
    say(f"{stream}: {result.found} files found, {result.new_items} registered.")
    if result.accepted:
        say(f"{result.accepted} changed file(s) accepted. Batches that were published with the")
        say("earlier content keep it until their partition is materialized again.")
    for location in result.changed:
        say(f"changed after it was registered: {location} (see --accept-changed)")


@click.command()
@click.argument("stream")
@as_json
def plan(stream: str, as_json: bool) -> None:
    """Cut the registered items of STREAM into batches (station 3)."""
    from batch_pipeline.steps.plan import plan as plan_step

    with closing(Pipeline.from_environment()) as pipeline:
        one = pipeline.stream(stream)
        batches = pipeline.database.batches
        planned = plan_step(batches, pipeline.meta_table(one), one, drain=True)
        new = [] if planned.ids is None else batches.statuses(stream, planned.ids)
    if as_json:
        rows = [
            {
                "batch_id": status.batch.key,
                "items": status.batch.count,
                "weight_bytes": status.batch.weight,
            }
            for status in new
        ]
        print_json({"stream": stream, "batches": rows})
        return
    say(f"{stream}: {planned.batches} batches planned.")
    for batch in (status.batch for status in new):
        flag = "  heavier than max_weight" if batch.oversized else ""
        say(f"  {batch.key}  {batch.count:>6} files  {format_bytes(batch.weight):>10}{flag}")


@click.command()
@click.argument("stream", nargs=-1)
@as_json
def status(stream: tuple[str, ...], as_json: bool) -> None:
    """Show what waits, what is done and what failed."""
    with closing(Pipeline.from_environment()) as pipeline:
        reports = [_status(pipeline, one) for one in _chosen(pipeline, stream)]
    if as_json:
        print_json({"streams": reports})
        return
    for report in reports:
        _print_status(report)


@click.command(short_help="Write SCHEMA, BATCH and STATE lines for a Singer target.")
@click.argument("stream")
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Start after the bookmark in this file, as a target printed it.",
)
def messages(stream: str, state: Path | None) -> None:
    """Write SCHEMA, BATCH and STATE lines of STREAM for a Singer target."""
    from batch_pipeline.singer.messages import Bookmark, line, read_bookmark
    from batch_pipeline.singer.messages import messages as message_lines

    with closing(Pipeline.from_environment()) as pipeline:
        name = pipeline.stream(stream).name
        bookmark = Bookmark() if state is None else read_bookmark(state, name)
        published = pipeline.database.manifests.published_after(name, bookmark.publish_number)
        for message in message_lines(published):
            sys.stdout.write(line(message))
        sys.stdout.flush()


@click.command()
@as_json
def migrate(as_json: bool) -> None:
    """Bring the inventory schema to this release's revision."""
    with closing(Pipeline.from_environment()) as pipeline:
        before, after, place = pipeline.migrate()
    if as_json:
        print_json({"database": place, "before": before, "after": after})
    elif before == after:
        say(f"The inventory at {place} is at revision {after} already.")
    else:
        say(f"The inventory at {place} went from revision {before} to {after}.")


def _chosen(pipeline: Pipeline, names: tuple[str, ...]) -> list[Stream]:
    return [pipeline.stream(name) for name in names] if names else list(pipeline.streams.values())


def _status(pipeline: Pipeline, stream: Stream) -> dict[str, Any]:
    batches = pipeline.database.batches
    waiting_items, waiting_bytes = batches.backlog(pipeline.meta_table(stream))
    statuses = batches.statuses(stream.name)
    states = Counter(one.state for one in statuses)
    return {
        "stream": stream.name,
        "source": stream.source.uri,
        "items_waiting": waiting_items,
        "bytes_waiting": waiting_bytes,
        "batches": {state.value: states.get(state, 0) for state in BatchState},
        "unfinished": [
            _unfinished(one) for one in statuses if one.state is not BatchState.PUBLISHED
        ],
    }


def _unfinished(one: BatchStatus) -> dict[str, Any]:
    return {
        "batch_id": one.batch.key,
        "state": one.state.value,
        "attempts": one.attempts,
        "error": one.error,
    }


def _print_status(report: dict[str, Any]) -> None:
    head(report["stream"])
    say(f"  source   {report['source']}")
    waiting = f"{report['items_waiting']} items, {format_bytes(report['bytes_waiting'])}"
    say(f"  waiting  {waiting} registered and not planned")
    counts = ", ".join(f"{count} {state}" for state, count in report["batches"].items() if count)
    say(f"  batches  {counts or 'none'}")
    for one in report["unfinished"][:10]:
        reason = f": {one['error']}" if one["error"] else ""
        say(f"    {one['batch_id']} {one['state']} after {one['attempts']} attempt(s){reason}")
    left = len(report["unfinished"]) - 10
    if left > 0:
        say(f"    … and {left} more (--json lists all)")
