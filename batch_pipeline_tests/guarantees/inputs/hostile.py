"""Hostile texts and locations, and a port that counts connections.

The texts have a meaning for databases, shells, templates, terminals, HTML pages or paths. Tests use
them as names and values.
"""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any


def _data(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_bytes())


_LONG = ("a" * 64, "a" * 100, "a" * 101, "a" * 5_000, "'" * 5_000, "é" * 40, "../" * 500, "%s" * 99)
TEXTS: tuple[str, ...] = (*chain(*_data("hostile_texts.json").values()), *_LONG)


def is_text(text: str) -> bool:
    """Return whether databases accept a text: valid UTF-8 without NUL."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


SECRET = "id\nsecret\n"  # noqa: S105 - the content of files that must not be read
_HOSTILE = _data("hostile_locations.json")


@dataclass(frozen=True)
class Exports:
    """A folder of exports that may be read, beside files that may not."""

    parent: Path

    @property
    def folder(self) -> Path:
        return self.parent / "exports"

    def build(self) -> None:
        """Create the folders, the files and the links."""
        for name in ("exports/deep", "exports-internal", "secret"):
            (self.parent / name).mkdir(parents=True)
        for name in ("exports/a.csv", "exports/deep/b c.csv"):
            (self.parent / name).write_text("id\n1\n")
        for name in ("exports-internal/a.csv", "secret/a.csv", "a.csv"):
            (self.parent / name).write_text(SECRET)
        links = {
            "link.csv": "../secret/a.csv",
            "absolute.csv": str(self.parent / "secret/a.csv"),
            "twice.csv": "link.csv",
            "passwd.csv": "/etc/passwd",
            "folder": "../secret",
            "up": "..",
            "root": "/",
            "inside.csv": "deep/b c.csv",
        }
        for name, target in links.items():
            (self.folder / name).symlink_to(target)

    def allowed_locations(self) -> Iterator[str]:
        """Yield locations of files that may be read."""
        for name in ("a.csv", "deep/b c.csv", "inside.csv"):
            yield f"{self.folder}/{name}"
        for name in ("a.csv", "deep/b%20c.csv", "a.csv#bytes=0-4"):
            yield f"file://{self.folder}/{name}"

    def hostile_locations(self, host: str) -> Iterator[str]:
        """Yield locations outside of the exports, and on a host."""
        for prefix in (str(self.folder), f"file://{self.folder}"):
            yield from (f"{prefix}/{tail}" for tail in _HOSTILE["below_the_exports"])
        for other in ("exports-internal/a.csv", "secret/a.csv", "a.csv"):
            yield from (f"{self.parent}/{other}", f"file://{self.parent}/{other}")
        for form in _HOSTILE["elsewhere"]:
            yield form.format(host=host, secret=self.parent / "secret/a.csv")


@dataclass
class ConnectionCounter:
    """Address of a listening port; `connections` is final when the context has ended."""

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
            with socket.create_connection(server.getsockname()) as closing:
                closing.sendall(b"end")
            thread.join()
