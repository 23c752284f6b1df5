"""Printing for people: colours and progress on a terminal only, errors on standard error.

Names and texts of others are printed with characters that terminals obey written as escapes.
"""

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.console import Console

# What moves the cursor, ends a line, turns the order of reading, or is no text at all.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_NAMES = 12  # columns for the names of facts
_NARROW = 20  # columns that a fact needs beside its name, or else its lines are left as they are


def visible(text: str) -> str:
    """Write characters that a terminal obeys as escapes; line feeds and tabs stay."""
    return _OBEYED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"  # in JSON, too, it is the character


class _PlainConsole(Console):
    """Prints no text that a terminal would obey."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print, as the console of `rich` does."""
        super().print(*(visible(one) if isinstance(one, str) else one for one in objects), **how)


out = _PlainConsole(highlight=False, soft_wrap=True)
err = _PlainConsole(stderr=True, highlight=False, soft_wrap=True)


def say(text: str = "") -> None:
    """Print a line; square brackets in it are text, not markup."""
    out.print(text, markup=False)


def head(text: str) -> None:
    """Print a heading."""
    out.print(text, style="bold", markup=False)


def fact(name: str, text: str, *, style: str | None = None) -> None:
    """Print a fact with its name in front, or below the one before where the name is empty.

    On a terminal a line that is too long is broken between words and goes on below its beginning.
    """
    start, indent = f"  {name:<{_NAMES}}", " " * (_NAMES + 2)
    lines = [start + text]
    if out.is_terminal and out.width >= len(indent) + _NARROW:
        lines = textwrap.wrap(
            text,
            out.width,
            initial_indent=start,
            subsequent_indent=indent,
            break_long_words=False,  # paths and addresses are there to be copied
            break_on_hyphens=False,
        )
    for line in lines:
        out.print(line, style=style, markup=False)


def facts(name: str, texts: Iterable[str], *, most: int = sys.maxsize) -> None:
    """Print facts below each other, the first with a name, and how many more there are."""
    every = list(texts)
    for number, text in enumerate(every[:most]):
        fact("" if number else name, text)
    if len(every) > most:
        fact("", f"… and {len(every) - most} more (--json lists all)")


def print_some(lines: Sequence[str], *, most: int = 20, indent: str = "  ") -> None:
    """Print the first lines of a list, and how many more there are."""
    for line in lines[:most]:
        say(indent + line)
    if len(lines) > most:
        say(f"{indent}… and {len(lines) - most} more (--json lists all)")


def complain(text: str) -> None:
    """Print an error."""
    err.print(f"error: {text}", style="red", markup=False)


def note(text: str) -> None:
    """Print what somebody should know although nothing is wrong."""
    err.print(f"note: {text}", style="yellow", markup=False)


def print_next(steps: Iterable[tuple[str, str]]) -> None:
    """Print what to type next: arguments of this command, and what they are for."""
    head("What to type next")
    # `uv run` tells its child of itself; without it the command is on the PATH.
    command = (
        "uv run batch-pipeline" if "UV_RUN_RECURSION_DEPTH" in os.environ else "batch-pipeline"
    )
    for arguments, meaning in steps:
        say(f"  {command} {arguments:<32} {meaning}")


def print_json(value: Any) -> None:
    """Print a value for programs; times are ISO 8601 with a zone."""
    click.echo(visible(json.dumps(value, ensure_ascii=False, default=_text)))


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


_UNITS = (
    (timedelta(days=1), "days"),
    (timedelta(hours=1), "hours"),
    (timedelta(minutes=1), "minutes"),
)


def lasting(duration: timedelta) -> str:
    """Format a duration for people: `under 2 minutes`, `5 minutes`, `47 hours`, `2 days`."""
    for unit, name in _UNITS:
        count = duration // unit
        if count >= 2:
            return f"{count:,} {name}"
    return "under 2 minutes"


def ago(moment: datetime, now: datetime) -> str:
    """Format the time since a moment for people: `just now`, `5 minutes ago`."""
    age = now - moment
    return "just now" if age < timedelta(minutes=1) else f"{lasting(age)} ago"


def at(moment: datetime, now: datetime) -> str:
    """Write a time to the second in UTC, with how long ago it was."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {ago(moment, now)}"
