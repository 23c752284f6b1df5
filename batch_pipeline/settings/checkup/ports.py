"""Looks whether the port that `dev` wants is free, and who has it; nothing stays bound."""

import socket
from collections.abc import Iterator
from contextlib import suppress

import psutil

from batch_pipeline.model.checks import Finding, fine, warning

DEV_PORT = 3000


def check_ports(port: int = DEV_PORT) -> Iterator[Finding]:
    """Look at the one port of `dev` that is not picked when it starts: that of Dagster's pages."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            text = (
                f"{port} is taken by {_holder(port)}. If that is no `dev` of yours, run "
                f"`batch-pipeline dev --port {port + 1}`."
            )
            yield warning("ports", text)
            return
    yield fine("ports", f"{port}, where `dev` shows Dagster, is free.")


def _holder(port: int) -> str:
    with suppress(psutil.Error):
        for one in psutil.net_connections("tcp"):
            is_listening = one.status == psutil.CONN_LISTEN
            if is_listening and getattr(one.laddr, "port", None) == port and one.pid:
                return f"{psutil.Process(one.pid).name()} (process {one.pid})"
    return "another process"
