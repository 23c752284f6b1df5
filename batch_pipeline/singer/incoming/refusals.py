"""Why a line of somebody else's is not taken: one error for each kind of mistake.

Each names the line, the stream and the key as far as they are known. Nothing is read here.
"""

from dataclasses import dataclass
from typing import ClassVar

from batch_pipeline.domain.errors import ConfigurationError

_SHOWN = 80


def shown(value: object) -> str:
    """Give the beginning of a value as people can read it in a sentence."""
    try:
        text = repr(value)
    except RecursionError:
        return "something nested very deeply"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@dataclass(eq=False)
class MessageError(ConfigurationError):
    """A line of Singer's language cannot be taken; lines are counted from 1."""

    line: int
    problem: str
    stream: str | None = None
    key: str | None = None

    next_step: ClassVar[str] = "Correct the program that wrote the line"

    def sentence(self) -> str:
        stream = "" if self.stream is None else f", stream {self.stream!r}"
        key = "" if self.key is None else f", key `{self.key}`"
        return (
            f"Line {self.line}{stream}{key}: {self.problem}. It was not taken, nor is anything "
            f"that no printed STATE covers. {self.next_step}, then run again from the last STATE "
            f"that was printed."
        )


class LineNotJsonError(MessageError):
    """The line is no JSON, or no JSON that every reader understands the same way."""


class LineNotObjectError(MessageError):
    """The line is JSON, but no object."""


class LineTooLongError(MessageError):
    """The line is longer than the reader is willing to hold."""

    next_step = "Raise `max_line_bytes`, or let the tap write smaller records"


class DuplicateKeyError(MessageError):
    """An object has a key twice, of which readers would keep different ones."""


class UnknownMessageTypeError(MessageError):
    """`type` is none that Singer has."""


class MissingKeyError(MessageError):
    """A key that the type of message needs is not there."""


class WrongTypeError(MessageError):
    """A key has a value of another type than it must have."""


class SchemaMissingError(MessageError):
    """Records or files of a stream come before its SCHEMA."""

    next_step = "Let the tap write SCHEMA first"


class UnknownEncodingError(MessageError):
    """Files of a BATCH are of a format or compression that is not read here."""

    next_step = "Set `batch_config.encoding` of the tap to one of these"


class ManifestError(MessageError):
    """A BATCH lists no files, or one of them twice."""
