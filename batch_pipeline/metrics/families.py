"""Metric families: names, labels and help texts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.status import (
    LAG_BOUNDS,
    UNFINISHED,
    Lags,
    NotPlanned,
    Totals,
    UnfinishedBatches,
)

_PREFIX = "batch_pipeline_"
_OF_STREAM, _OF_JOB = ["stream"], ["stream", "kind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """The values of all metrics; None in `not_planned` if the meta table cannot be read."""

    streams: tuple[str, ...]
    unfinished: tuple[UnfinishedBatches, ...]
    published: Mapping[tuple[str, JobKind], int]
    not_planned: Mapping[str, NotPlanned | None]
    totals: Totals


def up(*, is_up: bool) -> Metric:
    """Return the metric of whether the inventory could be read."""
    text = "1 if the inventory could be read; else 0, and no other metric is served."
    return GaugeMetricFamily(f"{_PREFIX}up", text, value=int(is_up))


def families(scrape: Scrape) -> Iterator[Metric]:
    """Yield all metric families of a scrape."""
    yield from _backlog(scrape)
    yield _batches(scrape)
    own = {(stream, JobKind.INCREMENTAL): 0 for stream in scrape.streams}
    published = {**own, **scrape.published}.items()
    yield _counter("generations_published", "Generations published ever.", _OF_JOB, published)
    yield from _totals(scrape.totals)


def _backlog(scrape: Scrape) -> Iterator[Metric]:
    scope = "own and late ones; unfinished batches and items in no batch."
    items = _gauge("backlog_items", f"Items that are not published, {scope}", _OF_STREAM)
    weight = _gauge("backlog_bytes", f"Weight of items that are not published, {scope}", _OF_STREAM)
    oldest = _gauge(
        "backlog_oldest_seconds", "How long the oldest of the backlog has waited.", _OF_STREAM
    )
    table_up = _gauge("meta_table_up", "1 if the meta table could be read, else 0.", _OF_STREAM)
    for stream in scrape.streams:
        rest = scrape.not_planned[stream]
        table_up.add_metric([stream], int(rest is not None))
        if rest is None:  # half a backlog would look like a small one
            continue
        batches = [
            one
            for one in scrape.unfinished
            if one.stream == stream and one.kind is not JobKind.BACKFILL
        ]
        ages = [one.oldest_seconds for one in batches]
        ages += [] if rest.oldest_seconds is None else [rest.oldest_seconds]
        items.add_metric([stream], rest.items + sum(one.items for one in batches))
        weight.add_metric([stream], rest.weight + sum(one.weight for one in batches))
        oldest.add_metric([stream], max(ages, default=0.0))
    yield from (items, weight, oldest, table_up)


def _batches(scrape: Scrape) -> Metric:
    text = "Batches that are not done, by kind of job and state."
    family = _gauge("unfinished_batches", text, [*_OF_JOB, "state"])
    numbers = {
        (stream, JobKind.INCREMENTAL, state): 0
        for stream in scrape.streams
        for state in BatchState
        if state in UNFINISHED
    }
    numbers |= {(one.stream, one.kind, one.state): one.batches for one in scrape.unfinished}
    for labels, number in numbers.items():
        family.add_metric(labels, number)
    return family


def _totals(totals: Totals) -> Iterator[Metric]:
    by_result, since = [*_OF_JOB, "result"], "since this process started"
    yield _counter("attempts", f"Attempts that ended {since}.", by_result, totals.attempts.items())
    text = f"Records of published attempts {since}, by where they went."
    yield _counter("records", text, by_result, totals.records.items())
    text = f"Bytes of part files of published attempts {since}."
    yield _counter("part_file_bytes", text, _OF_JOB, totals.size_bytes.items())
    lag = HistogramMetricFamily(
        f"{_PREFIX}landing_to_publish_seconds",
        "From when its first item was registered (planned, of a user's table) to when a batch was "
        "first published.",
        labels=_OF_STREAM,
    )
    for stream, lags in totals.lags.items():
        lag.add_metric([stream], _buckets(lags), lags.total_seconds)
    yield lag


def _buckets(lags: Lags) -> list[tuple[str, float]]:
    bounds = [*(f"{bound:.1f}" for bound in LAG_BOUNDS), "+Inf"]
    return list(zip(bounds, map(float, accumulate(lags.counts)), strict=True))


def _counter(
    name: str, text: str, labels: list[str], numbers: Iterable[tuple[Sequence[str], int]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=labels)
    for values, number in numbers:
        family.add_metric(values, number)
    return family


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=labels)
