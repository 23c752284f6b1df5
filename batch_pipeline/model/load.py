"""Loads of published generations into targets, and the targets of a stream.

`Loading` is the input of a load, `Load` one attempt at it, `LoadRecord` and `TargetStatus` its
history. `PostgresTarget` and `SingerTarget` are the configured targets.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from batch_pipeline.model.errors import require
from batch_pipeline.model.manifest import Manifest

ALL_JOBS = "*"  # among the names of jobs that wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Generation to load.

    `publish_number` counts within the job of the batch. `label` identifies the batch, and its
    records in the target, within the stream. `is_backfill` states that the batch reprocesses items
    of other batches; `item_ids` are its items, empty while the stream has no published backfill,
    since until then no other label can have their records. `again` states that a repeated load was
    requested, `failed_before` that an earlier load failed.
    """

    stream: str
    publish_number: int
    label: str
    manifest: Manifest
    message_name: str
    item_ids: tuple[int, ...] = ()
    is_backfill: bool = False
    again: bool = False
    failed_before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Acknowledgement of a target.

    `already` states that the target had the generation from an earlier attempt, so nothing was
    sent. `state` is the last STATE value that it printed, `log` the end of its output, `mode` how
    the records were transferred.
    """

    records: int
    already: bool = False
    state: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    log: str = ""
    mode: str = ""


class LoadStatus(StrEnum):
    """Status of a load; every status but `running` is final."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # cancelled, or the process exited without reporting


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One try at loading a generation, numbered from 1; only the holder of `token` may end it."""

    id: int
    stream: str
    target: str
    label: str
    number: int
    token: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Claimed load of the first generation that the target lacks, with all pending ones."""

    load: Load
    loadings: tuple[Loading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRecord:
    """Load as stored in the inventory; `is_void` states that a repeated load was requested."""

    id: int
    target: str
    number: int
    status: LoadStatus
    run_id: str
    started_at: datetime
    finished_at: datetime | None
    records: int | None
    error: str | None
    generation: int
    mode: str | None
    is_void: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatus:
    """Status of a target: numbers of loaded, pending (`due`) and failed pending generations.

    `gone` counts generations that can no longer be loaded, since their files were removed. `error`
    is the error of the last failed generation that is still pending, `loaded_at` the end of the
    newest load.
    """

    target: str
    loaded: int = 0
    due: int = 0
    failed: int = 0
    gone: int = 0
    error: str | None = None
    loaded_at: datetime | None = None
    running: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedGeneration:
    """Generation that all targets of a stream have acknowledged, with the load of each."""

    label: str
    generation: int
    loads: tuple[LoadRecord, ...]

    @property
    def mark(self) -> int:
        """Return the id of the newest load."""
        return max(load.id for load in self.loads)

    @property
    def seconds(self) -> float:
        """Return the total duration of the loads."""
        spans = (load.finished_at - load.started_at for load in self.loads if load.finished_at)
        return sum(span.total_seconds() for span in spans)


TARGET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class WriteMode(StrEnum):
    """Effect of a batch on existing rows of a table.

    In both modes, a new generation of a batch replaces the rows of the previous one.
    """

    APPEND = "append"
    UPSERT = "upsert"  # by the stream's key properties; the newest record of a key is kept


class MessageMode(StrEnum):
    """Forms in which records are sent to a Singer target."""

    AUTO = "auto"  # BATCH if a probe shows that the target reads it, otherwise RECORD
    BATCH = "batch"
    RECORD = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Destination of a stream's published batches; loads are recorded under its name."""

    name: str

    def __post_init__(self) -> None:
        fits = TARGET_NAME.fullmatch(self.name)
        require(fits, "targets", self.name, f"a name such as {TARGET_NAME.pattern}")

    @property
    def keeps_last(self) -> bool:
        """Return whether the last record of a key wins, so that the order matters."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTarget(Target):
    """PostgreSQL table that is loaded by COPY.

    `conn` is `$NAME`, an environment variable with the URL of the database. The table name
    defaults to the name of the stream in messages.
    """

    conn: str
    schema: str = "public"
    table: str | None = None
    mode: WriteMode = WriteMode.APPEND

    @property
    def keeps_last(self) -> bool:
        """Return whether the last record of a key wins."""
        return self.mode is WriteMode.UPSERT


@dataclass(frozen=True, slots=True, kw_only=True)
class SingerTarget(Target):
    """Singer target, run as a separate process.

    `command` is its command line without `--config`; values of `config` that are `$NAME` are taken
    from the environment. `timeout` is the maximum time without input, output or CPU activity.
    """

    command: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    messages: MessageMode = MessageMode.AUTO
    timeout: timedelta = timedelta(minutes=30)

    def __post_init__(self) -> None:
        Target.__post_init__(self)
        require(self.command, f"targets.{self.name}.command", "", "a command line")
