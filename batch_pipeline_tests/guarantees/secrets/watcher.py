"""Observes command lines, listening sockets and files with secrets while commands run.

It polls, so anything that exists for less than half a second may be missed.
"""

import socket
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from batch_pipeline_tests.guarantees.secrets.search import Search, files_below

OWNER = "its owner"
_POLL_SECONDS = 0.5
_MAX_BYTES = 256 * 2**10  # of a file that is read
_LOOPBACK = ("127.", "::1", "::ffff:127.")


@dataclass(slots=True)
class Observations:
    """The observations so far."""

    command_lines: set[str] = field(default_factory=set)
    tcp: set[tuple[str, str, int]] = field(default_factory=set)  # process, address, port
    unix: dict[str, str] = field(default_factory=dict)  # path, who may connect
    secret_files: dict[str, str] = field(default_factory=dict)  # path, who may read
    _searched: set[tuple[str, int, int, int]] = field(default_factory=set)

    @property
    def beyond_loopback(self) -> list[tuple[str, str, int]]:
        """The sockets that another machine could reach."""
        return sorted(entry for entry in self.tcp if not entry[1].startswith(_LOOPBACK))

    @property
    def open_to_others(self) -> list[str]:
        """The Unix sockets, and files with secrets, that other users can open."""
        some = {**self.unix, **self.secret_files}
        return sorted(f"{path}: {who}" for path, who in some.items() if who != OWNER)

    def poll(self, search: Search, *folders: Path) -> None:
        """Observe command lines, the sockets of child processes and files below folders once."""
        self.poll_sockets(psutil.Process().children(recursive=True))
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                self.command_lines.add(" ".join(process.cmdline()))
        for path in (path for folder in folders for path in files_below(folder)):
            with suppress(OSError):
                status = path.lstat()
                # `dev` starts with a canary that is known, and searched for, only later.
                searched = str(path), status.st_size, status.st_mtime_ns, len(search.canaries)
                is_small = stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES
                if not is_small or searched in self._searched:
                    continue
                if search.find_in(path.read_bytes()):
                    self.secret_files[str(path)] = _mode_of_others(status.st_mode & 0o077)
                self._searched.add(searched)

    def poll_sockets(self, processes: Iterable[psutil.Process]) -> None:
        """Observe the sockets on which processes listen."""
        for process in processes:
            with suppress(psutil.Error, OSError):
                for connection in process.net_connections("all"):
                    address: Any = connection.laddr
                    receives = (
                        connection.type == socket.SOCK_DGRAM
                        and connection.laddr
                        and not connection.raddr
                    )
                    if connection.family == socket.AF_UNIX:
                        if address.startswith("/"):
                            self.unix[address] = _who_connects(Path(address))
                    elif connection.status == psutil.CONN_LISTEN or receives:
                        self.tcp.add((process.name(), str(address.ip), int(address.port)))


@contextmanager
def watching(search: Search, *folders: Path) -> Iterator[Observations]:
    """Observe the processes below this one, and files below folders, until the block ends."""
    observations, is_over = Observations(), threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            observations.poll(search, *folders)
            is_over.wait(_POLL_SECONDS)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield observations
    finally:
        is_over.set()
        thread.join()


def _who_connects(path: Path) -> str:
    """Return who can connect, by the mode of the socket and of its folders."""
    is_closed = any(not folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
    return OWNER if is_closed else _mode_of_others(path.stat().st_mode & 0o022)


def _mode_of_others(mode: int) -> str:
    return f"others, mode {mode:o}" if mode else OWNER
