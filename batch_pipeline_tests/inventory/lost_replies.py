"""A proxy that loses replies: requests reach the database, one reply does not come back.

It listens on its own unix socket. The request is executed, even a COMMIT, but the client does not
receive the reply.
"""

import select
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa

_BYTES = 65_536


class LostReplies:
    """Counts the requests of all connections; drops one connection before its reply.

    A request is what the client sends in one write.
    """

    def __init__(self, server: Path, folder: Path) -> None:
        self._server = str(server)
        self._mutex = threading.Lock()
        self._remaining = 0
        self._closed = False
        self.requests = 0
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / server.name))
        self._listening.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def arm(self, request: int) -> None:
        """Lose the reply to the n-th request from now on, counted from 1."""
        with self._mutex:
            self._remaining, self.requests = request, 0

    def disarm(self) -> bool:
        """Stop losing replies; return whether the request was reached."""
        with self._mutex:
            was_reached, self._remaining = self._remaining <= 0, 0
        return was_reached

    def close(self) -> None:
        """Accept no more connections and wait until all have ended."""
        self._closed = True
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self._listening.getsockname())  # wakes the accepting thread
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            if self._closed:
                client.close()
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            thread = threading.Thread(target=self._forward, args=(client, server))
            self._threads.append(thread)
            thread.start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        is_cut_off = False
        with client, server, suppress(OSError):
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(_BYTES)
                    if not data or (is_cut_off and source is server):
                        return
                    if source is client:
                        is_cut_off = self._count() or is_cut_off
                    (server if source is client else client).sendall(data)

    def _count(self) -> bool:
        with self._mutex:
            self.requests += 1
            self._remaining -= 1
            return self._remaining == 0


@contextmanager
def losing_replies(url: str) -> Iterator[tuple[str, LostReplies]]:
    """Run the proxy for the block; yield the URL to connect to and the proxy."""
    real = sa.make_url(url)
    folder = Path(tempfile.mkdtemp(prefix="bp-"))  # socket paths are short
    host = real.query["host"]
    assert isinstance(host, str)
    replies = LostReplies(Path(host) / f".s.PGSQL.{real.port or 5432}", folder)
    proxied = real.update_query_dict({"host": str(folder)})
    yield proxied.render_as_string(hide_password=False), replies
    replies.close()
    shutil.rmtree(folder)
