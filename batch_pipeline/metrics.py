"""Metric families for Prometheus, read with a bounded set of queries at each scrape."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Lock

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from batch_pipeline.app import Pipeline
from batch_pipeline.inventory.status import AttemptCursor
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.errors import OF_ONE_META_TABLE, InvalidValueError, PipelineError
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.status import (
    LAG_BOUNDS,
    UNFINISHED,
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
    """Return the metric that states whether the inventory could be read."""
    text = "1 if the inventory could be read, else 0; then no other metric is served."
    return GaugeMetricFamily(f"{_PREFIX}up", text, value=int(is_up))


def families(scrape: Scrape) -> Iterator[Metric]:
    """Yield all metric families of a scrape."""
    yield from _backlog(scrape)
    yield _batches(scrape)
    own = {(stream, JobKind.INCREMENTAL): 0 for stream in scrape.streams}
    published = {**own, **scrape.published}.items()
    yield _counter("generations_published", "Total generations published.", _OF_JOB, published)
    yield from _totals(scrape.totals)


def _backlog(scrape: Scrape) -> Iterator[Metric]:
    scope = "own and late ones; unfinished batches and items in no batch."
    items = _gauge("backlog_items", f"Items that are not published, {scope}", _OF_STREAM)
    weight = _gauge("backlog_bytes", f"Weight of items that are not published, {scope}", _OF_STREAM)
    oldest = _gauge("backlog_oldest_seconds", "Age of the oldest waiting item.", _OF_STREAM)
    table_up = _gauge("meta_table_up", "1 if the meta table could be read, else 0.", _OF_STREAM)
    for stream in scrape.streams:
        rest = scrape.not_planned[stream]
        table_up.add_metric([stream], int(rest is not None))
        if rest is None:  # a partial backlog would look like a small one
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
    text = f"Records of published attempts {since}, by result."
    yield _counter("records", text, by_result, totals.records.items())
    text = f"Bytes of part files of published attempts {since}."
    yield _counter("part_file_bytes", text, _OF_JOB, totals.size_bytes.items())
    lag = HistogramMetricFamily(
        f"{_PREFIX}landing_to_publish_seconds",
        "From when its first item was registered (planned, of a user's table) to when a batch was "
        "first published.",
        labels=_OF_STREAM,
    )
    bounds = [*(f"{bound:.1f}" for bound in LAG_BOUNDS), "+Inf"]
    for stream, lags in totals.lags.items():
        buckets = list(zip(bounds, map(float, accumulate(lags.counts)), strict=True))
        lag.add_metric([stream], buckets, lags.total_seconds)
    yield lag


def _counter(
    name: str, text: str, labels: list[str], numbers: Iterable[tuple[Sequence[str], int]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=labels)
    for values, number in numbers:
        family.add_metric(values, number)
    return family


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=labels)


@dataclass(eq=False, kw_only=True)
class InventoryCollector(Collector):
    """A collector that reads the inventory, and counts the attempts that ended between scrapes.

    Errors are passed to `report_error`, not to Prometheus, so that a scrape reveals no address,
    role or error message.
    """

    pipeline: Pipeline
    report_error: Callable[[str], None]
    _totals: Totals = field(default_factory=Totals)
    _cursor: AttemptCursor | None = None
    _lock: Lock = field(default_factory=Lock)

    def begin(self) -> None:
        """Start counting; later calls have no effect.

        Raises:
            PipelineError: the inventory cannot be read.
        """
        with self._lock:
            self._start()

    def describe(self) -> Iterable[Metric]:
        """Describe nothing, because that would need a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, or only `up` if the inventory cannot be read."""
        try:
            metrics = list(families(self.scrape()))
        except PipelineError as error:
            self.report_error(str(error))
            yield up(is_up=False)
            return
        yield up(is_up=True)
        yield from metrics

    def scrape(self) -> Scrape:
        """Read the values of all metrics; one thread at a time.

        Raises:
            PipelineError: the inventory cannot be read.
        """
        with self._lock:
            cursor = self._start()
            streams, counts = tuple(self.pipeline.streams), self.pipeline.database.work_counts
            self._totals.add(counts.ended(cursor, streams))
            return Scrape(
                streams=streams,
                unfinished=tuple(counts.unfinished(streams)),
                published=counts.published(streams),
                not_planned={name: self._not_planned(name) for name in streams},
                totals=deepcopy(self._totals),  # another thread may add to them meanwhile
            )

    def _start(self) -> AttemptCursor:
        if self._cursor is None:
            self._cursor = self.pipeline.database.work_counts.start_cursor()
            self._totals.begin(self.pipeline.streams)
        return self._cursor

    def _not_planned(self, name: str) -> NotPlanned | None:
        try:
            table = self.pipeline.meta_table(self.pipeline.stream(name))
            return self.pipeline.database.work_counts.not_planned(table)
        except OF_ONE_META_TABLE:  # the metrics of other streams are still served
            return None


@contextmanager
def serving(collector: InventoryCollector, *, host: str, port: int) -> Iterator[int]:
    """Serve metrics until the block ends; yield the port. Port 0 selects a free port.

    Raises:
        InvalidValueError: the address cannot be used.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, UnicodeError) as error:  # the second for a host name with an empty part
        reason = getattr(error, "strerror", None) or error
        expected = f"an address of this machine that is free ({reason})"
        raise InvalidValueError("--host and --port", f"{host}:{port}", expected) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
