"""Ports for servers that tests start: no two processes of tests are ever given the same one."""

import socket
from contextlib import suppress

import pytest

# Below the ports of outgoing connections, any of which could take one before it is listened on,
# and below those that a Spark Connect server of ours chooses from.
_PORTS = range(18_000, 20_000)
_TO_GUARD = 2_000


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens; it is this process's until its end.

    A process has a port for itself while it holds the guard of it, a port that nobody listens on.
    """
    for port in _PORTS:
        guard = _bound(port - _TO_GUARD)
        if guard is None:
            continue
        guard.detach()  # open until this process ends
        probe = _bound(port)
        if probe is not None:
            probe.close()
            return port
    pytest.fail(f"no free port from {_PORTS.start} to {_PORTS.stop - 1}")


def _bound(port: int) -> socket.socket | None:
    bound = socket.socket()
    with suppress(OSError):
        bound.bind(("127.0.0.1", port))
        return bound
    bound.close()
    return None
