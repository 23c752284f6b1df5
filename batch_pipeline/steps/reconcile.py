"""Closing what a crash left open: attempts without a process, manifests without a manifest file."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from batch_pipeline.model.errors import ManifestFileTakenError, ManifestFileUnavailableError
from batch_pipeline.model.garbage import Removal
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.progress import track
from batch_pipeline.ports import PartStorage


class Attempts(Protocol):
    """What is asked of the attempts."""

    def close_dead(self, job_name: str) -> int:
        """Close running attempts of a job whose process is gone; gives their number."""
        ...

    def record_pointer(self, manifest: Manifest, uri: str) -> None:
        """Record where the manifest file of a published manifest is."""
        ...


class Manifests(Protocol):
    """What is asked of the manifests."""

    def without_pointer(self, job_name: str) -> Iterable[Manifest]:
        """Read the manifests whose manifest file a crash left unwritten."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """Attempts closed and manifest files written; `troubles` say of others why they were not."""

    attempts: int
    pointers: int
    troubles: tuple[ManifestFileUnavailableError, ...] = ()


class Published(Protocol):
    """What is known of published manifests."""

    def with_origin(self, manifest: Manifest) -> Manifest:
        """Add to a manifest what its manifest file says beside it."""
        ...

    def removal(self, manifest: Manifest) -> Removal | None:
        """Tell when files of a manifest were given up; None where they are to be there."""
        ...


def pointer_of(manifest: Manifest, published: Published, storage: PartStorage) -> str:
    """Give the URI of a manifest's manifest file, written anew unless the files it names went.

    Raises:
        ManifestFileUnavailableError: it cannot be written.
    """
    if published.removal(manifest) is None:
        return storage.point_to(published.with_origin(manifest))
    return storage.pointer_uri(manifest)


def reconcile(
    job: str, attempts: Attempts, manifests: Manifests, storage: PartStorage
) -> Reconciled:
    """Bring inventory and storage of a job back in step. Safe to repeat, also beside workers.

    A manifest file whose name is taken does not keep others from being written.
    """
    closed = attempts.close_dead(job)
    pointers = 0
    troubles: list[ManifestFileUnavailableError] = []
    for manifest in track(manifests.without_pointer(job), "writing manifest files"):
        try:
            uri = storage.point_to(manifest)
        except ManifestFileUnavailableError as error:
            troubles.append(error)
            if isinstance(error, ManifestFileTakenError):
                continue
            break  # the next ones would fail alike
        attempts.record_pointer(manifest, uri)
        pointers += 1
    return Reconciled(attempts=closed, pointers=pointers, troubles=tuple(troubles))
