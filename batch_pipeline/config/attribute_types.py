"""The kinds of value that a stream file holds, as pydantic types.

One value at a time: text to size, duration, location or name; keys are not known here.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from batch_pipeline.config.units import parse_bytes, parse_duration
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.location import (
    MARK,
    S3_SCHEMES,
    as_s3,
    scheme_of,
    split_object,
    to_object_uri,
    to_path,
    to_uri,
)
from batch_pipeline.model.stream import STREAM_NAME

REFUSAL = "refused_value"
_Model = TypeVar("_Model")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_QUEUE = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]+)?/[^\s?#@]+")
_EXPECTED_QUEUE = "the URL of an SQS queue, https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=//)|(file):", re.IGNORECASE)
_EXPECTED_URI = "a file:///… URI without a host, or a path"
_EXPECTED_PREFIX = "s3://bucket or s3://bucket/prefix, without `.`, `..` or a range of bytes in it"

_EXPECTED = {
    **dict.fromkeys(("file", "path"), _EXPECTED_URI),
    **dict.fromkeys(S3_SCHEMES, _EXPECTED_PREFIX),
}


def refusal(problem: str, *, key: str = "") -> PydanticCustomError:
    """Make the validation error whose text is `problem`; `key` is a dotted path of the file."""
    return PydanticCustomError(REFUSAL, "{problem}", {"problem": problem, "key": key})


@contextmanager
def domain_refusals() -> Iterator[None]:
    """Raise what the model refuses as a validation error at the key that it names."""
    try:
        yield
    except InvalidValueError as error:
        shown = error.value.value if isinstance(error.value, Enum) else error.value
        problem = f"is {shown!r:.80}; expected {error.expected}"
        raise refusal(problem, key=error.name) from error


def variable_in(text: str) -> str | None:
    """Return `$NAME` of a text that is a variable, with or without braces, else None."""
    match = _VARIABLE.fullmatch(text)
    return None if match is None else f"${match[1] or match[2]}"


def stream_name(text: str) -> str:
    """Check the name of a stream."""
    if not STREAM_NAME.fullmatch(text):
        allowed = "1 to 100 letters, digits, '_', '.' or '-', starting with a letter, digit or '_'"
        raise refusal(f"is {text!r:.80}; expected {allowed}")
    return text


def absolute_uri(location: str, base: Path) -> str:
    """Resolve against `base`; `..` is taken out by the text, so symbolic links do not matter.

    Of a bucket it is the prefix of keys as it stands, without a slash at its end.

    Raises:
        InvalidValueError: it names no folder, and no bucket.
    """
    if scheme_of(location) in S3_SCHEMES:
        return _prefix(location)
    if _SCHEME.match(location):
        path = to_path(location)
    else:
        path = str(base.absolute() / Path(location).expanduser())
    return to_uri(os.path.normpath(path))


def _prefix(location: str) -> str:
    bucket, prefix = split_object(as_s3(location))
    prefix = prefix.rstrip("/")
    if MARK in location or {".", ".."} & {*prefix.split("/")}:
        raise InvalidValueError("location", location, _EXPECTED_PREFIX)
    return to_object_uri(bucket, prefix).rstrip("/")


def _location(text: str) -> str:
    if "{{" in text:
        raise refusal(f"is the template {text!r:.80}, which only a Dagster project's files may use")
    scheme = _SCHEME.match(text)
    name = (scheme[1] or scheme[2]).lower() if scheme else "path"
    if name not in _EXPECTED:
        problem = f"has the scheme {name}://, which this release cannot read or write"
        raise refusal(f"{problem}; expected s3://bucket/prefix, {_EXPECTED_URI}")
    try:
        absolute_uri(text, Path("/"))
    except (InvalidValueError, RuntimeError) as error:
        raise refusal(f"is not a usable location; expected {_EXPECTED[name]}") from error
    return text


def _queue(text: str) -> str:
    if not _QUEUE.fullmatch(text):
        raise refusal(f"is not a usable queue; expected {_EXPECTED_QUEUE}")  # may hold credentials
    return text


def _size(value: Any) -> int:
    with domain_refusals():
        return parse_bytes(value, name="")


def _duration(value: Any) -> timedelta:
    with domain_refusals():
        return value if isinstance(value, timedelta) else parse_duration(value, name="")


_QUANTITY_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}]}
Size = Annotated[int, BeforeValidator(_size), WithJsonSchema(_QUANTITY_SCHEMA)]
Duration = Annotated[timedelta, BeforeValidator(_duration), WithJsonSchema(_QUANTITY_SCHEMA)]
Location = Annotated[str, Field(min_length=1), AfterValidator(_location)]
QueueUrl = Annotated[str, Field(min_length=1), AfterValidator(_queue)]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]


class Section(BaseModel):
    """A mapping in a stream file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="after")
    def _fits_the_domain(self) -> Self:
        with domain_refusals():
            self.check()
        return self

    def check(self) -> None:
        """Build the domain value, whose own checks then speak for this section."""

    def to(self, model: type[_Model], **others: Any) -> _Model:
        """Return the model that has these fields; `others` are used in place of own values."""
        values = {name.rstrip("_"): getattr(self, name) for name in type(self).model_fields}
        return model(**values | others)
