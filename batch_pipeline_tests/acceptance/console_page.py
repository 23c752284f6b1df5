"""A page with commands and what they print, read into steps and held against what happens.

Three rules make a page readable and still comparable: the project of a page is in `/srv/shop`, `…`
stands for whatever differs from run to run, and a line that is `…` alone for any number of lines.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

PROJECT = "/srv/shop"


@dataclass(frozen=True, slots=True)
class Typed:
    """A command as a reader types it, and the lines that the page shows below it, if any."""

    command: str
    shown: tuple[str, ...]

    @property
    def fails(self) -> bool:
        """Return whether the page shows that the command ends with an error."""
        return any(line.startswith("Error: ") for line in self.shown)

    def fits(self, printed: str) -> bool:
        """Return whether what was printed is what the page shows; without lines it is anything."""
        lines = [f"{line.rstrip()}\n" for line in printed.splitlines()]
        return not self.shown or re.fullmatch(_pattern(self.shown), "".join(lines)) is not None


@dataclass(frozen=True, slots=True)
class Changed:
    """Keys of the stream file that the page has its reader change."""

    attributes: Mapping[str, Any]


def steps(text: str) -> Iterator[Typed | Changed]:
    """Read what a page has its reader do, in order: YAML blocks and the commands of consoles."""
    for language, body in re.findall(r"^```(console|yaml)\n(.*?)^```", text, re.M | re.S):
        if language == "yaml":
            yield Changed(yaml.safe_load(body))
            continue
        for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
            command, *shown = part.replace("\\\n", "").splitlines()  # as a shell does
            yield Typed(command, tuple(shown))


def _pattern(shown: Sequence[str]) -> str:
    some_lines, within_a_line = r"(?:.*\n)*?", ".*?"
    return "".join(
        some_lines
        if line.strip() == "…"
        else within_a_line.join(re.escape(part) for part in line.rstrip().split("…")) + r"\n"
        for line in shown
    )
