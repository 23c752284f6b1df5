"""Where published batches are loaded: a table of a Postgres server, or any Singer target."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from batch_pipeline.domain.errors import InvalidValueError

TARGET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class WriteMode(StrEnum):
    """What a batch does to the rows that a table has.

    With either, the next generation of a batch takes the place of the rows of the one before.
    """

    APPEND = "append"
    UPSERT = "upsert"  # by the stream's key properties; the newest record of a key stays


class MessageMode(StrEnum):
    """How records are handed to a Singer target."""

    AUTO = "auto"  # BATCH if a probe shows that the target reads it, else RECORD
    BATCH = "batch"
    RECORD = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Something that a stream's published batches are loaded into; its name is what is recorded."""

    name: str

    def __post_init__(self) -> None:
        if not TARGET_NAME.fullmatch(self.name):
            raise InvalidValueError("targets", self.name, f"a name such as {TARGET_NAME.pattern}")

    @property
    def keeps_last(self) -> bool:
        """Whether of two records of one key the one that comes last stays, so that order counts."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTarget(Target):
    """A table that is loaded by COPY.

    `conn` is `$NAME` of an environment variable with the URL of the database. Without a table name
    it is that of the stream in messages.
    """

    conn: str
    schema: str = "public"
    table: str | None = None
    mode: WriteMode = WriteMode.APPEND

    @property
    def keeps_last(self) -> bool:
        """Whether of two records of one key the one that comes last stays."""
        return self.mode is WriteMode.UPSERT


@dataclass(frozen=True, slots=True, kw_only=True)
class SingerTarget(Target):
    """A Singer target that is run as a process of its own.

    `command` is its command line without `--config`; values of `config` that are `$NAME` are taken
    from the environment. `timeout` is how long it may go without reading, saying or doing anything.
    """

    command: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    messages: MessageMode = MessageMode.AUTO
    timeout: timedelta = timedelta(minutes=30)

    def __post_init__(self) -> None:
        Target.__post_init__(self)
        if not self.command:
            raise InvalidValueError(f"targets.{self.name}.command", "", "a command line")
