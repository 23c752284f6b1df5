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
            f"paused. `batch-pipeline reconcile {self.stream} --adopt` takes over what they say; "
            f"`--discard` sets them aside and goes on from the backup; --dry-run only tells."
        )

    @property
    def pause_reason(self) -> str:
        """Say it in short, for whoever meets the paused job."""
        return (
            f"{HELD}: {self.reason}; `batch-pipeline reconcile {self.stream}` with --adopt or "
            f"--discard ends that"
        )


@dataclass(eq=False)
class ManifestUnfitError(ConfigurationError):
    """A pointer file does not say what an inventory needs, or says what cannot be."""

    name: str
    problem: str

    def sentence(self) -> str:
        return f"The manifest {self.name} cannot be adopted: {self.problem}."


@dataclass(eq=False)
class NotAdoptedError(ConfigurationError):
    """Manifests of a stream contradict its inventory, its storage or each other."""

    stream: str
    problems: tuple[str, ...]

    def sentence(self) -> str:
        more = len(self.problems) - 1
        others = f" (more problems: {more}, --json lists all)" if more else ""
        return (
            f"{self.stream}: the manifests cannot be adopted: {self.problems[0]}{others}. Nothing "
            f"was changed, and the stream stays paused. Mend that, restore a newer backup, or set "
            f"them aside by `batch-pipeline reconcile {self.stream} --discard`."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """What an inventory took over from manifests, or would.

    `attempts_lost` are tries that some attempt's number tells of and nobody knows any more;
    `numbers_lost` are publish numbers that no manifest has. `items_again` are ranges of files that
    were registered anew, since no manifest has them.
    """

    stream: str
    manifests: int = 0
    records: int = 0
    items: int = 0
    items_again: int = 0
    batches: int = 0
    attempts_lost: int = 0
    numbers_lost: int = 0


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
