"""The command `dev`: run database, Spark and Dagster until Ctrl-C."""

import errno
import os
import signal
import socket
import threading
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING

import click

from batch_pipeline.cli.console import err, fact, head, note, say
from batch_pipeline.cli.options import opened
from batch_pipeline.model.errors import check_extra, unusable_port

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline
    from batch_pipeline.defs.instance.servers import Service


@click.command()
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    default=3000,
    show_default=True,
    help="Port of Dagster's UI.",
)
@click.option("--stop", is_flag=True, help="Stop the warm Spark server left by a command.")
def dev(*, port: int, stop: bool) -> None:
    """Start database, Spark, and Dagster's webserver and daemon on 127.0.0.1.

    New files are registered, planned and encoded as they land. Ctrl-C stops everything; unfinished
    batches continue at the next start. If one service exits, the others are stopped.

    Exit codes: 75 if a service exited.

    \b
    Example:
      batch-pipeline dev --port 3001
    """
    from batch_pipeline.defs.instance.servers import watch

    if stop:
        _stop_warm_server()
        return
    check_extra("embedded", "`batch-pipeline dev`", "dagster_webserver")
    stop_requested = _stop_on_signals()
    with ExitStack() as stack:
        pipeline = stack.enter_context(opened())
        stack.enter_context(pipeline.home.lock("batch-pipeline dev"))
        if problem := port_problem(port):
            raise unusable_port(port, problem)
        streams = pipeline.usable_streams
        for error in pipeline.stream_file_errors:
            note(str(error))
        services = _start(pipeline, stack, port)
        fact("streams", f"{', '.join(streams)} (from {pipeline.settings.streams})")
        head(f"Dagster is at http://127.0.0.1:{port}. Ctrl-C stops everything.")
        try:
            watch(services, stop_requested)
        finally:
            err.print("stopping …")
    say("Everything is stopped.")


def port_problem(port: int) -> str | None:
    """Return why a server cannot listen on a port of the loopback interface, None if it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            is_used = error.errno == errno.EADDRINUSE
            return "is in use" if is_used else f"cannot be used ({os.strerror(error.errno or 0)})"
    return None


def _stop_warm_server() -> None:
    from batch_pipeline.spark import warm_server

    with opened() as pipeline:
        server = warm_server.stop(pipeline.settings.home)
        if server is None:
            say(f"No warm Spark server runs for {pipeline.settings.home}.")
        else:
            say(f"The warm Spark server (process {server.pid}) was stopped.")


def _start(pipeline: "Pipeline", stack: ExitStack, port: int) -> "list[Service]":
    """Start database, Spark and Dagster, in this order."""
    from batch_pipeline.defs.instance.dagster_home import close_abandoned_runs, open_instance
    from batch_pipeline.defs.instance.servers import dagster_servers

    with err.status("starting the database"):
        place = pipeline.database.location
    fact("database", place)
    services = embedded_database(pipeline)
    with err.status("starting Spark"):
        remote, spark = _spark(pipeline, stack)
    fact("spark", "warm, through Spark Connect")
    with open_instance(pipeline.home) as instance:
        close_abandoned_runs(pipeline, instance)
    servers = dagster_servers(pipeline.home, port=port, spark_remote=remote)
    with err.status("starting Dagster"):
        dagster = stack.enter_context(servers)
    return [*services, *spark, *dagster]


def embedded_database(pipeline: "Pipeline") -> "list[Service]":
    """Return the embedded server; a configured server is not a service of this command."""
    from batch_pipeline.defs.instance.servers import Service
    from batch_pipeline.inventory.embedded_server import find_server

    if pipeline.settings.inventory_conn is not None:
        return []
    folder = pipeline.home.postgres

    started = find_server(folder)

    def failure() -> str | None:
        # It is not a child process, so its exit code is unknown. A run may start another server
        # before this is called.
        return None if find_server(folder) == started else "ended"

    return [Service(name="database", log=folder / "log", failure=failure)]


def _spark(pipeline: "Pipeline", stack: ExitStack) -> "tuple[str, list[Service]]":
    """Return the address of the shared Spark server: configured, or started by this command."""
    from batch_pipeline.defs.instance.servers import Service
    from batch_pipeline.spark.class_data_archive import build_meanwhile
    from batch_pipeline.spark.session import SparkSettings, close_session, open_engine
    from batch_pipeline.spark.spark_connect import SparkConnectServer
    from batch_pipeline.spark.spark_job import warm_up
    from batch_pipeline.spark.warm_server import stop

    settings, home = pipeline.spark, pipeline.spark.home
    if settings.remote is not None:
        return settings.remote, []
    stop(home)  # this command's server replaces it
    conf = {"spark.master": settings.master}
    server = stack.enter_context(SparkConnectServer(home, conf=conf, packed=settings.packed))
    warm_up(open_engine(SparkSettings(home=home, remote=server.remote)))
    close_session()
    stack.enter_context(build_meanwhile(home))
    return server.remote, [Service(name="Spark server", log=server.log, failure=server.failure)]


def _stop_on_signals() -> threading.Event:
    """Make Ctrl-C and termination set an event, so that everything is stopped in order."""
    stop = threading.Event()

    def request(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # `nohup`
            signal.signal(number, request)
    return stop
