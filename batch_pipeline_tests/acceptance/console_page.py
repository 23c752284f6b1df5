"""The commands of a documentation page, and comparison of their output with the page.

The project of a page is in `/srv/shop`. `…` matches text that differs between runs; a line that is
only `…` matches any number of lines.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

PROJECT = "/srv/shop"
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the page, and the output lines that the page shows below it, if any."""

    command: str
    expected_lines: tuple[str, ...]

    @property
    def fails(self) -> bool:
        """Return whether the page shows an error."""
        return any(line.startswith("Error: ") for line in self.expected_lines)

    def matches(self, output: str) -> bool:
        """Return whether output matches the page; if the page shows none, any output matches."""
        lines = [f"{line.rstrip()}\n" for line in output.splitlines()]
        return (
            not self.expected_lines
            or re.fullmatch(_pattern(self.expected_lines), "".join(lines)) is not None
        )


@dataclass(frozen=True, slots=True)
class StreamFileEdit:
    """Keys of the stream file that the page sets."""

    attributes: Mapping[str, Any]


def steps(text: str) -> Iterator[Command | StreamFileEdit]:
    """Yield the steps of a page in order: YAML blocks and console commands."""
    for language, body in re.findall(r"^```(console|yaml)\n(.*?)^```", text, re.M | re.S):
        if language == "yaml":
            yield StreamFileEdit(yaml.safe_load(body))
            continue
        for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
            command, *expected_lines = part.replace("\\\n", "").splitlines()  # as a shell does
            yield Command(command, tuple(expected_lines))


def _pattern(expected_lines: Sequence[str]) -> str:
    some_lines, within_a_line = r"(?:.*\n)*?", ".*?"
    return "".join(
        some_lines
        if line.strip() == "…"
        else within_a_line.join(re.escape(part) for part in line.rstrip().split("…")) + r"\n"
        for line in expected_lines
    )
