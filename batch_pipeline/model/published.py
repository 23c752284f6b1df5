"""Published batches as recorded in the inventory, for verification and statistics.

`PublishedBatch` has the counters and files of a batch, `RecentBatch` its throughput and losses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from batch_pipeline.model.manifest import PartFile


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """Number of records read, and by outcome."""

    read: int = 0
    written: int = 0
    filtered: int = 0
    quarantined: int = 0

    @property
    def accounted(self) -> int:
        """Return the number of records with an outcome."""
        return self.written + self.filtered + self.quarantined


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBatch:
    """Newest generation of a batch.

    `label` identifies it with its job. `batch` has the counters of the batch, `items` the sum over
    its items; `unbalanced` are the first ids of items whose counters do not add up.
    `given_to_transform` counts the input of a transform, None without one. `files_removed` states
    that its files were deleted after loading, `quarantine_removed` that the quarantine files were.
    `token` is the attempt's; `pointer_uri` is None until the manifest file is written.
    """

    label: str
    generation: int
    part_files: tuple[PartFile, ...]
    quarantine_files: tuple[PartFile, ...]
    batch: RecordCounts
    items: RecordCounts
    unbalanced: tuple[int, ...] = ()
    given_to_transform: int | None = None
    files_removed: bool = False
    quarantine_removed: bool = False
    token: UUID | None = None
    pointer_uri: str | None = None

    @property
    def files(self) -> tuple[PartFile, ...]:
        """Return the files that must exist."""
        if self.files_removed:
            return ()
        return self.part_files + (() if self.quarantine_removed else self.quarantine_files)

    def contradictions(self) -> Iterator[str]:
        """Yield the contradictions between the counters; none if every record is accounted for."""
        if self.unbalanced:
            ids = ", ".join(map(str, self.unbalanced))
            yield f"read is not written + filtered + quarantined for the items {ids}"
        if self.items.read != self.items.accounted and not self.unbalanced:
            yield f"its items read {self.items.read} and account for {self.items.accounted}"
        if self.batch.read != self.items.read:
            yield f"records read: {self.batch.read}, {self.items.read} by its items"
        files = sum(part.records for part in self.part_files)
        if self.batch.written != files:
            yield f"records written: {self.batch.written}, {files} in its part files"
        given = self.given_to_transform
        expected = self.batch.written if given is None else given
        if expected != self.items.written:
            yield f"records written or transformed: {expected}, {self.items.written} by its items"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentBatch:
    """Throughput and losses of a recently published batch."""

    label: str
    read: int
    written: int
    quarantined: int
    seconds: float

    @property
    def records_per_second(self) -> float:
        """Return the records written per second, from claim to publishing."""
        return self.written / self.seconds if self.seconds else 0.0

    @property
    def quarantined_ratio(self) -> float:
        """Return the share of quarantined records among those read."""
        return self.quarantined / self.read if self.read else 0.0
