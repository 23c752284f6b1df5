"""Which BATCH files an installed target reads, found without sending it anything.

What a target prints cannot tell: targets that ignore BATCH messages end well and print the STATE,
and a batch sent for a trial would leave a table behind. So its own Python environment is asked
which classes would get the files. Where that cannot be known the answer is: none.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_pipeline.domain.encoding import Encoding
from batch_pipeline.domain.location import scheme_of

_LOOK_INSIDE = Path(__file__).with_name("look_inside.py")
_PATIENCE_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The encodings that a target reads, `format+compression` or `format` alone, and why.

    `stores` are the schemes of the URIs of files that it reaches, besides those of disks.
    """

    encodings: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    why: str = ""

    def reads(self, encodings: Iterable[Encoding]) -> bool:
        """Tell whether the target reads files of all these encodings."""
        return all(
            one.format.value in self.encodings
            or f"{one.format.value}+{one.compression.value}" in self.encodings
            for one in encodings
        )

    def reaches(self, uris: Iterable[str]) -> bool:
        """Tell whether the target can open files where they lie."""
        return all(scheme_of(uri) in {"", "file", *self.stores} for uri in uris)

    def to_json(self) -> dict[str, Any]:
        """Write it as the inventory keeps it."""
        return {
            "encodings": list(self.encodings),
            "stores": list(self.stores),
            "why": self.why,
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> "Reading":
        """Read what `to_json` wrote."""
        return cls(
            encodings=tuple(written["encodings"]),
            stores=tuple(written.get("stores", ())),  # older verdicts have none
            why=written["why"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Where verdicts are remembered, by command and version."""

    known: Callable[[str, str], Mapping[str, Any] | None]
    remember: Callable[[str, str, Mapping[str, Any]], None]


def reading_of(command: Sequence[str], memory: Memory) -> Reading:
    """Find out which BATCH files the target behind a command reads."""
    script = shutil.which(command[0])
    interpreter = None if script is None else _interpreter(Path(script))
    if script is None or interpreter is None:
        return Reading(why=f"what stands behind {command[0]!r} cannot be looked into")
    found = _look(interpreter, script, "version")
    version = found.get("version")
    if not version:
        return Reading(why=found.get("why", f"its version is unknown to {interpreter}"))
    known = memory.known(script, version)
    if known is not None:
        return Reading.from_json(known)
    found = _look(interpreter, script, "classes")
    if "encodings" not in found:
        return Reading(
            why=found.get("why", "its classes cannot be looked at")
        )  # may pass by itself
    reading = Reading.from_json(found)
    memory.remember(script, version, reading.to_json())
    return reading


def _interpreter(script: Path) -> str | None:
    """Give the Python that a console script names in its first lines, None for other programs."""
    try:
        with script.open("rb") as file:
            head = file.read(1_024)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    first, second = (os.fsdecode(line).strip() for line in (head + b"\n\n").split(b"\n")[:2])
    words = first[2:].split()
    if words[:1] == ["/bin/sh"] and second.startswith("'''exec'"):  # of paths that are too long
        quoted = second.removeprefix("'''exec'").strip()
        words = [quoted.split('"')[1]] if quoted.startswith('"') else quoted.split()[:1]
    is_python = len(words) == 1 and "python" in Path(words[0]).name
    return words[0] if is_python and Path(words[0]).is_file() else None


def _look(interpreter: str, script: str, what: str) -> dict[str, Any]:
    code = _LOOK_INSIDE.read_text(encoding="utf-8")
    try:
        answer = subprocess.run(
            [interpreter, "-c", code, what, Path(script).name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_SECONDS,
            check=True,
        )
        found = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return {"why": f"looking into {interpreter} failed ({type(error).__name__})"}
    return found if isinstance(found, dict) else {}
