"""Whether the inventory is older than a stream's storage: checked before anything is planned.

It is asked once by each process, and again when the database was put back or its server started.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from batch_pipeline.model.errors import (
    JobPausedError,
    ManifestFileTakenError,
    PermissionDeniedError,
)
from batch_pipeline.model.manifest_file import (
    HELD,
    MAX_BYTES,
    Discarded,
    InventoryOlderError,
    ManifestUnfitError,
    UnknownManifests,
)
from batch_pipeline.model.stream import Stream
from batch_pipeline.steps.discard import discard_newer
from batch_pipeline.steps.restore_check import find_unknown_manifests
from batch_pipeline.storage.manifest_files import ManifestFiles, check_manifest_file

if TYPE_CHECKING:
    from batch_pipeline.settings.pipeline import Pipeline

log = logging.getLogger("batch_pipeline")
_LOOKS_LEFT_OUT = 15  # of one that ticks every few seconds: a listing may be long


@dataclass(slots=True)
class Checked:
    """What one process remembers of a stream: the database that was as new as the storage.

    Of one that is not, that is remembered for some looks.
    """

    mark: tuple[object, ...] = ()
    newer: UnknownManifests | None = None
    left_out: int = 0


def check_not_older(pipeline: "Pipeline", stream: Stream, checked: Checked | None = None) -> None:
    """Check that the inventory knows all manifests in a stream's storage; pause it otherwise.

    Costs one short query, and once for each process and start of the database a listing of names.

    Raises:
        InventoryOlderError: there are some that it does not know; the stream's jobs are paused.
        StorageUnavailableError: the storage cannot be asked.
    """
    known, inventory = checked or Checked(), pipeline.database.restore_check
    mark = inventory.fingerprint()
    if mark == known.mark and known.newer is None:
        return
    if mark == known.mark and known.newer is not None and known.left_out:
        known.left_out -= 1
        raise InventoryOlderError.of(known.newer, stream.storage.root)
    newer = unknown_manifests_of(pipeline, stream)
    if not newer.jobs:
        known.mark, known.newer = mark, None
        inventory.resume_stream(
            stream.name
        )  # who listed before somebody settled it may have held it
        return
    known.mark, known.newer, known.left_out = mark, newer, _LOOKS_LEFT_OUT
    error = InventoryOlderError.of(newer, stream.storage.root)
    log.error("%s", error)
    with suppress(PermissionDeniedError):  # a login that only works; it does nothing, at least
        inventory.pause_stream(stream.name, error.pause_reason)
    raise error


def check_not_held(pipeline: "Pipeline", stream: Stream) -> None:
    """Check that no process has found the inventory older than the storage; one short query.

    Raises:
        JobPausedError: one has, and nobody has settled it.
    """
    reason = pipeline.database.jobs.paused(stream.name)
    if reason is not None and reason.startswith(HELD):
        raise JobPausedError(stream.name, reason)


def unknown_manifests_of(pipeline: "Pipeline", stream: Stream) -> UnknownManifests:
    """Find the manifests of a stream's storage that the inventory knows nothing of.

    Raises:
        StorageUnavailableError: the storage cannot be asked.
    """
    return find_unknown_manifests(
        stream, pipeline.database.restore_check, ManifestFiles(stream.storage)
    )


def discard(pipeline: "Pipeline", stream: Stream, *, now: datetime, dry_run: bool) -> Discarded:
    """Set all manifests of a stream aside that the inventory does not know.

    So are those that have the name of another attempt's, which the inventory knows.

    Raises:
        StorageUnavailableError: one cannot be listed, read or moved.
    """
    pointers = ManifestFiles(stream.storage)
    jobs = {**unknown_manifests_of(pipeline, stream).jobs, **_taken(pipeline, stream, pointers)}
    newer = UnknownManifests(stream=stream.name, jobs=jobs)
    mark = f"{now:%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}"
    inventory = pipeline.database.restore_check
    return discard_newer(stream, newer, pointers, inventory, mark=mark, dry_run=dry_run)


def _taken(pipeline: "Pipeline", stream: Stream, pointers: ManifestFiles) -> dict[str, str]:
    """Find manifest files that are in the way of manifests which the inventory knows."""
    storage, jobs = pipeline.storage(stream), {}
    for manifest in pipeline.database.manifests.without_pointer(stream.name):
        uri = storage.pointer_uri(manifest)
        name = uri.rpartition("/")[2]
        try:
            check_manifest_file(pointers.read(name, MAX_BYTES), manifest, uri)
        except ManifestFileTakenError:
            jobs[name] = manifest.job
        except ManifestUnfitError:
            continue  # there is none
    return jobs
