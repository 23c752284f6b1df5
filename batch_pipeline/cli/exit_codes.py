"""Exit codes, and which one an error leaves."""

from collections.abc import Iterable

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


def _code(error: PipelineError) -> int:
    if isinstance(error, StreamStoppedError):
        return EXIT_SOME_FAILED
    later = isinstance(error, RetryableError | ConflictError)
    return EXIT_TRY_AGAIN if later else EXIT_OPERATOR
