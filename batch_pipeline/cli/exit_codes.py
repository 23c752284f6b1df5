"""Exit codes, and how errors end a command."""

import os
import signal
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import click

from batch_pipeline.cli.console import complain
from batch_pipeline.model.errors import (
    ConflictError,
    PipelineError,
    RetryableError,
    StreamStoppedError,
)

EXIT_OPERATOR = 1
EXIT_SOME_FAILED = 3
EXIT_TRY_AGAIN = 75
EXIT_INTERRUPTED = 130


def exit_code(errors: Iterable[PipelineError]) -> int:
    """Return the code for errors.

    What the operator has to fix stands before a stream that stopped unexpectedly, and this before
    what only has to be tried again later.
    """
    codes = {_code(error) for error in errors}
    return next(
        (code for code in (EXIT_OPERATOR, EXIT_SOME_FAILED) if code in codes), EXIT_TRY_AGAIN
    )


def exit_with(errors: Collection[PipelineError]) -> None:
    """Print errors and exit with their code; return if there are none."""
    for error in errors:
        complain(str(error))
    if errors:
        sys.exit(exit_code(errors))


class ReaderGoneError(Exception):
    """The reader of our output has closed it, as in `… | head`."""


@contextmanager
def exit_on_errors(interrupted: str) -> Iterator[None]:
    """Exit with one message for an error of the operator; bugs keep their traceback."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        complain(f"Interrupted. {interrupted}")
        sys.exit(EXIT_INTERRUPTED)
    except (ReaderGoneError, BrokenPipeError):  # end as every filter does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except PipelineError as error:
        exit_with([error])


def _code(error: PipelineError) -> int:
    if isinstance(error, StreamStoppedError):
        return EXIT_SOME_FAILED
    later = isinstance(error, RetryableError | ConflictError)
    return EXIT_TRY_AGAIN if later else EXIT_OPERATOR
