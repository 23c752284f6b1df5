"""A port of this machine that nobody should connect to, and how many did."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Listener:
    """Accepts connections, counts them and hangs up."""

    def __init__(self) -> None:
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; whoever had connected by now is counted."""
        with socket.create_connection(self._socket.getsockname()) as last:
            last.sendall(b"end")
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                connection.settimeout(1)
                if _is_end(connection):
                    return
                self.connections += 1


def _is_end(connection: socket.socket) -> bool:
    try:
        return connection.recv(3) == b"end"
    except OSError:
        return False


@contextmanager
def listening() -> Iterator[Listener]:
    """A listener for a while; its count is final when the block has ended."""
    listener = Listener()
    try:
        yield listener
    finally:
        listener.close()
