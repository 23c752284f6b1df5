"""Printing for people: colours and progress on a terminal only, errors on standard error.

Names and texts of others are printed with characters that terminals obey written as escapes.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

# What moves the cursor, ends a line, turns the order of reading, or is no text at all.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


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
    """Print a value for programs."""
    click.echo(visible(json.dumps(value, ensure_ascii=False, default=str)))


class _ProgressHandler(logging.Handler):
    """Moves a progress bar with what the encoding of partitions logs."""

    def __init__(self, bar: Progress) -> None:
        super().__init__(logging.INFO)
        self._bar = bar
        self._task = bar.add_task("starting", total=None)

    def emit(self, record: logging.LogRecord) -> None:
        facts = record.__dict__
        text = visible(record.getMessage())
        if "stream" in facts:
            total = facts.get("total")
            what = f"{facts['stream']}: {text}"
            self._bar.reset(self._task, total=total, description=what)
            return
        if "tasks" in facts:
            self._bar.update(self._task, description=text)
            return
        self._bar.update(self._task, advance=1)
        self._bar.console.print(f"  {text}", markup=False)


@contextmanager
def progress() -> Iterator[None]:
    """Show on standard error how batches get on, until the block ends."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    )
    logger = logging.getLogger("batch_pipeline.progress")
    with bar:
        handler = _ProgressHandler(bar)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
