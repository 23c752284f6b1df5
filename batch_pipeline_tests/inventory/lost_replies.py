"""A proxy that loses replies: requests reach the database, one reply does not come back.

It listens on its own unix socket. The request is executed, even a COMMIT, but the client does not
receive the reply.
"""

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import sqlalchemy as sa

_BYTES = 65_536
_POLL_SECONDS = 0.05


class LostReplies(socketserver.ThreadingUnixStreamServer):
    """Counts the requests of all connections; drops one connection before its reply.

    A request is what the client sends in one write.
    """

    request_queue_size = 64  # connections that wait to be accepted

    def __init__(self, server: Path, folder: Path) -> None:
        super().__init__(str(folder / server.name), _Connection)
        self.real = str(server)
        self.requests = 0
        self._mutex = threading.Lock()
        self._remaining = 0

    def arm(self, request: int) -> None:
        """Lose the reply to the n-th request from now on, counted from 1."""
        with self._mutex:
            self._remaining, self.requests = request, 0

    def disarm(self) -> bool:
        """Stop losing replies; return whether the request was reached."""
        with self._mutex:
            was_reached, self._remaining = self._remaining <= 0, 0
        return was_reached

    def count(self) -> bool:
        """Count a request; return whether its reply is lost."""
        with self._mutex:
            self.requests += 1
            self._remaining -= 1
            return self._remaining == 0


class _Connection(socketserver.BaseRequestHandler):
    server: LostReplies
    request: socket.socket

    def handle(self) -> None:
        """Forward data between the client and the real server until one of them ends."""
        is_cut_off = False
        with socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self.server.real)
            while True:
                for source in select.select([self.request, server], [], [])[0]:
                    data = source.recv(_BYTES)
                    if not data or (is_cut_off and source is server):
                        return
                    if source is self.request:
                        is_cut_off = self.server.count() or is_cut_off
                    (server if source is self.request else self.request).sendall(data)


@contextmanager
def losing_replies(url: str) -> Iterator[tuple[str, LostReplies]]:
    """Run the proxy for the block; yield the URL to connect to and the proxy."""
    real = sa.make_url(url)
    host = real.query["host"]
    assert isinstance(host, str)
    server = Path(host) / f".s.PGSQL.{real.port or 5432}"
    # Socket paths are short.
    with TemporaryDirectory(prefix="bp-") as folder, LostReplies(server, Path(folder)) as replies:
        threading.Thread(target=replies.serve_forever, args=(_POLL_SECONDS,)).start()
        proxied = real.update_query_dict({"host": folder})
        yield proxied.render_as_string(hide_password=False), replies
        replies.shutdown()
