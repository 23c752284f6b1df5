"""Jobs: names for work on a meta table, each with its own bookmarks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batch_pipeline.domain.batch import BatchState, BatchStatus
from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.filter import Filter, is_storable
from batch_pipeline.domain.table_identity import TableIdentity

MAX_NAME = 200
_STORABLE = "text without NUL characters and unpaired surrogates"
_ENDED = frozenset(
    {BatchState.PUBLISHED, BatchState.DEAD, BatchState.CANCELLED, BatchState.SUPERSEDED}
)


class JobKind(StrEnum):
    """What a job is for."""

    INCREMENTAL = "incremental"
    BACKFILL = "backfill"  # history, planned at once
    LATE = "late"  # items that appeared below a bookmark


def check_storable(name: str, text: str) -> str:
    """Return a text that databases can hold.

    Raises:
        InvalidValueError: it holds NUL, or what is no UTF-8; `name` says which argument it is.
    """
    if not is_storable(text):
        raise InvalidValueError(name, text, _STORABLE)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """Who a job is (name and canonical name of its meta table) and how it goes about its work.

    `stream` is set for jobs of a stream. A batch is tried at most `max_attempts` times; with
    `bisect` it is then split until the item that fails is alone. The filter never changes, and
    neither does the identity of the table; None where it is not known.

    Raises:
        InvalidValueError: the name is empty, too long or not printable; `max_attempts` is below 1.
    """

    name: str
    meta_table: str
    kind: JobKind = JobKind.INCREMENTAL
    stream: str | None = None
    where: Filter | None = None
    identity: TableIdentity | None = None
    max_attempts: int = 3
    bisect: bool = False

    def __post_init__(self) -> None:
        if not self.name.strip() or len(self.name) > MAX_NAME or not self.name.isprintable():
            raise InvalidValueError("job", self.name, f"1 to {MAX_NAME} printable characters")
        if self.max_attempts < 1:
            raise InvalidValueError("max_attempts", self.max_attempts, "at least 1")

    def config(self) -> dict[str, Any]:
        """Give what must never change in a job, as JSON."""
        where = {} if self.where is None else {"where": self.where.to_json()}
        return where if self.identity is None else where | self.identity.to_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the inventory knows it; `paused` tells why nothing of it is handed out."""

    id: int
    name: str
    meta_table: str
    kind: JobKind
    stream: str | None
    max_attempts: int
    bisect: bool
    paused: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """A job with its batches by state, and what waits to be handed out; weight in bytes.

    Planned and interrupted batches wait; `parent` is the job whose late arrivals it takes.
    """

    job: Job
    parent: str | None
    publish_count: int
    batches: Mapping[BatchState, int]
    waiting_items: int
    waiting_weight: int

    @property
    def is_finished(self) -> bool:
        """Tell whether all of a backfill is published, dead, cancelled or split."""
        is_backfill = self.job.kind is JobKind.BACKFILL
        return is_backfill and bool(self.batches) and _ENDED.issuperset(self.batches)

    @property
    def waiting_batches(self) -> int:
        """How many batches wait to be handed out."""
        waiting = (BatchState.PLANNED, BatchState.INTERRUPTED)
        return sum(self.batches.get(state, 0) for state in waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Where a job and its late arrivals stand.

    `batches` counts by state; `unfinished` are those that are neither published nor split, in id
    order. Items that are not planned yet are counted up to the end of the table, whatever their
    weight; `ceiling` says up to which id they may be acquired, and what holds it back. `paused` is
    the reason, maybe empty, None when the job is not paused.
    """

    name: str
    meta_table: str
    paused: str | None
    batches: Mapping[BatchState, int]
    unfinished: Sequence[BatchStatus]
    items_not_planned: int
    weight_not_planned: int
    ceiling: str
