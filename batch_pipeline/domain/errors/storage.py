"""Station 7: part files and pointer files that cannot be written, read, archived or deleted."""

from dataclasses import dataclass

from batch_pipeline.domain.errors.base import ConfigurationError, RetryableError


@dataclass(eq=False)
class StorageUnavailableError(ConfigurationError):
    """Part files cannot be written to or removed from the storage root."""

    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"Storage {self.uri} cannot be written ({self.reason}). Nothing was published and "
            f"half-written files were removed. Free space or correct `storage.root`, then run "
            f"again."
        )


@dataclass(eq=False)
class PartFilesElsewhereError(ConfigurationError):
    """Tasks told of a part file that is not on the disk which this process sees.

    `found_bytes` is the size of what is there; None where nothing is.
    """

    root: str
    uri: str
    size_bytes: int
    found_bytes: int | None

    def sentence(self) -> str:
        found = "is not there"
        if self.found_bytes is not None:
            found = f"has {self.found_bytes} B"
        return (
            f"Storage {self.root}: an executor wrote {self.uri} with "
            f"{self.size_bytes} B, and seen from here it {found}. Executors write "
            f"to another disk. Nothing was published; what they wrote is left on their disks. "
            f"Share the folder with all machines of the cluster at the same path, or let "
            f"`storage.root` be in S3, then run again."
        )


class PointerUnavailableError(StorageUnavailableError):
    """The pointer file of a batch that is published cannot be written."""

    def sentence(self) -> str:
        return (
            f"The pointer file {self.uri} cannot be written ({self.reason}). Its batch is "
            f"published, and consumers that ask the inventory have it. Mend that, and the next "
            f"reconcile, hourly or by its job in Dagster, writes the file."
        )


@dataclass(eq=False)
class PointerTakenError(PointerUnavailableError):
    """Another file has the name of a pointer file; it stays."""


@dataclass(eq=False)
class PartFileUnreachableError(RetryableError):
    """The store of a part file cannot be asked now, or refuses, so nothing is known of the file."""

    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The part file {self.uri} cannot be read now ({self.reason}). Nothing says that it is "
            f"not as it was published, and no batch counts as sent or loaded by this. Let the "
            f"store answer, then run again."
        )


@dataclass(eq=False)
class GarbageLeftError(ConfigurationError):
    """Files of a storage root cannot be listed or deleted."""

    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"Garbage in the storage {self.uri} cannot be collected ({self.reason}). What was not "
            f"deleted yet stays, and no file that is live was touched. Let this user list and "
            f"delete there, or correct `storage.root`, then run `batch-pipeline gc` again."
        )
