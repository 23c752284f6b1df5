"""Commands on streams: run, register, status, messages, migrate."""

import sys
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from batch_pipeline.cli.console import head, print_json, progress, say
from batch_pipeline.cli.limits_told import learned_json, learned_lines
from batch_pipeline.cli.loads_told import print_standing, standings_of
from batch_pipeline.domain.backfill import Progress
from batch_pipeline.domain.batch import BatchState, BatchStatus
from batch_pipeline.domain.errors import OF_ONE_META_TABLE, PipelineError
from batch_pipeline.domain.item import Registered
from batch_pipeline.domain.stream import Stream
from batch_pipeline.inventory.meta.ceilings.ceiling import describe
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.settings.restored import check_not_older
from batch_pipeline.settings.units import format_bytes, format_duration

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
        result = Registered(found=0, new_items=0)
        troubles: tuple[PipelineError, ...] = ()
        if one.user_table is None:
            check_not_older(pipeline, one)
            registry = pipeline.database.meta_table(one.name)
            landing = pipeline.landing(one, wait=True)
            result = register_step(
                landing, registry, accept_changed=accept_changed, cutter=pipeline.cutter(one)
            )
            troubles = (*landing.troubles,)
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
        _print_registered(one, result, accept_changed=accept_changed)
    if troubles:
        raise troubles[0]


def _print_registered(one: Stream, result: Registered, *, accept_changed: bool) -> None:
    stream = one.name
    if one.user_table is not None:
        say(f"{stream}: {one.user_table.table} is a meta table of your own. Its rows are the")
        say(f"items, and nothing is registered. `batch-pipeline plan {stream}` plans them.")
        return
    say(f"{stream}: {result.found} files found, {result.new_items} registered.")
    if result.accepted:
        say(f"{result.accepted} changed file(s) accepted. Batches that were published with the")
        say("earlier content keep it until their partition is materialized again.")
    advice = "(see --accept-changed)"
    if accept_changed:
        advice = "(its records are in other places now than its items say: land it by another name)"
    for location in result.changed:
        say(f"changed after it was registered: {location} {advice}")


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
@click.option("--backfills/--no-backfills", default=True, help="Send batches of backfills, too.")
def messages(stream: str, state: Path | None, backfills: bool) -> None:
    """Write SCHEMA, BATCH and STATE lines of STREAM for a Singer target.

    First those of the stream's own batches, then of its late arrivals, then of its backfills.
    """
    from batch_pipeline.singer.bookmarks import Bookmark, read_bookmark
    from batch_pipeline.singer.messages import line
    from batch_pipeline.singer.messages import messages as message_lines

    with closing(Pipeline.from_environment()) as pipeline:
        told = pipeline.stream(stream)
        bookmark = Bookmark() if state is None else read_bookmark(state, told.name)
        manifests = pipeline.database.manifests
        published = manifests.published_after(
            told.name, bookmark.numbers, backfills=backfills, last=bookmark.last
        )
        for message in message_lines(
            published, stream=told.name, name=told.message_name, bookmark=bookmark
        ):
            sys.stdout.write(line(message))
        sys.stdout.flush()


@click.command()
@click.option("--roles", metavar="PREFIX", help="Make the group roles PREFIX_owner, … and grant.")
@click.option("--print", "print_only", is_flag=True, help="Only print the SQL of --roles.")
@as_json
def migrate(roles: str | None, print_only: bool, as_json: bool) -> None:
    """Bring the inventory schema to this release's revision.

    With --roles PREFIX, also make the group roles PREFIX_owner, PREFIX_planner, PREFIX_worker and
    PREFIX_reader where they are missing, and give each the rights it needs and no others.
    """
    if print_only:
        from batch_pipeline.inventory.upkeep.roles import script

        if roles is None:
            raise click.UsageError("--print needs --roles PREFIX.")
        click.echo(script(roles), nl=False)
        return
    with closing(Pipeline.from_environment()) as pipeline:
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


