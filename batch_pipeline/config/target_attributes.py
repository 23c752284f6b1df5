"""The keys of `targets` in a stream file: where published batches are loaded.

What a target does with them is not known here, nor is a variable's value ever looked up.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from math import isfinite
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from batch_pipeline.config.attribute_types import Duration, Section, Text, refusal, variable_in
from batch_pipeline.model.load import (
    TARGET_NAME,
    MessageMode,
    PostgresTarget,
    SingerTarget,
    WriteMode,
)

_SECRET = re.compile(r"passw|passphrase|secret|token|api_?key|private_?key|credential", re.I)


def target_name(text: str) -> str:
    """Check the name of a target."""
    if not TARGET_NAME.fullmatch(text):
        allowed = "1 to 100 letters, digits, '_', '.' or '-', starting with a letter, digit or '_'"
        raise refusal(f"is the name {text!r:.80}; expected {allowed}")
    return text


def _variable(text: str) -> str:
    """Check a variable; the text is never repeated, for it may hold a password."""
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
        raise refusal(f"is {value!r:.80}, which has an open quote; close it") from error
    if not isinstance(words, list | tuple) or not all(isinstance(one, str) for one in words):
        raise refusal("is not a command; expected a line such as target-csv, or a list of words")
    if not words or not all(words):
        raise refusal("is empty; expected a command line such as target-csv")
    if words[0].startswith("~"):
        problem = f"starts with {words[0]!r:.80}, whose ~ no shell resolves"
        raise refusal(f"{problem}; write the path in full, or a name on the PATH")
    if any(one == "--config" or one.startswith("--config=") for one in words):
        raise refusal("names a --config; write what is in that file below `config`")
    return tuple(words)


def _config(value: Any) -> Any:
    if not isinstance(value, dict):
        raise refusal("is not a mapping; expected the keys of the target's configuration")
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise refusal(f"cannot be written as JSON ({error}); put dates in quotes") from error
    for path, one in _leaves(value, ()):
        if isinstance(one, float) and not isfinite(one):
            place = ".".join(path)
            raise refusal(f"has no finite number at {place}; write one, or leave the key out")
        if _is_secret(path, one):
            problem = f"holds a secret at {'.'.join(path)}, which a stream file must not"
            raise refusal(f"{problem}; write $NAME of an environment variable that holds it")
    return _with_plain_variables(value)


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values that are neither mappings nor lists, with the keys above them."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _leaves(one, (*path, str(name)))
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one, path)
    else:
        yield path, value


def _is_secret(path: tuple[str, ...], value: Any) -> bool:
    """Return whether a text looks like a secret."""
    if not isinstance(value, str) or not value or variable_in(value):
        return False
    with suppress(ValueError):
        return bool(_SECRET.search(path[-1]) or urlsplit(value).password)
    return False


def _with_plain_variables(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _with_plain_variables(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_plain_variables(one) for one in value]
    return variable_in(value) or value if isinstance(value, str) else value


_WORDS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
Command = Annotated[tuple[str, ...], BeforeValidator(_command), WithJsonSchema(_WORDS)]
Variable = Annotated[str, AfterValidator(_variable)]
TargetConfig = Annotated[dict[str, Any], BeforeValidator(_config)]
TargetName = Annotated[str, AfterValidator(target_name)]


class PostgresTargetAttributes(Section):
    """A table that batches are copied into."""

    conn: Variable = Field(
        description="$NAME of an environment variable with the URL of the database."
    )
    schema_: Text = Field("public", alias="schema", description="Its schema (default public).")
    table: Text | None = Field(
        None, description="Its name (default: the stream's name in messages)."
    )
    mode: WriteMode = Field(
        WriteMode.APPEND,
        description="append, or upsert: the newest record of a key stays (default append).",
    )


class TargetAttributes(Section):
    """One target: a Postgres table, or any Singer target."""

    postgres: PostgresTargetAttributes | None = Field(
        None, description="A Postgres table, loaded by COPY."
    )
    command: Command | None = Field(
        None, description="Instead of `postgres`: command line of a Singer target."
    )
    config: TargetConfig | None = Field(
        None, description="Its configuration; $NAME is taken from the environment."
    )
    messages: MessageMode | None = Field(
        None,
        description="Kind of messages; auto: BATCH if the target reads such files (default: auto).",
    )
    timeout: Duration | None = Field(
        None,
        description="How long it may be idle before it is stopped (seconds, or with a unit; "
        "default: 30m).",
    )

    def check(self) -> None:
        if (self.postgres is None) == (self.command is None):
            raise refusal("needs either `postgres` or `command`")
        if self.postgres is not None:
            for name in ("config", "messages", "timeout"):
                if getattr(self, name) is not None:
                    raise refusal(f"has `{name}`, which goes with `command` only")
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise refusal("has a `timeout` of 0 s; expected more")

    def to_model(self, name: str) -> PostgresTarget | SingerTarget:
        """Return the model."""
        if self.postgres is not None:
            return self.postgres.to(PostgresTarget, name=name)
        given: dict[str, Any] = {
            key: value
            for key in ("config", "messages", "timeout")
            if (value := getattr(self, key)) is not None
        }
        return SingerTarget(name=name, command=self.command or (), **given)
