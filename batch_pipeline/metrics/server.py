"""Serves metrics over HTTP on one address, by the client library of Prometheus."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from batch_pipeline.metrics.families import families, up
from batch_pipeline.metrics.reading import Reading
from batch_pipeline.model.errors import InvalidValueError, PipelineError


@dataclass(frozen=True, eq=False)
class InventoryCollector(Collector):
    """Reads the inventory at each scrape; errors go to `complain`, not to Prometheus.

    So no address, name of a role or text of an error leaves by a scrape.
    """

    reading: Reading
    complain: Callable[[str], None]

    def describe(self) -> Iterable[Metric]:
        """Describe nothing, which would need a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read what a scrape tells."""
        try:
            found = list(families(self.reading.scrape()))
        except PipelineError as error:
            self.complain(str(error))
            yield up(is_up=False)
            return
        yield up(is_up=True)
        yield from found


@contextmanager
def serving(
    reading: Reading, *, host: str, port: int, complain: Callable[[str], None]
) -> Iterator[int]:
    """Serve until the block ends; gives the port, which with 0 is any free one.

    Raises:
        InvalidValueError: the address cannot be had.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(InventoryCollector(reading, complain))
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
