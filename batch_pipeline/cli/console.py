"""Output and errors: text, facts, JSON, the progress bar of long commands, and exit codes.

Colours and progress are for terminals only; errors and notes go to standard error. Control
characters in names and other external text are printed as escapes, so that a terminal does not
interpret them.
"""

import errno
import json
import logging
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click
from rich.console import Console

from batch_pipeline.model.errors import (
    ConflictError,
    PipelineError,
    RetryableError,
    StreamStoppedError,
)
from batch_pipeline.model.progress import log

if TYPE_CHECKING:
    from rich.progress import Progress

# Characters that move the cursor, end a line or change the text direction, and surrogates.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_NAMES = 12  # columns for the names of facts
_NARROW = 20  # minimum columns for the text of a fact; with fewer, lines are not wrapped


def visible(text: str) -> str:
    """Escape the characters that a terminal interprets, except line feeds and tabs.

    The consoles below expand tabs.
    """
    # JSON decodes an escape to the same character.
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class _PlainConsole(Console):
    """A console that escapes what a terminal interprets; `[…]` and `:…:` are text."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def print(self, *objects: Any, **how: Any) -> None:
        """Print like the console of `rich`."""
        super().print(*(visible(one) if isinstance(one, str) else one for one in objects), **how)

    def on_broken_pipe(self) -> None:
        """Raise, unlike the console of `rich`, which exits with code 1."""
        raise BrokenPipeError


out = _PlainConsole()
err = _PlainConsole(stderr=True)


def say(text: str = "") -> None:
    """Print a line."""
    out.print(text)


def head(text: str) -> None:
    """Print a heading."""
    out.print(text, style="bold")


def fact(name: str, text: str, *, style: str | None = None) -> None:
    """Print a fact after its name; with an empty name, below the previous fact.

    On a terminal, long lines are wrapped between words and continued below the start of the text.
    """
    start, indent = f"  {name:<{_NAMES}}", " " * (_NAMES + 2)
    lines = [start + text]
    if out.is_terminal and out.width >= len(indent) + _NARROW:
        lines = textwrap.wrap(
            text,
            out.width,
            initial_indent=start,
            subsequent_indent=indent,
            break_long_words=False,  # so that paths and addresses can be copied
            break_on_hyphens=False,
        )
    for line in lines:
        out.print(line, style=style)


def facts(name: str, texts: Iterable[str], *, most: int = sys.maxsize) -> None:
    """Print facts below each other, the first with a name, and the number of omitted ones."""
    for number, text in enumerate(_first([*texts], most)):
        fact("" if number else name, text)


def print_some(lines: Sequence[str], *, indent: str = "  ") -> None:
    """Print the first 20 lines of a list, and the number of omitted ones."""
    for line in _first(lines, 20):
        say(indent + line)


def _first(lines: Sequence[str], most: int) -> list[str]:
    omitted = len(lines) - most
    more = [f"… and {omitted} more (--json lists all)"] if omitted > 0 else []
    return [*lines[:most], *more]


def print_error(text: str) -> None:
    """Print an error in click's format."""
    err.print(f"Error: {text}", style="red")


def note(text: str) -> None:
    """Print a note: not an error, but worth knowing."""
    err.print(f"Note: {text}", style="yellow")


def print_next(steps: Iterable[tuple[str, str]]) -> None:
    """Print next steps: the arguments of this command, and the purpose of each step."""
    head("Next steps")
    # `uv run` sets this variable; without it the command is on the PATH.
    command = (
        "uv run batch-pipeline" if "UV_RUN_RECURSION_DEPTH" in os.environ else "batch-pipeline"
    )
    for arguments, meaning in steps:
        say(f"  {command} {arguments:<31}  {meaning}")