def _chosen(pipeline: Pipeline, names: tuple[str, ...]) -> list[Stream]:
    return [pipeline.stream(name) for name in names] if names else list(pipeline.streams.values())


def _status(pipeline: Pipeline, stream: Stream) -> dict[str, Any]:
    batches = pipeline.database.batches
    problem = ceiling = waiting_items = waiting_bytes = None
    try:
        meta_table = pipeline.meta_table(stream)
        ceiling = describe(meta_table.reading())
        waiting_items, waiting_bytes = batches.backlog(meta_table)
    except OF_ONE_META_TABLE as error:  # the inventory still tells the rest
        problem = str(error)
    statuses, backfills = batches.statuses(stream.name), pipeline.database.backfills
    paused = backfills.paused(stream.name)
    states = Counter(one.state for one in statuses)
    limits = pipeline.database.learned_limits.of_stream(stream.name, stream.limits)
    return {
        "stream": stream.name,
        "source": stream.source.place,
        "meta_table": None if stream.user_table is None else stream.user_table.table,
        "problem": problem,
        "ceiling": ceiling,
        "paused": pipeline.database.jobs.paused(stream.name),
        "items_waiting": waiting_items,
        "bytes_waiting": waiting_bytes,
        "learned_limit": learned_json(limits.learned),
        "batches": {state.value: states.get(state, 0) for state in BatchState},
        "unfinished": [
            _unfinished(one)
            for one in statuses
            if one.state not in {BatchState.PUBLISHED, BatchState.SUPERSEDED}
        ],
        "backfills": [_backfill(one, paused) for one in backfills.of_stream(stream.name)],
        "targets": standings_of(pipeline, stream),
    }


def _backfill(one: Progress, paused: dict[str, str]) -> dict[str, Any]:
    return {
        "job": one.job,
        "batches": {state.value: one.states.get(state, 0) for state in BatchState},
        "items": one.items,
        "items_done": one.items_done,
        "weight_bytes": one.weight,
        "weight_bytes_done": one.weight_done,
        "seconds_left": None if one.remaining is None else one.remaining.total_seconds(),
        "finished": one.is_finished,
        "paused": paused.get(one.job),
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
    kind = "folder" if report["meta_table"] is None else "meta table"
    say(f"  source   {kind} {report['source']}")
    say(f"  {report['ceiling'] or report['problem']}")
    if report["paused"] is not None:
        say(f"  paused   {report['paused'] or 'no reason given'}")
    if report["problem"] is None:
        waiting = f"{report['items_waiting']} items, {format_bytes(report['bytes_waiting'])}"
        say(f"  waiting  {waiting} not planned yet")
    for number, line in enumerate(learned_lines(report["learned_limit"])):
        say(f"  {'         ' if number else 'limit    '}{line}")
    say(f"  batches  {_counts(report['batches'])}")
    for one in report["unfinished"][:10]:
        reason = f": {one['error']}" if one["error"] else ""
        say(f"    {one['batch_id']} {one['state']} after {one['attempts']} attempt(s){reason}")
    left = len(report["unfinished"]) - 10
    if left > 0:
        say(f"    … and {left} more (--json lists all)")
    for backfill in report["backfills"]:
        _print_backfill(backfill)
    for target in report["targets"]:
        print_standing(target)


def _counts(batches: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in batches.items() if count) or "none"


def _print_backfill(backfill: dict[str, Any]) -> None:
    end = " (finished)" if backfill["finished"] else ""
    say(f"  backfill {backfill['job']}: {_counts(backfill['batches'])}{end}")
    if backfill["paused"] is not None:
        say(f"    paused {backfill['paused'] or 'no reason given'}")
    weight, done = format_bytes(backfill["weight_bytes"]), backfill["weight_bytes_done"]
    items = f"{backfill['items_done']} of {backfill['items']} items"
    left = backfill["seconds_left"]
    rest = f", {format_duration(timedelta(seconds=left))} left at the pace so far" if left else ""
    say(f"    {items}, {format_bytes(done)} of {weight} done{rest}")
