"""Read the metrics at each scrape, with a bounded set of queries, and serve them over HTTP."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from batch_pipeline.app import Pipeline
from batch_pipeline.inventory.status import AttemptCursor
from batch_pipeline.metrics.families import Scrape, families, up
from batch_pipeline.model.errors import OF_ONE_META_TABLE, InvalidValueError, PipelineError
from batch_pipeline.model.status import NotPlanned, Totals


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
        """Count from now on; later calls change nothing.

        Raises:
            PipelineError: the inventory cannot be read.
        """
        with self._lock:
            self._start()

    def describe(self) -> Iterable[Metric]:
        """Describe nothing, because that would need a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, or only that the inventory cannot be read."""
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
                totals=self._totals,
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
        except OF_ONE_META_TABLE:  # the metrics of other streams are served all the same
            return None


@contextmanager
def serving(collector: InventoryCollector, *, host: str, port: int) -> Iterator[int]:
    """Serve metrics until the block ends; yield the port, which is any free one if 0 is given.

    Raises:
        InvalidValueError: the address cannot be used.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        expected = f"an address of this machine that is free ({error.strerror or error})"
        raise InvalidValueError("--host and --port", f"{host}:{port}", expected) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
