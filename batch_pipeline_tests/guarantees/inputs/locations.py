"""Locations that an attacker might write into a table or a message to reach another file."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SECRET = "id\nsecret\n"  # noqa: S105 - the content of a file that nothing may read
_HOSTILE = json.loads(Path(__file__).with_name("hostile_locations.json").read_bytes())


@dataclass(frozen=True)
class Exports:
    """A folder of exports that may be read, and what lies beside it, which may not."""

    parent: Path

    @property
    def folder(self) -> Path:
        """The folder that a stream may read."""
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
        """Yield locations that lead out of the exports, or to a host."""
        for prefix in (str(self.folder), f"file://{self.folder}"):
            yield from (f"{prefix}/{tail}" for tail in _HOSTILE["below_the_exports"])
        for other in ("exports-internal/a.csv", "secret/a.csv", "a.csv"):
            yield from (f"{self.parent}/{other}", f"file://{self.parent}/{other}")
        for form in _HOSTILE["elsewhere"]:
            yield form.format(host=host, secret=self.parent / "secret/a.csv")
