"""Planned batches and their tries."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.partition_key import partition_key


class AttemptStatus(StrEnum):
    """Where an attempt stands; every status but `running` is final."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"  # its process ended without a word, or the database or Spark was gone
    CANCELLED = "cancelled"


class BatchState(StrEnum):
    """Where a batch stands, derived from its attempts."""

    PLANNED = "planned"
    RUNNING = "running"
    PUBLISHED = "published"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # not published, and its last attempt ended by no fault of the data
    DEAD = "dead"  # tried as often as the job allows, outages not counted; waits for a person
    CANCELLED = "cancelled"  # called off by a person
    SUPERSEDED = "superseded"  # split into smaller batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One planned id range of a job, unchanging. Weight in bytes, count in items.

    With `item_ids` only these ids of the range belong to it: late arrivals, or a list asked for.
    """

    id: int
    job: str
    id_range: IdRange
    weight: int
    count: int
    oversized: bool = False
    item_ids: tuple[int, ...] | None = None

    @property
    def key(self) -> str:
        """The partition key."""
        return partition_key(self.id_range)

    @property
    def label(self) -> str:
        """What messages call the batch: its partition key, or its range where ids are negative."""
        return str(self.id_range) if self.id_range.first_id < 0 else self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """A batch with the facts of its latest attempt."""

    batch: Batch
    state: BatchState
    attempts: int
    generation: int | None = None
    error: str | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at encoding a batch, numbered from 1; only the holder of `token` may end it.

    `generation` is what it would be published as; None where nobody asked.
    """

    id: int
    batch: Batch
    number: int
    token: UUID
    generation: int | None = field(default=None, compare=False)

    @property
    def stem(self) -> str:
        """Start of the names of all files that this attempt writes, unique over all attempts."""
        return f"{self.batch.job}-{self.batch.key}-a{self.number}-{self.token.hex[:8]}"
