"""Metric families: names, labels and help texts."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from batch_pipeline.metrics.reading import Scrape
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.status import LAG_BOUNDS, UNFINISHED, Lags, Totals

_PREFIX = "batch_pipeline_"
_OF_STREAM, _OF_JOB = ["stream"], ["stream", "kind"]


def up(*, is_up: bool) -> Metric:
    """Return the metric of whether the inventory could be read."""
    text = "1 if the inventory could be read, else 0, and nothing else is told."
    return GaugeMetricFamily(f"{_PREFIX}up", text, value=int(is_up))


def families(scrape: Scrape) -> Iterator[Metric]:
    """Yield all metric families of a scrape."""
    yield from _backlog(scrape)
    yield _batches(scrape)
    published = CounterMetricFamily(
        f"{_PREFIX}generations_published", "Generations published ever.", labels=_OF_JOB
    )
    own = {(stream, JobKind.INCREMENTAL): 0 for stream in scrape.streams}
    for (stream, kind), number in {**own, **scrape.published}.items():
        published.add_metric([stream, kind.value], number)
    yield published
    yield from _totals(scrape.totals)


def _backlog(scrape: Scrape) -> Iterator[Metric]:
    told = "own and late ones; unfinished batches and items in no batch."
    items = _gauge("backlog_items", f"Items that are not published, {told}", _OF_STREAM)
    weight = _gauge("backlog_bytes", f"Weight of items that are not published, {told}", _OF_STREAM)
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
    for (stream, kind, state), number in numbers.items():
        family.add_metric([stream, kind.value, state.value], number)
    return family


def _totals(totals: Totals) -> Iterator[Metric]:
    attempts = CounterMetricFamily(
        f"{_PREFIX}attempts",
        "Attempts that ended since this process started.",
        labels=[*_OF_JOB, "result"],
    )
    for (stream, kind, status), number in totals.attempts.items():
        attempts.add_metric([stream, kind.value, status.value], number)
    records = CounterMetricFamily(
        f"{_PREFIX}records",
        "Records of published attempts since this process started, by where they went.",
        labels=[*_OF_JOB, "result"],
    )
    for (stream, kind, where), number in totals.records.items():
        records.add_metric([stream, kind.value, where], number)
    size_bytes = CounterMetricFamily(
        f"{_PREFIX}part_file_bytes",
        "Bytes of part files of published attempts since this process started.",
        labels=_OF_JOB,
    )
    for (stream, kind), number in totals.size_bytes.items():
        size_bytes.add_metric([stream, kind.value], number)
    lag = HistogramMetricFamily(
        f"{_PREFIX}landing_to_publish_seconds",
        "From when its first item was registered (planned, of a user's table) to when a batch was "
        "first published.",
        labels=_OF_STREAM,
    )
    for stream, lags in totals.lags.items():
        lag.add_metric([stream], _buckets(lags), lags.total_seconds)
    yield from (attempts, records, size_bytes, lag)


def _buckets(lags: Lags) -> list[tuple[str, float]]:
    bounds = [*(f"{bound:.1f}" for bound in LAG_BOUNDS), "+Inf"]
    return list(zip(bounds, map(float, accumulate(lags.counts)), strict=True))


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=labels)
