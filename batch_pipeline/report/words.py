"""Sentences and numbers of the report, as people read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import assert_never

from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.fitting import Learned
from batch_pipeline.domain.recent_work import Forecast, Outlook, PublishedAttempt
from batch_pipeline.domain.words import agreeing, count_of, last_of
from batch_pipeline.report.stream_report import StreamReport
from batch_pipeline.settings.units import format_bytes, format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A figure with its name, and what there is to know about it."""

    name: str
    figure: str
    notes: tuple[str, ...] = ()


def cards(report: StreamReport) -> list[Card]:
    """Give the figures of a stream that one looks for first."""
    last = report.work.published
    made = [_backlog(report), _forecast(report), _batches(report)]
    if report.learned is not None:
        made.append(_limit(report.learned))
    return [*made, _throughput(last), _sizes(last), _quarantine(report)] if last else made


def number(value: float) -> str:
    """Write a number: whole with thousands apart, or of a small one three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def size(value: float) -> str:
    """Write bytes."""
    return format_bytes(round(value))


def share(ratio: float) -> str:
    """Write a share in percent; one that is not zero is not written as zero."""
    if 0 < ratio < 0.0001:
        return "under 0.01 %"
    return "0 %" if ratio == 0 else f"{ratio * 100:.3g} %"


def seconds(value: float) -> str:
    """Write seconds as a duration."""
    return format_duration(timedelta(seconds=value))


def when(time: datetime) -> str:
    """Write a time to the second, in UTC."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def limit_sentences(learned: Learned) -> list[str]:
    """Say which limit was learned and why it is that, and outright where it cannot be lower."""
    limit, wanted = format_bytes(learned.max_weight), learned.wanted_weight
    target = format_duration(timedelta(seconds=learned.target_seconds))
    if wanted is None or learned.weight_per_second is None:
        return [f"at most {limit}; how much takes {target} is not known yet"]
    speed = format_bytes(round(learned.weight_per_second))
    were = agreeing(learned.attempts, "was", "were")
    said = [
        f"at most {limit}; {target} are {format_bytes(wanted)}, at {speed}/s",
        f"by {last_of(learned.attempts, 'batch')} that {were} full or took longer",
    ]
    if learned.is_least:
        cause = f"batches take longer than {target} even so"
        step = "lower max_weight, or raise target_seconds"
        said.append(f"this is the least, a 64th of max_weight: {cause}; {step}")
    return said


def _backlog(report: StreamReport) -> Card:
    waiting, standing = report.waiting, report.standing
    if standing is None:
        batches = count_of(waiting.batches, "batch", grouped=True)
        figure = f"{batches}, {format_bytes(waiting.size_bytes)}"
        return Card(name="Backlog now", figure=figure, notes=("as far as it is planned",))
    items = count_of(waiting.items, "item", grouped=True)
    figure = f"{items}, {format_bytes(waiting.size_bytes)}"
    if not waiting.items:
        figure = "nothing waits"
    notes = []
    if standing.oldest is not None and waiting.items:
        notes.append(f"the oldest has waited for {format_duration(standing.oldest)}")
    if standing.items_not_planned:
        left = count_of(standing.items_not_planned, "item", grouped=True)
        are = agreeing(standing.items_not_planned, "is", "are")
        notes.append(f"{left}, {format_bytes(standing.bytes_not_planned)}, {are} in no batch yet")
    return Card(name="Backlog now", figure=figure, notes=tuple(notes))


def _forecast(report: StreamReport) -> Card:
    told = report.forecast
    notes = [*_rates(told)]
    if report.work.published:
        ago = report.work.at - report.work.published[-1].published_at
        notes.append(f"last published {format_duration(ago)} ago")
    dead = report.states.get(BatchState.DEAD, 0)
    if dead:
        wait = agreeing(dead, "waits", "wait")
        notes.append(f"without {dead:,} dead, which {wait} for a person")
    if report.paused is not None:
        notes.append(f"paused: {report.paused or 'no reason given'}")
    return Card(name="Forecast", figure=_outlook(told), notes=tuple(notes))


def _outlook(told: Forecast) -> str:
    match told.outlook:
        case Outlook.NOTHING_WAITS:
            return "nothing to do"
        case Outlook.UNKNOWN:
            return "not known yet"
        case Outlook.SHRINKS:
            return f"empty after {format_duration(told.empty_after or timedelta(0))} of work"
        case Outlook.GROWS:
            return f"grows by {size(told.arrivals - (told.capacity or 0.0))}/s"
        case _:
            assert_never(told.outlook)


def _rates(told: Forecast) -> list[str]:
    if told.capacity is None:
        return []
    done = f"done at {size(told.capacity)}/s while batches are worked on"
    return [done, f"planned at {size(told.arrivals)}/s meanwhile"]


def _batches(report: StreamReport) -> Card:
    states = report.states
    others = [
        f"{amount:,} {state.value}"
        for state, amount in states.items()
        if amount and state is not BatchState.PUBLISHED
    ]
    return Card(
        name="Batches",
        figure=f"{states.get(BatchState.PUBLISHED, 0):,} published",
        notes=tuple(others) or ("no others",),
    )


def _limit(learned: Learned) -> Card:
    notes = tuple(limit_sentences(learned))
    return Card(name="Learned limit", figure=format_bytes(learned.max_weight), notes=notes)


def _throughput(last: Sequence[PublishedAttempt]) -> Card:
    return Card(
        name="Throughput",
        figure=f"{number(median(one.records_per_second for one in last))} records/s",
        notes=(
            f"{size(median(one.bytes_per_second for one in last))}/s of part files",
            f"medians of {last_of(len(last), 'published batch')}",
        ),
    )


def _sizes(last: Sequence[PublishedAttempt]) -> Card:
    return Card(
        name="Batch size",
        figure=size(median(one.weight for one in last)),
        notes=(
            f"done in {seconds(median(one.seconds for one in last))}",
            f"medians of {last_of(len(last), 'published batch')}",
        ),
    )


def _quarantine(report: StreamReport) -> Card:
    last = report.work.published
    ratio = report.work.quarantined_ratio
    away, read = sum(one.quarantined for one in last), sum(one.read for one in last)
    return Card(
        name="Quarantine",
        figure="no records" if ratio is None else share(ratio),
        notes=(
            f"{away:,} of {count_of(read, 'record', grouped=True)} read",
            f"by {last_of(len(last), 'published batch')}",
        ),
    )
