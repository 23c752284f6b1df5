"""A published generation of a batch on its way into a target."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from batch_pipeline.domain.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What is to be loaded, and how it is known.

    `publish_number` counts within the job of the batch. `label` is the name of the batch within the
    stream, by which its records are found. `is_backfill` tells that it is one of a backfill, which
    brings items of other batches again; `item_ids` are its items, empty while the stream has no
    published backfill, since their records are under no other name then. `again` tells that
    somebody asked for it although the target has acknowledged this generation before,
    `failed_before` that an earlier load of it failed.
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
    """What a target acknowledged.

    `already` tells that it had this generation from an earlier attempt, so nothing was sent.
    `state` is the last STATE value that it printed, `log` the end of what it said, `mode` how the
    records were handed over.
    """

    records: int
    already: bool = False
    state: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    log: str = ""
    mode: str = ""


class LoadStatus(StrEnum):
    """Where a load stands; every status but `running` is final."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # called off, or its process ended without a word


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
    """What a claim got: the load of the first of the generations that the target still lacks."""

    load: Load
    loadings: tuple[Loading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRecord:
    """A load as it is looked at afterwards; `is_void` tells that it was asked for again."""

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
class LoadStanding:
    """How far a target is: generations that it has, that wait, and of these the ones that failed.

    `gone` counts those that it lacks and cannot get, since their files were removed before.

    `error` is what the last failed one that still waits came to, `loaded_at` the end of the newest
    load.
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
class InTargets:
    """A generation that all targets of a stream have acknowledged, with the load of each."""

    label: str
    generation: int
    loads: tuple[LoadRecord, ...]

    @property
    def mark(self) -> int:
        """The id of the newest load."""
        return max(one.id for one in self.loads)

    @property
    def seconds(self) -> float:
        """How long the loads took together."""
        spans = (one.finished_at - one.started_at for one in self.loads if one.finished_at)
        return sum(span.total_seconds() for span in spans)
