"""A server that answers no more: requests reach the database, the reply is lost on its way back.

Stands between client and server on a unix socket of its own. What was asked is done, a COMMIT
too; only nobody is told.
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
    """Counts requests of all connections, and loses the reply to one of them with its connection.

    A request is what the client sends at one go.
    """

    def __init__(self, server: Path, folder: Path) -> None:
        self._server = str(server)
        self._mutex = threading.Lock()
        self._left = 0
        self._closed = False
        self.points = 0
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / server.name))
        self._listening.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def arm(self, point: int) -> None:
        """Lose the reply to the n-th request from now on, counted from 1."""
        with self._mutex:
            self._left, self.points = point, 0

    def disarm(self) -> bool:
        """Lose nothing any more; tell whether the point was reached."""
        with self._mutex:
            has_lost, self._left = self._left <= 0, 0
        return has_lost

    def close(self) -> None:
        """Let no one in any more, and wait until all have left."""
        self._closed = True
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self._listening.getsockname())  # wakes who waits for the next one
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
            thread = threading.Thread(target=self._pass_on, args=(client, server))
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        loses = False
        with client, server, suppress(OSError):
            while True:
                for one in select.select([client, server], [], [])[0]:
                    data = one.recv(_BYTES)
                    if not data or (loses and one is server):
                        return
                    if one is client:
                        loses = self._count() or loses
                    (server if one is client else client).sendall(data)

    def _count(self) -> bool:
        with self._mutex:
            self.points += 1
            self._left -= 1
            return self._left == 0


@contextmanager
def losing(url: str) -> Iterator[tuple[str, LostReplies]]:
    """Stand before a server for the length of a block; give the URL to reach it by."""
    real = sa.make_url(url)
    folder = Path(tempfile.mkdtemp(prefix="bp-"))  # socket paths are short
    host = real.query["host"]
    assert isinstance(host, str)
    replies = LostReplies(Path(host) / f".s.PGSQL.{real.port or 5432}", folder)
    detour = real.update_query_dict({"host": str(folder)})
    yield detour.render_as_string(hide_password=False), replies
    replies.close()
    shutil.rmtree(folder)
