"""Repair the effects of a crash: running attempts without a process, missing manifest files."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from batch_pipeline.model.errors import ManifestFileTakenError, ManifestFileUnavailableError
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.progress import track

if TYPE_CHECKING:
    from batch_pipeline.inventory.attempts import FencedAttempts
    from batch_pipeline.inventory.manifests import Manifests
    from batch_pipeline.storage.part_storage import PartFileStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """Numbers of attempts closed and manifest files written.

    `troubles` are the errors of manifest files that could not be written.
    """

    attempts: int
    pointers: int
    troubles: tuple[ManifestFileUnavailableError, ...] = ()


def pointer_of(manifest: Manifest, published: "Manifests", storage: "PartFileStorage") -> str:
    """Return the URI of a manifest's file; write the file unless its part files were removed.

    Raises:
        ManifestFileUnavailableError: it cannot be written.
    """
    if published.removal(manifest) is None:
        return storage.point_to(published.with_origin(manifest))
    return storage.pointer_uri(manifest)


def reconcile(
    job: str, attempts: "FencedAttempts", manifests: "Manifests", storage: "PartFileStorage"
) -> Reconciled:
    """Close dead attempts of a job and write missing manifest files.

    Safe to repeat, also while workers run. If the name of a manifest file is taken, the others are
    still written.
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
            break  # the remaining files would fail in the same way
        attempts.record_pointer(manifest, uri)
        pointers += 1
    return Reconciled(attempts=closed, pointers=pointers, troubles=tuple(troubles))
