"""Everything up on this machine, until Ctrl-C."""

import signal
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from batch_pipeline.cli.console import complain, err, head, note, say
from batch_pipeline.cli.streams import opened

if TYPE_CHECKING:
    from batch_pipeline.defs.instance.keeping import Part
    from batch_pipeline.defs.instance.servers import DagsterServers
    from batch_pipeline.settings.pipeline import Pipeline
    from batch_pipeline.spark.sessions.connect_server import SparkConnectServer


@click.command()
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    default=3000,
    show_default=True,
    help="The port of Dagster's UI.",
)
def dev(port: int) -> None:
    """Bring up database, Spark, Dagster's webserver and daemon on 127.0.0.1.

    New files are picked up, planned and encoded as they land. What ends by itself is started again.
    Ctrl-C takes everything down; batches that were under way go on the next time.

    Exit codes: 75 when a part could not be kept up.

    \b
    Example:
      batch-pipeline dev --port 3001
    """
    from batch_pipeline.defs.instance.keeping import keep
    from batch_pipeline.defs.instance.servers import check_port

    stop = _stop_on_signals()
    with ExitStack() as stack:
        pipeline = stack.enter_context(opened())
        stack.enter_context(pipeline.home.lock("batch-pipeline dev"))
        check_port(port)
        streams = pipeline.usable_streams
        for error in pipeline.stream_file_errors:
            note(str(error))
        servers, parts = _bring_up(pipeline, stack, port)
        say(f"streams    {', '.join(streams)} (from {pipeline.settings.streams})")
        head(f"Dagster is at http://127.0.0.1:{port}. Ctrl-C stops everything.")
        logs = [servers.log, *(part.server.log for part in parts if isinstance(part, _Spark))]
        ended = keep([*parts, *servers.parts], stop, err.print, logs=logs)
        if ended is None:
            err.print("stopping …")
    if ended:
        complain(ended)
        sys.exit(75)
    say("Everything is stopped.")


def _bring_up(
    pipeline: "Pipeline", stack: ExitStack, port: int
) -> "tuple[DagsterServers, list[Part]]":
    """Start database, Spark and Dagster; gives Dagster's servers, and the parts beside them."""
    from batch_pipeline.defs.instance.home import open_instance
    from batch_pipeline.defs.instance.left_runs import close_left_runs
    from batch_pipeline.defs.instance.servers import DagsterServers

    parts: list[Part] = []
    with err.status("starting the database"):
        place = pipeline.database.location
        parts += _database(pipeline)
    say(f"database   {place}")
    with err.status("starting Spark"):
        remote = _spark(pipeline, stack, parts)
    say("spark      warm, through Spark Connect")
    with open_instance(pipeline.home) as instance:
        close_left_runs(pipeline, instance)
    servers = DagsterServers(pipeline.home, port=port, spark_remote=remote)
    with err.status("starting Dagster"):
        stack.enter_context(servers)
    return servers, parts


@dataclass(frozen=True, slots=True)
class _Database:
    """The embedded server; one that is configured is somebody else's to keep up."""

    folder: Path
    name: str = "database"

    def trouble(self) -> str | None:
        from batch_pipeline.inventory.server.embedded import is_running

        return None if is_running(self.folder) else "its server has ended"

    def restore(self) -> None:
        from batch_pipeline.inventory.server.embedded import ensure_running

        ensure_running(self.folder)


@dataclass(frozen=True, slots=True)
class _Spark:
    """The Spark Connect server of this command."""

    server: "SparkConnectServer"
    name: str = "Spark"

    def trouble(self) -> str | None:
        return None if self.server.is_running else "its server has ended"

    def restore(self) -> None:
        self.server.restart()


def _database(pipeline: "Pipeline") -> "list[Part]":
    is_embedded = pipeline.settings.inventory_conn is None
    return [_Database(pipeline.home.postgres)] if is_embedded else []


def _spark(pipeline: "Pipeline", stack: ExitStack, parts: "list[Part]") -> str:
    """Give the address of the Spark that runs share: the configured one, or a server of ours."""
    from batch_pipeline.spark.sessions.archive_maker import BackgroundArchive
    from batch_pipeline.spark.sessions.connect_server import SparkConnectServer
    from batch_pipeline.spark.sessions.session import (
        SparkSettings,
        close_session,
        open_session,
        warm_up,
    )

    if pipeline.settings.spark_remote is not None:
        return pipeline.settings.spark_remote.get_secret_value()
    home = pipeline.home.path
    settings = pipeline.settings
    conf = {"spark.master": settings.spark_master}
    server = SparkConnectServer(home, conf=conf, packed=settings.spark_packed)
    stack.enter_context(server)
    parts.append(_Spark(server))
    warm_up(open_session(SparkSettings(home=home, remote=server.remote)))
    close_session()
    stack.enter_context(BackgroundArchive(home))
    return server.remote


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
