"""Everything up on this machine, until Ctrl-C."""

import signal
import sys
import threading
from contextlib import ExitStack, closing
from types import FrameType

import click

from batch_pipeline.cli.console import err, head, say
from batch_pipeline.settings.pipeline import Pipeline


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True)
def dev(port: int) -> None:
    """Bring up database, Spark, Dagster's webserver and daemon on 127.0.0.1.

    New files are picked up, planned and encoded as they land. Ctrl-C takes everything down.
    """
    from batch_pipeline.defs.dev import DagsterServers, check_port
    from batch_pipeline.spark.connect_server import SparkConnectServer

    stop = _stop_on_signals()
    with ExitStack() as stack:
        pipeline = stack.enter_context(closing(Pipeline.from_environment()))
        stack.enter_context(pipeline.home.lock("batch-pipeline dev"))
        check_port(port)
        streams = pipeline.streams
        with err.status("starting the database"):
            place = pipeline.database.location
        say(f"database   {place}")
        with err.status("starting Spark"):
            if pipeline.settings.spark_remote is None:
                server = SparkConnectServer(pipeline.home.path)
                server.start()
                stack.callback(server.stop)
                remote = server.remote
            else:
                remote = pipeline.settings.spark_remote.get_secret_value()
        say("spark      warm, Spark Connect on 127.0.0.1")
        servers = DagsterServers(pipeline.home, port=port, spark_remote=remote)
        with err.status("starting Dagster"):
            stack.enter_context(servers)
        say(f"streams    {', '.join(streams)} (from {pipeline.settings.streams})")
        head(f"Dagster is at http://127.0.0.1:{port}. Ctrl-C stops everything.")
        ended = servers.wait(stop)
    if ended:
        err.print(f"error: {ended}", style="red", markup=False)
        sys.exit(1)
    say("Everything is stopped.")


def _stop_on_signals() -> threading.Event:
    """Make Ctrl-C and termination set an event, so that everything is taken down in order."""
    stop = threading.Event()

    def request(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, request)
    return stop
