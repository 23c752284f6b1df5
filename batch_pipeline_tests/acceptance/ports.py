"""Ports for servers that tests start; no two test processes get the same one."""

import socket
from contextlib import suppress

import pytest

# Below the ephemeral ports, any of which a connection could take before a server listens on it,
# and below the ports that our Spark Connect server chooses from.
_PORTS = range(18_000, 20_000)
_GUARD_OFFSET = 2_000


def free_port() -> int:
    """Return a free port of 127.0.0.1, which is reserved for this process until it ends.

    A process reserves a port by binding a second port, on which nothing listens.
    """
    for port in _PORTS:
        guard = _bound(port - _GUARD_OFFSET)
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
