"""The command `status`: the state of streams, and next steps for problems."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from batch_pipeline.cli.console import ago, fact, facts, head, lasting, note, print_json, say
from batch_pipeline.cli.options import all_streams, as_json, chosen, opened
from batch_pipeline.config.units import format_bytes, format_duration
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.errors import OF_ONE_META_TABLE, resume_step
from batch_pipeline.model.stream import Automation

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline
    from batch_pipeline.inventory.meta_tables.watermarks import WatermarkReading
    from batch_pipeline.model.stream import Stream

_MAINTENANCE = (
    *("batch_pipeline_reconcile_hourly", "batch_pipeline_collect_garbage_daily"),
    *("batch_pipeline_check_streams_hourly", "batch_pipeline_run_ends"),
)
_SHOWN = 5
_WRONG = ("dead", "failed", "cancelled")  # states that wait for a person
_WORTH_A_LINE = (*_WRONG, "interrupted", "running")
_SETTLED = {BatchState.PUBLISHED, BatchState.SUPERSEDED}


@click.command()
@all_streams
@as_json
def status(stream: tuple[str, ...], as_json: bool) -> None:
    """Show waiting, finished and failed work.

    Shows all streams, or the given ones. Problems come first, each with what to do. Changes
    nothing. Problems do not change the exit code: use `verify` in scripts.

    \b
    Example:
      batch-pipeline status orders
    """
    from batch_pipeline.spark.warm_server import find

    with opened() as pipeline:
        streams = chosen(pipeline, stream)
        reports = [_report(pipeline, one) for one in streams]
        stopped = _stopped_automation(pipeline, streams)
        server = find(pipeline.settings.home)
    if as_json:
        more: dict[str, Any] = {"automation_stopped": stopped} if stopped else {}
        if server is not None:
            more["spark_server"] = {
                "pid": server.pid,
                "keep_minutes": server.keep_seconds / 60,
            }
        print_json({"streams": [report for report, _ in reports], **more})
        return
    if stopped:
        others = f" and {len(stopped) - _SHOWN} more" if len(stopped) > _SHOWN else ""
        names = f"{', '.join(stopped[:_SHOWN])}{others}"
        note(f"Automation is stopped: {names}. Start it on the page Automation of Dagster's UI.")
    now = datetime.now(UTC)
    for number, (report, reading) in enumerate(reports):
        if number:
            say()
        _print(report, reading, now)
    if server is not None:
        say()
        say(
            f"A warm Spark server runs (process {server.pid}). It ends after "
            f"{server.keep_seconds / 60:.0f} idle minutes, or with `batch-pipeline dev --stop`."
        )


def _stopped_automation(pipeline: "Pipeline", streams: "list[Stream]") -> list[str]:
    """Return the sensors and schedules of streams, and of maintenance, that Dagster does not run.

    A status that Dagster stores takes precedence over the stream file. Without a stored status, a
    sensor or schedule is returned only if the file says `stopped`.
    """
    stored = pipeline.database.stream_statuses.automation()
    if stored is None:
        return []
    every = pipeline.usable_streams.values()
    declared = dict.fromkeys(_MAINTENANCE, all(map(_is_declared_stopped, every)))
    for stream in streams:
        declared |= dict.fromkeys(_sensor_names(stream), _is_declared_stopped(stream))
    return [name for name, stopped in declared.items() if _is_stopped(stored.get(name), stopped)]


def _is_declared_stopped(stream: "Stream") -> bool:
    return stream.dagster.automation is Automation.STOPPED


def _is_stopped(statuses: Collection[str] | None, declared: bool) -> bool:
    """Return whether no code location runs an instigator; without RUNNING, `declared` counts."""
    return "RUNNING" not in (statuses or ()) and (declared or statuses == {"STOPPED"})


def _sensor_names(stream: "Stream") -> Iterator[str]:
    name = stream.identifier
    yield f"{name}_new_files" if stream.dagster.schedule is None else f"{name}_planned"
    if stream.dagster.schedule is not None:
        yield f"{name}_new_files_at"
    if stream.dagster.backfills:
        yield f"{name}_backfill"
    if stream.targets:
        yield f"{name}_load"


def _report(
    pipeline: "Pipeline", stream: "Stream"
) -> "tuple[dict[str, Any], WatermarkReading | None]":
    database, targets = pipeline.database, [target.name for target in stream.targets]
    status = reading = problem = None
    try:
        table = pipeline.meta_table(stream)
        status = database.stream_statuses.status(stream.name, table)
        reading = table.read_high_watermark()
    except OF_ONE_META_TABLE as error:  # the rest is in the inventory
        status, problem = None, str(error)
    batches = database.batches
    statuses = [*batches.statuses(stream.name), *batches.late_statuses(stream.name)]
    states = Counter(one.state for one in statuses)
    paused = database.backfills.paused(stream.name)
    waiting = status and status.waiting
    oldest = status.oldest if status is not None and status.waiting.items else None
    report = {
        "stream": stream.name,
        "source": stream.source.place,
        "meta_table": stream.user_table and stream.user_table.table,
        "problem": problem,
        "ceiling": reading and reading.value,
        "ceiling_strategy": reading and reading.strategy.value,
        "ceiling_held_by": [asdict(one) for one in reading.held_by] if reading else [],
        "paused": database.jobs.paused(stream.name),
        "items_waiting": status and status.items_not_planned,
        "bytes_waiting": status and status.bytes_not_planned,
        "items_unpublished": waiting and waiting.items,
        "bytes_unpublished": waiting and waiting.size_bytes,
        "oldest_seconds": None if oldest is None else round(oldest.total_seconds(), 1),
        "last_published_at": database.change_feed.last_published_at(stream.name),
        "warnings": [one.sentence for one in database.stream_statuses.many_partitions(stream.name)],
        "batches": {state.value: states.get(state, 0) for state in BatchState},
        "unfinished": [
            {
                "batch_id": one.key,
                "state": one.state.value,
                "attempts": one.attempts,
                "finished_at": one.finished_at,
                "error": one.error,
            }
            for one in statuses
            if one.state not in _SETTLED
        ],
        "backfills": [
            {
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
            for one in database.backfills.of_stream(stream.name)
        ],
        "targets": [asdict(one) for one in database.loads.target_statuses(stream.name, targets)],
    }
    return report, reading


def _in_short(report: dict[str, Any], now: datetime) -> str:
    """Summarize the state of a stream, problems first."""
    batches, published_at = report["batches"], report["last_published_at"]
    last = "" if published_at is None else ago(published_at, now)
    parts = ["its meta table cannot be read"] if report["problem"] else []
    parts += ["paused"] if report["paused"] is not None else []
    parts += [f"batches {one}: {batches[one]}" for one in (*_WRONG, "running") if batches[one]]
    parts += [
        f"{one['failed']} not loaded into {one['target']}"
        for one in report["targets"]
        if one["failed"]
    ]
    if count := report["items_unpublished"]:
        age = report["oldest_seconds"]
        oldest = "" if age is None else f", the oldest for {lasting(timedelta(seconds=age))}"
        parts.append(f"items waiting: {count:,}{oldest}")
    if parts:
        return "; ".join([*parts, f"last published {last}"] if last else parts)
    return f"everything is published, last {last}" if last else "nothing is registered yet"


def _next_steps(report: dict[str, Any]) -> Iterator[str]:
    """Yield next steps for the problems of a stream."""
    name, batches = report["stream"], report["batches"]
    if report["paused"] is not None and (step := resume_step(name, report["paused"])):
        yield step.removesuffix(".")
    if batches["failed"]:
        yield f"`batch-pipeline run {name}` retries failed batches"
    if batches["dead"] or batches["cancelled"]:
        yield f"`batch-pipeline jobs retry {name}` retries dead and cancelled batches"
    if any(one["failed"] for one in report["targets"]):
        yield f"`batch-pipeline load {name}` retries failed loads"
    if not any(batches.values()):
        yield f"`batch-pipeline run {name}` registers, plans and encodes new files"


def _print(report: dict[str, Any], reading: "WatermarkReading | None", now: datetime) -> None:
    is_wrong = (
        report["problem"]
        or any(report["batches"][state] for state in _WRONG)
        or any(one["failed"] for one in report["targets"])
    )
    head(report["stream"])
    fact("now", _in_short(report, now), style="red" if is_wrong else None)
    if report["problem"]:
        fact("problem", report["problem"])
    if report["paused"] is not None:
        fact("paused", report["paused"] or "no reason given")
    _print_unfinished(report["unfinished"], now)
    facts("next", _next_steps(report))
    for warning in report["warnings"]:
        fact("warning", warning)
    fact("batches", _counts(report["batches"]))
    if report["items_waiting"]:
        size = format_bytes(report["bytes_waiting"])
        fact("waiting", f"items not planned yet: {report['items_waiting']}, {size}")
    for backfill in report["backfills"]:
        _print_backfill(backfill)
    for target in report["targets"]:
        _print_target(target, now)
    kind = "folder" if report["meta_table"] is None else "meta table"
    fact("source", f"{kind} {report['source']}")
    if reading is not None:
        from batch_pipeline.inventory.meta_tables.watermarks import describe_reading

        ceiling = describe_reading(reading).removeprefix("high watermark ")
        if reading.value is None:
            ceiling = f"none yet{ceiling.removeprefix('no high watermark yet')}"
        fact("watermark", ceiling)


def _print_unfinished(batches: list[dict[str, Any]], now: datetime) -> None:
    """Print batches that run or wait for a person, failed batches first."""
    some = [one for one in batches if one["state"] in _WORTH_A_LINE]
    some.sort(key=lambda one: _WORTH_A_LINE.index(one["state"]))
    for one in some[:_SHOWN]:
        ended = "" if one["finished_at"] is None else f", {ago(one['finished_at'], now)}"
        fact(one["state"], f"{one['batch_id']}, attempts: {one['attempts']}{ended}")
        if one["error"]:
            fact("", one["error"])
    if len(some) > _SHOWN:
        fact("", f"… and {len(some) - _SHOWN} more (--json lists all)")


def _counts(batches: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in batches.items() if count) or "none"


def _print_backfill(backfill: dict[str, Any]) -> None:
    end = " (finished)" if backfill["finished"] else ""
    fact("backfill", f"{backfill['job']}: {_counts(backfill['batches'])}{end}")
    if backfill["paused"] is not None:
        fact("", f"paused: {backfill['paused'] or 'no reason given'}")
    weight, done = format_bytes(backfill["weight_bytes"]), backfill["weight_bytes_done"]
    items = f"items done: {backfill['items_done']} of {backfill['items']}"
    left = backfill["seconds_left"]
    rest = f", {format_duration(timedelta(seconds=left))} left at the current rate" if left else ""
    fact("", f"{items}, {format_bytes(done)} of {weight}{rest}")


def _print_target(one: dict[str, Any], now: datetime) -> None:
    """Print the progress of a target."""
    last = "" if one["loaded_at"] is None else f", last {ago(one['loaded_at'], now)}"
    failed = f", {one['failed']} of them failed" if one["failed"] else ""
    fact("target", f"{one['target']}: {one['loaded']} loaded{last}, {one['due']} pending{failed}")
    if one["gone"]:
        lacks = f"{one['gone']} were never loaded, and their files have been deleted:"
        fact("", f"{lacks} materialize their partitions again to load them")
    if one["running"] is not None:
        fact("", f"run {one['running']} is loading")
    if one["error"]:
        fact("", one["error"])
