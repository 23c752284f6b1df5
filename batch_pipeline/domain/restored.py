"""An inventory that is older than its storage: what that is, and what is said of it. Values only.

It was restored from a backup, or begun anew, while the storage holds what was published since.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from batch_pipeline.domain.errors import ConfigurationError, StorageUnavailableError

HELD = "the inventory is older than the storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Newer:
    """Pointer files of a stream that its inventory knows nothing of; the jobs by their names."""

    stream: str
    jobs: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the files, in their order."""
        return tuple(sorted(self.jobs))


@dataclass(eq=False)
class StorageUnlistedError(StorageUnavailableError):
    """Pointer files of a storage cannot be listed, read or moved."""

    def sentence(self) -> str:
        return (
            f"The manifests in {self.uri} cannot be looked at ({self.reason}), so nobody knows "
            f"whether the inventory is as new as they are. Nothing was planned. Mend the storage, "
            f"then try again."
        )


@dataclass(eq=False)
class InventoryOlderError(StorageUnavailableError):
    """The storage holds manifests that the inventory knows nothing of; `reason` names them."""

    stream: str

    @classmethod
    def of(cls, newer: Newer, root: str) -> "InventoryOlderError":
        """Say how many there are, and the first one."""
        count = len(newer.jobs)
        return cls(root, f"manifests unknown to it: {count}, {newer.names[0]} first", newer.stream)

    def sentence(self) -> str:
        return (
            f"{self.stream}: {HELD} {self.uri}: {self.reason}. It was restored from a backup, or "
            f"is another one. Nothing was registered, planned or claimed, and the stream is "
            f"paused. `batch-pipeline reconcile {self.stream} --discard` sets the manifests aside "
            f"and continues from the backup (--dry-run shows what it would do). To keep them, "
            f"restore the inventory to a later point in time."
        )

    @property
    def pause_reason(self) -> str:
        """Say it in short, for whoever meets the paused job."""
        return (
            f"{HELD}: {self.reason}; run `batch-pipeline reconcile {self.stream} --discard`, or "
            f"restore the inventory to a later point in time"
        )


@dataclass(eq=False)
class ManifestUnfitError(ConfigurationError):
    """A pointer file is not what this product writes."""

    name: str
    problem: str

    def sentence(self) -> str:
        return f"The manifest {self.name} cannot be read: {self.problem}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """Manifests that were set aside, or would be, and where they are then.

    `records` are those of the manifests that could be read: consumers and targets may have them.
    """

    stream: str
    manifests: int = 0
    records: int = 0
    unread: int = 0
    folder: str | None = None
