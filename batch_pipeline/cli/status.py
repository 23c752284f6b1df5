"""The command `status`: where streams stand, and what to do where something is wrong."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from batch_pipeline.cli.console import ago, fact, head, lasting, print_json, say
from batch_pipeline.cli.options import all_streams, as_json, chosen, opened
from batch_pipeline.config.units import format_bytes, format_duration
from batch_pipeline.model.batch import BatchState, BatchStatus
from batch_pipeline.model.errors import OF_ONE_META_TABLE

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline
    from batch_pipeline.inventory.meta_tables.watermarks import WatermarkReading
    from batch_pipeline.model.backfill import Progress
    from batch_pipeline.model.status import StreamStatus
    from batch_pipeline.model.stream import Stream

_SHOWN = 5
_WRONG = ("dead", "failed", "cancelled")  # states that wait for a person
_WORTH_A_LINE = (*_WRONG, "interrupted", "running")
_SETTLED = {BatchState.PUBLISHED, BatchState.SUPERSEDED}


@click.command()
@all_streams
@as_json
def status(stream: tuple[str, ...], as_json: bool) -> None:
    """Show what waits, what is done and what failed.

    Takes all streams, or the ones named. What is wrong comes first, with what to do about it.
    Nothing is changed. Finding something wrong is no error: `verify` is what to ask in a script.

    \b
    Example:
      batch-pipeline status orders
    """
    with opened() as pipeline:
        reports = [_report(pipeline, one) for one in chosen(pipeline, stream)]
    if as_json:
        print_json({"streams": reports})
        return
    now = datetime.now(UTC)
    for number, report in enumerate(reports):
        if number:
            say()
        _print(_StreamReport(report, now))


def _report(pipeline: "Pipeline", stream: "Stream") -> dict[str, Any]:
    from batch_pipeline.cli.load_status import load_statuses_of

    database = pipeline.database
    standing, reading, problem = _standing(pipeline, stream)
    statuses = database.batches.statuses(stream.name)
    states = Counter(one.state for one in statuses)
    ends = [one.finished_at for one in statuses if one.state is BatchState.PUBLISHED]
    paused = database.backfills.paused(stream.name)
    return {
        "stream": stream.name,
        "source": stream.source.place,
        "meta_table": None if stream.user_table is None else stream.user_table.table,
        "problem": problem,
        **_ceiling(reading),
        "paused": database.jobs.paused(stream.name),
        **_waiting(standing),
        "last_published_at": max((at for at in ends if at is not None), default=None),
        "warnings": [one.sentence for one in database.stream_statuses.many_partitions(stream.name)],
        "batches": {state.value: states.get(state, 0) for state in BatchState},
        "unfinished": [_unfinished(one) for one in statuses if one.state not in _SETTLED],
        "backfills": [_backfill(one, paused) for one in database.backfills.of_stream(stream.name)],
        "targets": load_statuses_of(pipeline, stream),
    }


def _standing(
    pipeline: "Pipeline", stream: "Stream"
) -> "tuple[StreamStatus | None, WatermarkReading | None, str | None]":
    """Return the status of a stream and its ceiling, or why its meta table cannot be read."""
    try:
        table = pipeline.meta_table(stream)
        standing = pipeline.database.stream_statuses.status(stream.name, table)
        return standing, table.read_high_watermark(), None
    except OF_ONE_META_TABLE as error:  # the inventory still tells the rest
        return None, None, str(error)


def _ceiling(reading: "WatermarkReading | None") -> dict[str, Any]:
    if reading is None:
        return {"ceiling": None, "ceiling_strategy": None, "ceiling_held_by": []}
    return {
        "ceiling": reading.value,
        "ceiling_strategy": reading.strategy.value,
        "ceiling_held_by": [asdict(one) for one in reading.held_by],
    }


def _waiting(standing: "StreamStatus | None") -> dict[str, Any]:
    """Describe what is not planned, what is not published, and for how long it has waited."""
    names = ("items_waiting", "bytes_waiting", "items_unpublished", "bytes_unpublished")
    if standing is None:
        return dict.fromkeys((*names, "oldest_seconds"))
    waiting, oldest = standing.waiting, standing.oldest if standing.waiting.items else None
    amounts = (
        *(standing.items_not_planned, standing.bytes_not_planned),
        *(waiting.items, waiting.size_bytes),
    )
    seconds = None if oldest is None else round(oldest.total_seconds(), 1)
    return {**dict(zip(names, amounts, strict=True)), "oldest_seconds": seconds}


def _backfill(one: "Progress", paused: dict[str, str]) -> dict[str, Any]:
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
        "finished_at": one.finished_at,
        "error": one.error,
    }


@dataclass(frozen=True, slots=True)
class _StreamReport:
    """A report in words, with ages as they are at a moment."""

    report: dict[str, Any]
    now: datetime

    @property
    def is_wrong(self) -> bool:
        """Whether something waits for a person."""
        batches = self.report["batches"]
        return bool(
            self.report["problem"]
            or any(batches[state] for state in _WRONG)
            or any(one["failed"] for one in self.report["targets"])
        )

    def in_short(self) -> str:
        """Summarize the state of a stream, problems first."""
        batches, report, last = self.report["batches"], self.report, ""
        if report["last_published_at"] is not None:
            last = ago(report["last_published_at"], self.now)
        said = ["its meta table cannot be read"] if report["problem"] else []
        said += ["paused"] if report["paused"] is not None else []
        said += [f"batches {one}: {batches[one]}" for one in (*_WRONG, "running") if batches[one]]
        said += [
            f"{one['failed']} not loaded into {one['target']}"
            for one in report["targets"]
            if one["failed"]
        ]
        said += self._waiting()
        if said:
            return "; ".join([*said, f"last published {last}"] if last else said)
        return f"all is published, the last {last}" if last else "nothing is registered yet"

    def _waiting(self) -> list[str]:
        count, age = self.report["items_unpublished"], self.report["oldest_seconds"]
        if not count:
            return []
        oldest = "" if age is None else f", the oldest for {lasting(timedelta(seconds=age))}"
        return [f"items waiting: {count:,}{oldest}"]

    def next_steps(self) -> Iterator[str]:
        """Yield what can be done about the problems of a stream."""
        name, batches = self.report["stream"], self.report["batches"]
        if self.report["paused"] is not None:
            yield f"`batch-pipeline jobs resume {name}` lets it go on"
        if batches["failed"]:
            yield f"`batch-pipeline run {name}` tries failed batches once more"
        if batches["dead"] or batches["cancelled"]:
            yield f"`batch-pipeline jobs retry {name}` retries dead and cancelled batches"
        if any(one["failed"] for one in self.report["targets"]):
            yield f"`batch-pipeline load {name}` tries failed loads once more"
        if not any(batches.values()):
            yield f"`batch-pipeline run {name}` registers, plans and encodes what has landed"

    def unfinished(self) -> list[dict[str, Any]]:
        """Return the batches to list, failed ones first."""
        some = [one for one in self.report["unfinished"] if one["state"] in _WORTH_A_LINE]
        return sorted(some, key=lambda one: _WORTH_A_LINE.index(one["state"]))

    def tries(self, one: dict[str, Any]) -> str:
        """Name a batch, and say how often it was tried and when last."""
        ended = "" if one["finished_at"] is None else f", {ago(one['finished_at'], self.now)}"
        return f"{one['batch_id']}, attempts: {one['attempts']}{ended}"


def _print(told: _StreamReport) -> None:
    from batch_pipeline.cli.load_status import print_load_status

    report = told.report
    head(report["stream"])
    fact("now", told.in_short(), style="red" if told.is_wrong else None)
    if report["problem"]:
        fact("problem", report["problem"])
    if report["paused"] is not None:
        fact("paused", report["paused"] or "no reason given")
    _print_unfinished(told)
    for number, step in enumerate(told.next_steps()):
        fact("" if number else "next", step)
    for warning in report["warnings"]:
        fact("warning", warning)
    fact("batches", _counts(report["batches"]))
    if report["items_waiting"]:
        size = format_bytes(report["bytes_waiting"])
        fact("waiting", f"items not planned yet: {report['items_waiting']}, {size}")
    for backfill in report["backfills"]:
        _print_backfill(backfill)
    for target in report["targets"]:
        print_load_status(target, told.now)
    kind = "folder" if report["meta_table"] is None else "meta table"
    fact("source", f"{kind} {report['source']}")
    if report["ceiling_strategy"] is not None:
        fact("ceiling", _height(report))


def _print_unfinished(told: _StreamReport) -> None:
    some = told.unfinished()
    for one in some[:_SHOWN]:
        fact(one["state"], told.tries(one))
        if one["error"]:
            fact("", one["error"])
    if len(some) > _SHOWN:
        fact("", f"… and {len(some) - _SHOWN} more (--json lists all)")


def _height(report: dict[str, Any]) -> str:
    from batch_pipeline.inventory.meta_tables.watermarks import (
        LockHolder,
        WatermarkReading,
        describe_reading,
    )
    from batch_pipeline.model.stream import Strategy

    strategy = Strategy(report["ceiling_strategy"])
    held_by = tuple(LockHolder(**one) for one in report["ceiling_held_by"])
    ceiling = describe_reading(
        WatermarkReading(value=report["ceiling"], strategy=strategy, held_by=held_by)
    )
    rest = ceiling.removeprefix("no high watermark yet")
    return ceiling.removeprefix("high watermark ") if rest == ceiling else f"none yet{rest}"


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
    rest = f", {format_duration(timedelta(seconds=left))} left at the pace so far" if left else ""
    fact("", f"{items}, {format_bytes(done)} of {weight}{rest}")
