"""Types of the values in a stream file, as pydantic types, and the base class of its sections.

Each type parses one value, such as a size, duration, location, filter or command, without its key.
"""

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import parse_qsl, urlsplit

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
from batch_pipeline.model.filter import Filter, parse_filter
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
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=//)|(file|s3[an]?):", re.IGNORECASE)
_EXPECTED_URI = "a file:///… URI without a host, or a path"
_EXPECTED_PREFIX = "s3://bucket or s3://bucket/prefix, without `.`, `..` or a range of bytes in it"

_EXPECTED = {
    **dict.fromkeys(("file", "path"), _EXPECTED_URI),
    **dict.fromkeys(S3_SCHEMES, _EXPECTED_PREFIX),
}


def refusal(problem: str, *, key: str = "") -> PydanticCustomError:
    """Return a validation error with the text `problem`; `key` is a dotted path in the file."""
    return PydanticCustomError(REFUSAL, "{problem}", {"problem": problem, "key": key})


@contextmanager
def domain_refusals() -> Iterator[None]:
    """Convert an error of the model to a validation error at the key that it names."""
    try:
        yield
    except InvalidValueError as error:
        shown = error.value.value if isinstance(error.value, Enum) else error.value
        problem = f"is {shown!r:.80}; expected {error.expected}"
        raise refusal(problem, key=error.name) from error


def variable_in(text: str) -> str | None:
    """Return `$NAME` if a text is a variable, with or without braces, else None."""
    match = _VARIABLE.fullmatch(text)
    return None if match is None else f"${match[1] or match[2]}"


_NAME = "1 to 100 letters, digits, '_', '.' or '-', starting with a letter, digit or '_'"


def stream_name(text: str) -> str:
    """Check the name of a stream or target."""
    if not STREAM_NAME.fullmatch(text):
        raise refusal(f"is {text!r:.80}; expected {_NAME}")
    return text


def absolute_uri(location: str, base: Path) -> str:
    """Return the URI of a location, resolved against `base`.

    `..` is resolved lexically, without following symbolic links. The key prefix of a bucket is kept
    without a trailing slash.

    Raises:
        InvalidValueError: the location is neither a folder nor a bucket.
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
    if _VARIABLE.match(text):
        raise refusal(f"starts with a variable, which is not expanded; expected {_EXPECTED_URI}")
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


_URL = re.compile(r"[a-z][a-z0-9_]*(\+[a-z0-9_]+)?://.*")
# A password with `#`, `/` or `?`, which end the host of a URL; digits before them are a port.
_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*://[^:/?#@\[]*:(?![0-9]*[/?#])[^@]+@")
_URL_SECRETS = ("password", "passwd", "pwd", "passfile", "secret", "token")
_ADVICE = (
    "expected $NAME of an environment variable that holds the database URL, or a URL without a "
    "password"
)


def _connection(text: str) -> str:
    """Check the address of a database; errors never repeat the text, which may hold a password."""
    variable = variable_in(text)
    if variable is not None:
        return variable
    if not _URL.fullmatch(text):
        raise refusal(f"is neither a variable nor a database URL; {_ADVICE}")
    try:
        parts = urlsplit(text)
        has_password = parts.password is not None or _PASSWORD.match(text)
    except ValueError as error:
        raise refusal(f"is not a database URL; {_ADVICE}") from error
    options = [name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if has_password or any(secret in name for name in options for secret in _URL_SECRETS):
        raise refusal(f"holds a password, which a stream file must not; {_ADVICE}")
    return text


def _filter(value: Any) -> Filter:
    with domain_refusals():
        return parse_filter(value, "source.meta_table.where")


def _variable(text: str) -> str:
    """Check a variable; errors never repeat the text, which may hold a password."""
    variable = variable_in(text)
    if variable is None:
        raise refusal(
            "is not a variable; expected $NAME of an environment variable that holds a URL such as "
            "postgresql://user:password@host:5432/database"
        )
    return variable


def _command(value: Any) -> tuple[str, ...]:
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise refusal(f"is {value!r:.80}, which has an unclosed quote") from error
    if not isinstance(words, list | tuple) or not all(isinstance(one, str) for one in words):
        raise refusal("is not a command; expected a line such as target-csv, or a list of words")
    if not words or not all(words):
        raise refusal("is empty; expected a command line such as target-csv")
    if words[0].startswith("~"):
        problem = f"starts with {words[0]!r:.80}, but no shell expands ~"
        raise refusal(f"{problem}; expected a full path, or a name on the PATH")
    if any(one == "--config" or one.startswith("--config=") for one in words):
        raise refusal("contains --config; put the content of that file under `config`")
    return tuple(words)


_SECRET = re.compile(r"passw|passphrase|secret|token|api_?key|private_?key|credential", re.I)


def _config(value: Any) -> Any:
    if not isinstance(value, dict):
        raise refusal("is not a mapping; expected the keys of the target's configuration")
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise refusal(f"cannot be written as JSON ({error}); put dates in quotes") from error
    return _without_secrets(value, ())


def _without_secrets(value: Any, path: tuple[str, ...]) -> Any:
    """Return a configuration with its variables written as `$NAME`; refuse secrets and NaN."""
    if isinstance(value, dict):
        return {str(key): _without_secrets(one, (*path, str(key))) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_secrets(one, path) for one in value]
    if isinstance(value, float) and not isfinite(value):
        problem = f"has a number that is not finite at {'.'.join(path)}"
        raise refusal(f"{problem}; write a finite one, or omit the key")
    if not isinstance(value, str) or not value:
        return value
    variable = variable_in(value)
    if variable is None and (_SECRET.search(path[-1]) or _has_password(value)):
        problem = f"holds a secret at {'.'.join(path)}, which a stream file must not"
        raise refusal(f"{problem}; write $NAME of an environment variable that holds it")
    return variable or value


def _has_password(text: str) -> bool:
    try:
        return bool(urlsplit(text).password or _PASSWORD.match(text))
    except ValueError:
        return False


_QUANTITY = {"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}]}
_WORDS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_TERMS = {"type": "array", "items": {"type": "object"}}
_FILTER = {"anyOf": [_TERMS, {"type": "object"}, {"type": "null"}]}
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]
Size = Annotated[int, BeforeValidator(_size), WithJsonSchema(_QUANTITY)]
Duration = Annotated[timedelta, BeforeValidator(_duration), WithJsonSchema(_QUANTITY)]
Location = Annotated[Text, AfterValidator(_location)]
QueueUrl = Annotated[Text, AfterValidator(_queue)]
Connection = Annotated[Text, AfterValidator(_connection)]
Where = Annotated[Any, BeforeValidator(_filter), WithJsonSchema(_FILTER)]
Variable = Annotated[str, AfterValidator(_variable)]
Command = Annotated[tuple[str, ...], BeforeValidator(_command), WithJsonSchema(_WORDS)]
TargetConfig = Annotated[dict[str, Any], BeforeValidator(_config)]


class Section(BaseModel):
    """A mapping in a stream file; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    @model_validator(mode="after")
    def _fits_the_domain(self) -> Self:
        with domain_refusals():
            self.check()
        return self

    def check(self) -> None:
        """Build the domain value, whose own checks validate this section."""

    def to(self, model: type[_Model], **others: Any) -> _Model:
        """Return a model with the values of these fields; `others` override them."""
        values = {name.rstrip("_"): getattr(self, name) for name in type(self).model_fields}
        return model(**values | others)
