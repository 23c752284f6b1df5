"""Planning: new items of a stream, a part of its past once more, and what either would cost."""

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from batch_pipeline.cli.console import print_json, say
from batch_pipeline.cli.streams import as_json, dry_run, one_stream, opened
from batch_pipeline.domain.backfill import Backfill, Estimate, Pace
from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.planning import Planned
from batch_pipeline.settings.units import format_bytes, format_duration

if TYPE_CHECKING:
    from batch_pipeline.domain.stream import Stream
    from batch_pipeline.settings.pipeline import Pipeline

_SHOWN = 20
_ONLY_WITH_BACKFILL = {
    "first_id": "--first-id",
    "last_id": "--last-id",
    "since": "--since",
    "until": "--until",
    "item": "--item",
    "failed_only": "--failed-only",
    "max_weight": "--max-weight",
    "max_count": "--max-count",
}
_UNSET: tuple[object, ...] = (None, False, ())
_ID = click.IntRange(min=1)


@click.command()
@one_stream
@click.option("--backfill", metavar="NAME", help="Plan a part of the past once more, as NAME.")
@click.option("--first-id", metavar="ID", type=_ID, help="Backfill: the lowest item id.")
@click.option("--last-id", metavar="ID", type=_ID, help="Backfill: the highest item id.")
@click.option("--since", metavar="TIME", help="Backfill: registered at this time or later.")
@click.option("--until", metavar="TIME", help="Backfill: registered before this time.")
@click.option(
    "--item", metavar="ID", type=_ID, multiple=True, help="Backfill: this item; may be repeated."
)
@click.option("--failed-only", is_flag=True, help="Backfill: items of failed and dead batches.")
@click.option("--max-weight", metavar="SIZE", help="Backfill: another limit of a batch: 64MiB.")
@click.option(
    "--max-count",
    metavar="COUNT",
    type=click.IntRange(min=1),
    help="Backfill: at most so many items.",
)
@dry_run
@as_json
def plan(stream: str, backfill: str | None, dry_run: bool, as_json: bool, **asked: Any) -> None:
    """Cut the registered items of STREAM into batches (station 3).

    With --backfill NAME, items of the past are planned once more, beside the batches they are in:
    all of them, or those that the other options name together. Planning the same again adds what
    has come since. Times are ISO 8601 with a zone; a date is its first moment in UTC. Batches are
    only planned here; `run` and the sensors encode them.

    \b
    Example:
      batch-pipeline plan orders --backfill march --since 2026-03-01 --dry-run
    """
    from batch_pipeline.settings.backfill_request import Asked, backfill_request

    alone = [option for name, option in _ONLY_WITH_BACKFILL.items() if asked[name] not in _UNSET]
    if backfill is None and alone:
        raise click.UsageError(f"{alone[0]} needs --backfill NAME.")
    with opened() as pipeline:
        one = pipeline.stream(stream)
        items = asked.pop("item")
        given = Asked(items=items, **asked)
        request = None if backfill is None else backfill_request(one, backfill, given)
        job = stream if request is None else request.name
        if dry_run:
            told = _estimate(pipeline, one, request)
        else:
            done, new = _plan(pipeline, one, request)
    if dry_run:
        _tell_estimate(stream, job, told, as_json=as_json)
    else:
        _tell_planned(stream, job, done, new, as_json=as_json)


def _estimate(pipeline: "Pipeline", stream: "Stream", request: Backfill | None) -> Estimate:
    table = pipeline.meta_table(stream)
    if request is None:
        return pipeline.database.batches.estimate(table, stream.limits)
    return pipeline.database.backfills.estimate(request, table)


def _plan(
    pipeline: "Pipeline", stream: "Stream", request: Backfill | None
) -> tuple[Planned, list[Batch]]:
    """Plan, and give what was done and the new batches in id order."""
    from batch_pipeline.settings.restored import check_not_older
    from batch_pipeline.steps.plan import plan as plan_step

    check_not_older(pipeline, stream)
    table, database = pipeline.meta_table(stream), pipeline.database
    if request is None:
        done = plan_step(database.batches, table, stream, drain=True)
        if done.ids is None:
            return done, []
        return done, [one.batch for one in database.batches.statuses(stream.name, done.ids)]
    done = database.backfills.plan(request, table)
    if done.ids is None:
        return done, []
    mine = [one.batch for one in database.backfills.statuses(request.name, table.name)]
    newest = sorted(one.id for one in mine)[-done.batches :]
    return done, [one for one in mine if one.id >= newest[0]]


def _tell_planned(stream: str, job: str, done: Planned, new: list[Batch], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {"batch_id": one.key, "items": one.count, "weight_bytes": one.weight} for one in new
        ]
        print_json({"stream": stream, "job": job, "batches": rows})
        return
    say(f"{job}: batches planned: {done.batches}.")
    for one in new[:_SHOWN]:
        flag = "  heavier than max_weight" if one.oversized else ""
        say(f"  {one.key}  files: {one.count:>6}  {format_bytes(one.weight):>10}{flag}")
    if len(new) > _SHOWN:
        say(f"  … and {len(new) - _SHOWN} more (--json lists all)")


def _tell_estimate(stream: str, job: str, told: Estimate, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "stream": stream,
                "job": job,
                "dry_run": True,
                "batches": told.batches,
                "items": told.items,
                "weight_bytes": told.weight,
                "oversized": told.oversized,
                "seconds": told.seconds,
                "pace": None if told.pace is None else asdict(told.pace),
            }
        )
        return
    say(f"{job}: batches that would be planned: {told.batches}; nothing was stored.")
    heavy = f", batches heavier than max_weight: {told.oversized}" if told.oversized else ""
    say(f"  items: {told.items}, {format_bytes(told.weight)}{heavy}")
    if told.pace is None or told.seconds is None:
        say("  how long they would take is not known: no attempt has succeeded yet")
        return
    seconds = format_duration(timedelta(seconds=told.seconds))
    usual = format_duration(timedelta(seconds=told.pace.seconds_per_batch))
    say(f"  about {seconds} for one worker, by the last attempts of {told.pace.job}")
    say(f"  that succeeded ({told.pace.attempts}): {_speed(told.pace)}{usual} a batch (medians)")


def _speed(pace: Pace) -> str:
    if pace.weight_per_second is None:
        return ""
    return f"{format_bytes(round(pace.weight_per_second))}/s, "
