"""Watches what commands start while they run: command lines, listening sockets, files with secrets.

It looks again and again from a thread, so it may miss what is gone within half a second.
"""

import os
import socket
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from batch_pipeline_tests.guarantees.secrets.canaries import Canaries

OWNER = "its owner"
_PAUSE_SECONDS = 0.5
_LARGEST_BYTES = 256 * 2**10
_LOOPBACK = ("127.", "::1", "::ffff:127.")


@dataclass(slots=True)
class Seen:
    """What was seen so far."""

    command_lines: set[str] = field(default_factory=set)
    tcp: set[tuple[str, str, int]] = field(default_factory=set)  # process, address, port
    unix: dict[str, str] = field(default_factory=dict)  # path, who may connect
    secret_files: dict[str, str] = field(default_factory=dict)  # path, who may read

    @property
    def beyond(self) -> list[tuple[str, str, int]]:
        """Return the sockets that another machine could reach."""
        return sorted(one for one in self.tcp if not one[1].startswith(_LOOPBACK))

    @property
    def open_to_others(self) -> list[str]:
        """Return the unix sockets, and files with secrets, that other users can open."""
        some = {**self.unix, **self.secret_files}
        return sorted(f"{path}: {who}" for path, who in some.items() if who != OWNER)


@contextmanager
def watching(canaries: Canaries, *folders: Path) -> Iterator[Seen]:
    """Watch processes below this one, and files below folders, until the block ends."""
    seen, is_over = Seen(), threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            look(seen, canaries, *folders)
            is_over.wait(_PAUSE_SECONDS)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def look(seen: Seen, canaries: Canaries, *folders: Path) -> None:
    """Look once."""
    look_at_sockets(seen, psutil.Process().children(recursive=True))
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            seen.command_lines.add(" ".join(process.cmdline()))
    for folder in folders:
        for above, _, names in os.walk(folder):
            for name in names:
                _look_at_file(seen, canaries, Path(above, name))


def look_at_sockets(seen: Seen, processes: Iterable[psutil.Process]) -> None:
    """Look on which sockets processes listen."""
    for process in processes:
        with suppress(psutil.Error, OSError):
            for one in process.net_connections("all"):
                address: Any = one.laddr
                if one.family == socket.AF_UNIX:
                    if address.startswith("/"):
                        seen.unix[address] = _who_connects(Path(address))
                elif one.status == psutil.CONN_LISTEN or _receives(one):
                    seen.tcp.add((process.name(), str(address.ip), int(address.port)))


def _receives(one: Any) -> bool:
    """Return whether a socket without connections takes what anybody sends."""
    return bool(one.type == socket.SOCK_DGRAM and one.laddr and not one.raddr)


def _look_at_file(seen: Seen, canaries: Canaries, path: Path) -> None:
    with suppress(OSError):
        found = path.lstat()
        is_small = stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST_BYTES
        if not is_small or str(path) in seen.secret_files:
            return
        if canaries.found_in(path.read_bytes()):
            others = found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
            seen.secret_files[str(path)] = f"others, mode {others:o}" if others else OWNER


def _who_connects(path: Path) -> str:
    """Tell who gets at a socket: its own mode decides, or a folder that others cannot enter."""
    others = path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_closed = any(not one.stat().st_mode & stat.S_IXOTH for one in path.parents)
    return f"others, mode {others:o}" if others and not is_closed else OWNER
