"""The command `plan`: register new files and plan them, or plan a backfill."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from batch_pipeline.cli.console import exit_with, print_json, print_some, progress, say
from batch_pipeline.cli.options import as_json, dry_run, one_stream, opened
from batch_pipeline.config.units import format_bytes, format_duration
from batch_pipeline.model.backfill import Backfill, Estimate
from batch_pipeline.model.batch import BatchStatus
from batch_pipeline.model.errors import JobPausedError, PipelineError
from batch_pipeline.model.item import Registered
from batch_pipeline.model.progress import start_step

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline
    from batch_pipeline.model.stream import Stream

_ID = click.IntRange(min=0)


class _Done(NamedTuple):
    """New batches and registered files; `errors` prevented the registration of some files."""

    batches: list[BatchStatus]
    registered: Registered = Registered(found=0, new_items=0)
    errors: Sequence[PipelineError] = ()


@click.command()
@one_stream
@click.option(
    "--accept-changed",
    is_flag=True,
    help="Accept size and time of files that changed after they were registered.",
)
@click.option("--backfill", metavar="NAME", help="Plan items again, as the backfill NAME.")
@click.option("--first-id", metavar="ID", type=_ID, help="Backfill: the lowest item id.")
@click.option("--last-id", metavar="ID", type=_ID, help="Backfill: the highest item id.")
@click.option("--since", metavar="TIME", help="Backfill: registered at this time or later.")
@click.option("--until", metavar="TIME", help="Backfill: registered before this time.")
@click.option(
    "--item",
    "items",
    metavar="ID",
    type=_ID,
    multiple=True,
    help="Backfill: this item; may be repeated.",
)
@click.option("--failed-only", is_flag=True, help="Backfill: items of failed and dead batches.")
@click.option(
    "--max-weight", metavar="SIZE", help="Backfill: weight limit of a batch, such as 64MiB."
)
@click.option(
    "--max-count",
    metavar="COUNT",
    type=click.IntRange(min=1),
    help="Backfill: item limit of a batch.",
)
@dry_run
@as_json
def plan(
    stream: str,
    accept_changed: bool,
    backfill: str | None,
    dry_run: bool,
    as_json: bool,
    **of_backfill: Any,
) -> None:
    """Register the new files of STREAM and plan its new items into batches (steps 1 to 3).

    Files are only listed; `run` and the sensors encode the batches. For a meta table of your own,
    nothing is registered. --dry-run registers nothing and counts registered items only.

    With --backfill NAME, items that were planned before are planned again, in addition to their
    existing batches: all of them, or those that match all of the other options. --item cannot be
    combined with other selections, nor --failed-only with times. No file is registered. If the
    backfill exists, only items that were added since are planned. Times are ISO 8601 with a time
    zone; a date is midnight UTC.

    \b
    Example:
      batch-pipeline plan orders --backfill march --since 2026-03-01 --dry-run
    """
    from batch_pipeline.config.backfill_form import BackfillForm
    from batch_pipeline.pipeline.reconcile import ensure_inventory_current

    given = [
        name
        for name, value in of_backfill.items()
        if not (value is None or value is False or value == ())  # 0 is an id
    ]
    if backfill is None and given:
        option = given[0].removesuffix("s").replace("_", "-")
        raise click.UsageError(f"--{option} needs --backfill NAME.")
    if accept_changed and (backfill is not None or dry_run):
        other = "--dry-run" if dry_run else "--backfill"
        raise click.UsageError(f"--accept-changed cannot be used with {other}.")
    with opened() as pipeline:
        one = pipeline.stream(stream)
        request = None if backfill is None else BackfillForm(**of_backfill).request(one, backfill)
        job = stream if request is None else request.name
        if dry_run:
            estimate = _estimate(pipeline, one, request)
            if as_json:
                print_json(_estimate_report(stream, job, estimate))
            else:
                _print_estimate(job, estimate)
            return
        ensure_inventory_current(pipeline.database, one)
        if request is None:
            with progress():
                done = _plan(pipeline, one, accept_changed=accept_changed)
        else:
            done = _plan_backfill(pipeline, one, request)
    if as_json:
        print_json(_report(one, job, done))
    else:
        if request is None and one.user_table is None:
            _print_registered(stream, done.registered, accept_changed=accept_changed)
        say(f"{job}: batches planned: {len(done.batches)}.")
        heavy = "  heavier than max_weight"
        print_some(
            [
                f"{one.key}  files: {one.batch.count:>6}  {format_bytes(one.batch.weight):>10}"
                + heavy * one.batch.oversized
                for one in done.batches
            ]
        )
    exit_with(done.errors)


def _plan(pipeline: "Pipeline", stream: "Stream", *, accept_changed: bool) -> _Done:
    """Register new files and plan their batches; return these in id order."""
    done, database = _Done([]), pipeline.database
    if stream.user_table is None:
        start_step(stream.name, "looking for files")
        landing = pipeline.landing(stream, wait=True)
        registered = database.meta_table(stream.name).register(
            landing.found_files(), accept_changed=accept_changed, cutter=pipeline.cutter(stream)
        )
        done = _Done([], registered, landing.troubles)
    try:
        ids = database.batches.plan(pipeline.meta_table(stream), stream.limits, drain=True).ids
    except JobPausedError as paused:
        return done._replace(errors=[paused, *done.errors])
    statuses = [] if ids is None else database.batches.statuses(stream.name, ids)
    return done._replace(batches=statuses)


def _plan_backfill(pipeline: "Pipeline", stream: "Stream", request: Backfill) -> _Done:
    """Plan a backfill; return the new batches in id order."""
    table, backfills = pipeline.meta_table(stream), pipeline.database.backfills
    done = backfills.plan(request, table)
    if done.ids is None:
        return _Done([])
    mine = backfills.statuses(request.name, table.name)
    newest = sorted(one.batch.id for one in mine)[-done.batches :]
    return _Done([one for one in mine if one.batch.id >= newest[0]])


def _report(stream: "Stream", job: str, done: _Done) -> dict[str, Any]:
    registered = done.registered
    return {
        "stream": stream.name,
        "job": job,
        "meta_table": stream.user_table and stream.user_table.table,
        "files_found": registered.found,
        "items_registered": registered.new_items,
        "files_changed": list(registered.changed),
        "changes_accepted": registered.accepted,
        "batches": [
            {"batch_id": one.key, "items": one.batch.count, "weight_bytes": one.batch.weight}
            for one in done.batches
        ],
    }


def _print_registered(stream: str, done: Registered, *, accept_changed: bool) -> None:
    say(f"{stream}: files found: {done.found}, registered: {done.new_items}.")
    if done.accepted:
        say(f"Changed files accepted: {done.accepted}. Batches that were published with the")
        say("earlier content keep it until their partition is materialized again.")
    advice = "(see --accept-changed)"
    if accept_changed:
        advice = "(the ranges of its items no longer match: copy it to another name)"
    for location in done.changed:
        say(f"changed after it was registered: {location} {advice}")


def _estimate(pipeline: "Pipeline", stream: "Stream", request: Backfill | None) -> Estimate:
    table, database = pipeline.meta_table(stream), pipeline.database
    if request is None:
        return database.batches.estimate(table, stream.limits)
    return database.backfills.estimate(request, table)


def _estimate_report(stream: str, job: str, estimate: Estimate) -> dict[str, Any]:
    return {
        "stream": stream,
        "job": job,
        "dry_run": True,
        "batches": estimate.batches,
        "items": estimate.items,
        "weight_bytes": estimate.weight,
        "oversized": estimate.oversized,
        "seconds": estimate.seconds,
        "pace": estimate.pace and asdict(estimate.pace),
    }


def _print_estimate(job: str, estimate: Estimate) -> None:
    say(f"{job}: batches that would be planned: {estimate.batches}; nothing was stored.")
    heavy = f", batches heavier than max_weight: {estimate.oversized}" * bool(estimate.oversized)
    say(f"  items: {estimate.items}, {format_bytes(estimate.weight)}{heavy}")
    pace = estimate.pace
    if pace is None or estimate.seconds is None:
        say("  duration unknown: no attempt has succeeded yet")
        return
    seconds = format_duration(timedelta(seconds=estimate.seconds))
    usual = format_duration(timedelta(seconds=pace.seconds_per_batch))
    rate = pace.weight_per_second
    speed = "" if rate is None else f"{format_bytes(round(rate))}/s, "
    say(f"  about {seconds} for one worker, from the last successful attempts of")
    say(f"  {pace.job} ({pace.attempts}): {speed}{usual} per batch (medians)")
