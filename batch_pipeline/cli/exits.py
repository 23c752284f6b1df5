"""Exit codes, and which one an error leaves."""

from collections.abc import Iterable

from batch_pipeline.domain.errors import ConflictError, PipelineError, RetryableError

EXIT_OPERATOR = 1
EXIT_SOME_FAILED = 3
EXIT_TRY_AGAIN = 75
EXIT_INTERRUPTED = 130


def exit_code(errors: Iterable[PipelineError]) -> int:
    """Give the code for errors: trying again later is the answer only if it is for all of them."""
    later = all(isinstance(error, RetryableError | ConflictError) for error in errors)
    return EXIT_TRY_AGAIN if later else EXIT_OPERATOR
