"""A port of this machine that nobody should connect to, and the number of connections to it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass
class ConnectionCounter:
    """Address of a listening port; `connections` is final when its context has ended."""

    address: str
    connections: int = 0


@contextmanager
def count_connections() -> Iterator[ConnectionCounter]:
    """Accept connections, count them and close them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        counter = ConnectionCounter(f"127.0.0.1:{server.getsockname()[1]}")

        def accept() -> None:
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    connection.settimeout(1)
                    if connection.recv(3) == b"end":
                        return
                counter.connections += 1

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield counter
        finally:
            with socket.create_connection(server.getsockname()) as last:
                last.sendall(b"end")
            thread.join()
