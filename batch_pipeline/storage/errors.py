"""Failures of file systems, which are `OSError`s, and their reasons.

What may pass when it is repeated, and what is wrong with the access as a whole, is an
`UnreachableError`: it says nothing about a file.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from batch_pipeline.model.errors import RetryableError

NO_BUCKET = "there is no such bucket"
OTHER_VERSION = "another version of the object is there"


class UnreachableError(ConnectionError):
    """A store does not answer, is too busy, or refuses the credentials."""


def is_missing_bucket(error: OSError) -> bool:
    """Return whether there is no such bucket, which says nothing about any object."""
    return error.strerror == NO_BUCKET


def reason_of(error: OSError) -> str:
    """Return the reason why the system, or a store, refused."""
    text = error.strerror or str(error) or type(error).__name__
    is_plain = error.errno is not None and text == os.strerror(error.errno)
    return text.lower() if is_plain else text


@contextmanager
def raise_as(build: Callable[[str], Exception]) -> Iterator[None]:
    """Raise an `OSError` of the block as the error that `build` makes of its reason."""
    try:
        yield
    except OSError as error:
        raise build(reason_of(error)) from error


def part_file_unreachable(uri: str, reason: str) -> RetryableError:
    """Build the error of a part file whose store is unreachable now, or refuses."""
    return RetryableError(
        f"The part file {uri} cannot be read now ({reason}). Nothing says that it is "
        f"not as it was published, and no batch counts as sent or loaded by this. Let the "
        f"store answer, then run again."
    )
