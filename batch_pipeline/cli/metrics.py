"""The command `metrics`: what Prometheus scrapes."""

import threading
from contextlib import suppress

import click

from batch_pipeline.cli.console import complain, say
from batch_pipeline.cli.options import opened
from batch_pipeline.model.extras import requires_extra


@click.command()
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=9464,
    show_default=True,
    help="The port to listen at; 0 is any free one.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen at.",
)
def metrics(port: int, host: str) -> None:
    """Serve backlog, batches, attempts, records, bytes and lag of all streams at /metrics.

    The inventory is read when somebody scrapes; nothing is changed. There is no login: at another
    address than 127.0.0.1, everybody who reaches it can read names of streams and numbers. New
    streams are included after a restart of the command.

    \b
    Example:
      batch-pipeline metrics --port 9464
    """
    with requires_extra("metrics", "`batch-pipeline metrics`"):
        from batch_pipeline.metrics.reading import Reading
        from batch_pipeline.metrics.server import serving

    with opened() as pipeline:
        reading = Reading(pipeline)
        reading.begin()
        with serving(reading, host=host, port=port, complain=complain) as given:
            shown = f"[{host}]" if ":" in host else host
            say(f"Metrics are at http://{shown}:{given}/metrics. Ctrl-C stops.")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