def print_json(value: Any) -> None:
    """Print a value as JSON; times are ISO 8601 with a zone."""
    is_unicode = out.encoding.startswith("utf")
    click.echo(visible(json.dumps(value, ensure_ascii=not is_unicode, default=_text)))


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
    """Format a time to the second in UTC, with its age."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {ago(moment, now)}"


_WIDEST = 40
_BESIDE = 50  # columns for the text beside the bar


class _Handler(logging.Handler):
    """A log handler that updates the progress bar."""

    def __init__(self, bar: "Progress") -> None:
        super().__init__(logging.INFO)
        self._bar = bar
        self._doing = "starting"
        self._task = bar.add_task(self._doing, total=None, count="")
        self._stream = ""
        self._is_stepwise = False

    def emit(self, record: logging.LogRecord) -> None:
        facts, text = record.__dict__, visible(record.getMessage())
        if "stream" in facts:
            self._stream = visible(facts["stream"])
            self._is_stepwise = facts["total"] is not None
            self._begin(text, facts["total"])
        elif "tasks" in facts:
            self._bar.update(self._task, description=text)
        elif "done" not in facts:
            self._move(self._bar.tasks[0].completed + 1)
            self._bar.console.print(f"  {text}")
        elif not self._is_stepwise:
            if facts["done"] == 0:
                self._begin(text, facts["total"])
            self._move(facts["done"])

    def _begin(self, doing: str, total: int | None) -> None:
        self._bar.remove_task(self._task)
        self._doing = f"{self._stream}: {doing}"
        self._task = self._bar.add_task(self._doing, total=total, count="")

    def _move(self, done: float) -> None:
        total = self._bar.tasks[0].total
        count = f"{done:,.0f}" if total is None else f"{done:,.0f} of {total:,.0f}"
        self._bar.update(self._task, completed=done, count=count, description=self._doing)


def _bar() -> "Progress":
    # Imported here, so that completion and commands without a terminal do not wait for it.
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=min(_WIDEST, max(4, err.width - _BESIDE))),
        TextColumn("{task.fields[count]}", markup=False),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        redirect_stdout=False,
    )


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show progress on standard error until the block ends, if standard error is a terminal.

    Yields a function that prints lines on standard output while the bar is shown.
    """
    if not err.is_terminal or err.is_dumb_terminal:
        yield say
        return
    bar = _bar()

    def say_above(text: str) -> None:
        if not out.is_terminal:
            say(text)
            return
        bar.stop()
        say(text)
        bar.start()

    handler, level, propagates = _Handler(bar), log.level, log.propagate
    with bar:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
        try:
            yield say_above
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagates


EXIT_OPERATOR = 1
EXIT_SOME_FAILED = 3
EXIT_TRY_AGAIN = 75
EXIT_INTERRUPTED = 130


def exit_code(errors: Iterable[PipelineError]) -> int:
    """Return the code for errors: 1 if the operator has to fix one, else 3 if a stream stopped.

    The more urgent a code is, the smaller it is. There is at least one error.
    """
    return min(map(_code, errors))


def exit_with(errors: Iterable[PipelineError], *others: int) -> None:
    """Print errors and exit with the smallest of their codes and the others, if there are any."""
    codes = [*others]
    for error in errors:
        print_error(str(error))
        codes.append(_code(error))
    if codes:
        sys.exit(min(codes))


class ReaderGoneError(Exception):
    """The reader of our output has closed it, as in `… | head`."""


@contextmanager
def reader_gone_raised() -> Iterator[None]:
    """Raise `ReaderGoneError` for a `BrokenPipeError`, for which click exits with code 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGoneError from error


@contextmanager
def exit_on_errors(interrupted: str) -> Iterator[None]:
    """Exit with one message for an operator error; bugs keep their traceback.

    `interrupted` is the next step after an interrupt, unless its exception has another one.
    """
    try:
        with _errors_printed(interrupted):
            yield
    except (ReaderGoneError, BrokenPipeError):  # exit like other filters
        _discard(sys.stdout)
        _discard(sys.stderr)
        sys.exit(128 + signal.SIGPIPE)


def run_plugin(command: click.Command, interrupted: str) -> NoReturn:
    """Run the command of a Singer plugin and exit; errors are one message on standard error."""
    with exit_on_errors(interrupted):
        try:
            # Like `main` of click, which would exit with code 1 if the output is closed.
            with command.make_context(command.name, sys.argv[1:]) as context:
                code = command.invoke(context)
        except click.exceptions.Exit as end:
            code = end.exit_code
        except click.ClickException as error:
            error.show()
            code = error.exit_code
    sys.exit(code)


@contextmanager
def _errors_printed(interrupted: str) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, click.Abort) as stop:
        interrupt = stop.__cause__ or stop  # of click's exception
        print_error(f"Interrupted. {str(interrupt) or interrupted}")
        sys.exit(EXIT_INTERRUPTED)
    except PipelineError as error:
        exit_with([error])
    except OSError as error:
        if _is_of_output(error):
            _discard(sys.stdout)
            problem, step = f"The output cannot be written ({error.strerror})", "Correct it"
        elif isinstance(error, FileNotFoundError) and _is_folder_gone():
            problem, step = "The current folder was deleted", "Change to another one"
        else:
            raise
        print_error(f"{problem}. {step} and run the command again.")
        sys.exit(EXIT_OPERATOR)


def _is_folder_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_WRITERS = (
    *("click.", "rich.", "singer_sdk.", "batch_pipeline.cli."),
    *("batch_pipeline.singer.tap", "batch_pipeline.singer.target.target"),
)


def _is_of_output(error: OSError) -> bool:
    """Return whether the output could not be written: the code that raised the error writes it."""
    *_, (frame, _line) = walk_tb(error.__traceback__)
    is_of_writer = frame.f_globals.get("__name__", "").startswith(_WRITERS)
    return is_of_writer and error.filename is None and error.errno in _FULL


def _discard(output: TextIO) -> None:
    """Discard an output, also what is still in a buffer."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def _code(error: PipelineError) -> int:
    if isinstance(error, StreamStoppedError):
        return EXIT_SOME_FAILED
    later = isinstance(error, RetryableError | ConflictError)
    return EXIT_TRY_AGAIN if later else EXIT_OPERATOR
