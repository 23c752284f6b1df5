"""How readers that are given a bare file say that it is bad. The error itself is the domain's."""

from typing import Protocol

from batch_pipeline.domain.errors import BadFileError


class MakesBadFile(Protocol):
    """Makes the error that says that a whole file is bad."""

    def __call__(self, reason: str, *, line: int | None = None) -> BadFileError:
        """Make it."""
        ...
