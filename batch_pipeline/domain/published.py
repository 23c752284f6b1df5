"""Published batches as they are looked at afterwards: what the inventory says of each of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from batch_pipeline.domain.manifest import PartFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Records counted somewhere, by where they went."""

    read: int = 0
    written: int = 0
    filtered: int = 0
    quarantined: int = 0

    @property
    def accounted(self) -> int:
        """Records that went somewhere."""
        return self.written + self.filtered + self.quarantined


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBatch:
    """The newest generation of a batch.

    `label` names it with its job. `batch` is counted for all of it, `items` is summed over its
    items, of which those in `unbalanced` (the first few ids) contradict themselves.
    `given_to_transform` are records that a transform was given, None without one. `files_removed`
    tells that its files were given up after they were loaded, so that none is to be there;
    `quarantine_removed` that the quarantine files were.
    `token` is the attempt's; without a `pointer_uri` nobody has pointed to it yet.
    """

    label: str
    generation: int
    part_files: tuple[PartFile, ...]
    quarantine_files: tuple[PartFile, ...]
    batch: Counted
    items: Counted
    unbalanced: tuple[int, ...] = ()
    given_to_transform: int | None = None
    files_removed: bool = False
    quarantine_removed: bool = False
    token: UUID | None = None
    pointer_uri: str | None = None

    @property
    def files(self) -> tuple[PartFile, ...]:
        """The files that are to be there."""
        if self.files_removed:
            return ()
        return self.part_files + (() if self.quarantine_removed else self.quarantine_files)

    def contradictions(self) -> Iterator[str]:
        """Say where the counters disagree; nothing when every record is accounted for."""
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
        given = self.batch.written if self.given_to_transform is None else self.given_to_transform
        if given != self.items.written:
            yield f"records written or transformed: {given}, {self.items.written} by its items"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """The pace and the losses of a batch that was published lately."""

    label: str
    read: int
    written: int
    quarantined: int
    seconds: float

    @property
    def records_per_second(self) -> float:
        """Records written in a second from claim to publish."""
        return self.written / self.seconds if self.seconds else 0.0

    @property
    def quarantined_ratio(self) -> float:
        """Share of the records read that were quarantined."""
        return self.quarantined / self.read if self.read else 0.0
