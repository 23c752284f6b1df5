"""The command `metrics`: what Prometheus scrapes."""

import threading
from contextlib import suppress

import click

from batch_pipeline.cli.console import complain, say
from batch_pipeline.cli.options import opened
from batch_pipeline.model.errors import requires_extra


@click.command()
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=9464,
    show_default=True,
    help="Port to listen on; 0 selects a free one.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on.",
)
def metrics(port: int, host: str) -> None:
    """Serve backlog, batches, attempts, records, bytes and lag of all streams at /metrics.

    Reads the inventory at each scrape and changes nothing. There is no login: with an address other
    than 127.0.0.1, everyone who can reach it can read stream names and numbers. Restart the command
    to include new streams.

    \b
    Example:
      batch-pipeline metrics --port 9464
    """
    with requires_extra("metrics", "`batch-pipeline metrics`"):
        from batch_pipeline.metrics.server import InventoryCollector, serving

    with opened() as pipeline:
        collector = InventoryCollector(pipeline=pipeline, report_error=complain)
        collector.begin()
        with serving(collector, host=host, port=port) as given:
            shown = f"[{host}]" if ":" in host else host
            say(f"Metrics are at http://{shown}:{given}/metrics. Ctrl-C stops.")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
