"""Which charts and tables the report has of a stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batch_pipeline.domain.recent_work import BacklogPoint, PublishedAttempt
from batch_pipeline.domain.standing import Standing
from batch_pipeline.report import words
from batch_pipeline.report.chart import Axis, Chart, Measured, bars, rows, steps
from batch_pipeline.report.stream_report import StreamReport

_Row = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Figures as text; columns after the first `texts` ones hold numbers."""

    name: str
    columns: _Row
    rows: tuple[_Row, ...]
    texts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Charts with the table of what they show."""

    charts: tuple[Chart, ...]
    table: Table


_RECORDS = Axis(name="records written a second", text=words.number)
_BYTES = Axis(name="bytes of part files a second", text=words.size, binary=True)
_WEIGHT = Axis(name="weight of the batch (bytes)", text=words.size, binary=True)
_SECONDS = Axis(name="seconds from claim to publish", text=lambda value: f"{words.number(value)} s")
_SHARE = Axis(name="share of the records read", text=words.share)
_WAITING = Axis(name="planned and not published (bytes)", text=words.size, binary=True)
_WAITING_BATCHES = Axis(name="planned and not published (batches)", text=words.number, whole=True)

_LAST: tuple[tuple[str, Axis, Callable[[PublishedAttempt], float]], ...] = (
    ("Throughput in records", _RECORDS, lambda one: one.records_per_second),
    ("Throughput in bytes", _BYTES, lambda one: one.bytes_per_second),
    ("Weight of batches", _WEIGHT, lambda one: one.weight),
    ("Time for a batch", _SECONDS, lambda one: one.seconds),
    ("Quarantined records", _SHARE, lambda one: one.quarantined_ratio),
)


def figures(report: StreamReport) -> list[Figures]:
    """Give the charts of a stream; those without a value are left out."""
    found = [_states(report)]
    backlog = report.work.backlog()
    if backlog:
        found.append(_backlog(backlog))
    if report.work.published:
        found.append(_last_batches(report.work.published))
    return found


def failures(report: StreamReport) -> Table:
    """List the newest failures with their reasons."""
    return Table(
        name="Newest failures",
        columns=("batch", "attempt", "ended (UTC)", "how", "the batch is now", "reason"),
        rows=tuple(
            (
                one.label,
                str(one.number),
                words.when(one.ended_at),
                one.status.value,
                one.state.value,
                one.error or "none was given",
            )
            for one in report.work.failures
        ),
        texts=6,
    )


def _states(report: StreamReport) -> Figures:
    counts = [(state.value, report.states.get(state, 0)) for state in Standing.SHOWN]
    chart = rows("Batches by state", "batches", counts)
    shown = tuple((name, f"{number:,}") for name, number in counts)
    return Figures(
        charts=(chart,),
        table=Table(name="Batches by state", columns=("state", "batches"), rows=shown),
    )


def _backlog(points: Sequence[BacklogPoint]) -> Figures:
    weights = [Measured(at=one.at, value=one.weight) for one in points]
    batches = [Measured(at=one.at, value=one.batches) for one in points]
    shown = tuple(
        (words.when(one.at), f"{one.batches:,}", words.size(one.weight)) for one in reversed(points)
    )
    return Figures(
        charts=(
            steps("Backlog in bytes", _WAITING, weights),
            steps("Backlog in batches", _WAITING_BATCHES, batches),
        ),
        table=Table(name="Backlog", columns=("from (UTC)", "batches", "weight"), rows=shown),
    )


def _last_batches(last: Sequence[PublishedAttempt]) -> Figures:
    charts = tuple(
        bars(
            title,
            axis,
            [Measured(at=one.published_at, value=of(one), name=one.label) for one in last],
        )
        for title, axis, of in _LAST
    )
    columns = ("batch", "published (UTC)", "generation", "records read", "written", "quarantined")
    more = ("share", "weight", "part files", "time", "records/s", "bytes/s")
    table = Table(
        name="Published batches",
        columns=columns + more,
        rows=tuple(_row(one) for one in reversed(last)),
        texts=2,
    )
    return Figures(charts=charts, table=table)


def _row(one: PublishedAttempt) -> _Row:
    return (
        one.label,
        words.when(one.published_at),
        str(one.generation),
        f"{one.read:,}",
        f"{one.written:,}",
        f"{one.quarantined:,}",
        words.share(one.quarantined_ratio),
        words.size(one.weight),
        words.size(one.size_bytes),
        words.seconds(one.seconds),
        words.number(one.records_per_second),
        f"{words.size(one.bytes_per_second)}/s",
    )
