"""Where a stream stands: what waits, for how long, and what stands in the way. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.schema_change import SchemaChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """So many batches with so many items and bytes."""

    batches: int = 0
    items: int = 0
    size_bytes: int = 0

    def plus(self, other: "Amount") -> "Amount":
        """Add up."""
        return Amount(
            batches=self.batches + other.batches,
            items=self.items + other.items,
            size_bytes=self.size_bytes + other.size_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The stream's own batches by state, late ones included, and the items that no batch has.

    `not_planned_for` is how long the oldest of these has been there, `not_published_for` how long
    the oldest batch that is not published has been planned; None where there is none or the table
    does not tell.
    """

    states: Mapping[BatchState, Amount] = field(default_factory=dict)
    items_not_planned: int = 0
    bytes_not_planned: int = 0
    not_planned_for: timedelta | None = None
    not_published_for: timedelta | None = None
    oldest_batch: str | None = None
    bookmark: int | None = None
    ceiling: int | None = None

    SHOWN: ClassVar[tuple[BatchState, ...]] = tuple(
        state for state in BatchState if state is not BatchState.SUPERSEDED
    )

    def batches(self, state: BatchState) -> int:
        """Give the number of batches in a state."""
        return self.states.get(state, Amount()).batches

    @property
    def waiting(self) -> Amount:
        """What is not published and will be: items without a batch, and unfinished batches."""
        total = Amount(items=self.items_not_planned, size_bytes=self.bytes_not_planned)
        for state, amount in self.states.items():
            if state in UNFINISHED:
                total = total.plus(amount)
        return total

    @property
    def total(self) -> Amount:
        """All items."""
        total = Amount(items=self.items_not_planned, size_bytes=self.bytes_not_planned)
        for amount in self.states.values():
            total = total.plus(amount)
        return total

    @property
    def oldest(self) -> timedelta | None:
        """How long the oldest item that waits has done so."""
        ages = [age for age in (self.not_planned_for, self.not_published_for) if age is not None]
        return max(ages, default=None)


UNFINISHED = frozenset(
    {
        BatchState.PLANNED,
        BatchState.RUNNING,
        BatchState.FAILED,
        BatchState.INTERRUPTED,
        BatchState.DEAD,
    }
)


MANY_PARTITIONS = 50_000  # Dagster advises at most 100,000 partitions an asset


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyPartitions:
    """An asset with at least `MANY_PARTITIONS` partitions."""

    stream: str
    asset: str
    partitions: int

    @property
    def sentence(self) -> str:
        """What is wrong, why, and the next step."""
        return (
            f"{self.asset} has {self.partitions:,} partitions. Dagster advises at most 100,000 an "
            f"asset: its pages read all of them, and each materialization takes about 3.5 KB of "
            f"its database. Choose a larger `batch.max_weight` and `batch.max_count` for "
            f"{self.stream}; batches that are planned already stay as they are."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Batches that are failed or dead for longer than a while; `first` is the oldest, with why."""

    batches: int = 0
    first: str | None = None
    error: str | None = None
    paused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """Where the live ranges of a job do not tile what its bookmarks call planned."""

    batches: int = 0
    overlaps: int = 0
    holes: int = 0
    doubled_items: int = 0
    worst: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStep:
    """The schema versions of the last two batches that were published, and what lies between."""

    newest: str
    version: int
    before: str | None = None
    version_before: int | None = None
    changes: tuple[SchemaChange, ...] = ()
