"""Repair the effects of a crash or of a restored backup.

After a crash there may be running attempts without a process, and published manifests without a
manifest file; `reconcile` closes and writes them.

An inventory that was restored from a backup does not know the manifests that were published after
the backup. Nothing is planned, published or deleted with it. `find_unknown_manifests` lists the
manifest files that it does not know, `ensure_inventory_current` pauses the stream if there are any,
and `discard_unknown_manifests` moves them aside so that the stream can continue. No file is
deleted, and no publish number is assigned twice.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING
from uuid import uuid4

from batch_pipeline.model.batch import IdRange
from batch_pipeline.model.errors import (
    OLDER,
    InventoryOlderError,
    JobPausedError,
    ManifestFileTakenError,
    ManifestFileUnavailableError,
    PermissionDeniedError,
)
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.garbage import Folder, ManifestFile, parse_name
from batch_pipeline.model.manifest import (
    MAX_BYTES,
    ManifestCounts,
    ManifestUnfitError,
    parse_manifest_file,
)
from batch_pipeline.model.progress import track
from batch_pipeline.model.stream import Stream
from batch_pipeline.storage.part_storage import PartFileStorage, check_manifest_file

if TYPE_CHECKING:
    from batch_pipeline.inventory.attempts import FencedAttempts
    from batch_pipeline.inventory.database import Database
    from batch_pipeline.inventory.manifests import Manifests

log = logging.getLogger("batch_pipeline")

_CHUNK = 5_000
_MAX_GENERATION = 2**31 - 1
_CHECKS_FROM_MEMORY = 15  # sensors check every few seconds, and listing a storage may take long
_Generation = tuple[str, IdRange, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """Numbers of attempts closed and manifest files written.

    `troubles` are the errors of manifest files that could not be written.
    """

    attempts: int
    pointers: int
    troubles: tuple[ManifestFileUnavailableError, ...] = ()


def reconcile(
    stream: str, attempts: "FencedAttempts", manifests: "Manifests", storage: PartFileStorage
) -> Reconciled:
    """Close the dead attempts of a stream and write its missing manifest files.

    Safe to repeat, also while workers run. If the name of a manifest file is taken, the others are
    still written.
    """
    closed = attempts.close_dead(stream)
    pointers = 0
    troubles: list[ManifestFileUnavailableError] = []
    for manifest in track(manifests.without_pointer(stream), "writing manifest files"):
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


@dataclass(slots=True)
class CheckedInventory:
    """The result of the last check of a stream in this process.

    `fingerprint` identifies the checked database. If the inventory was older than the storage,
    `unknown` has the manifests for the errors of the next checks, which do not list the storage.
    """

    fingerprint: tuple[object, ...] = ()
    unknown: Collection[str] = ()
    checks_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """Manifests that were moved to `folder`, or would be on a dry run.

    `records` counts the records of the readable manifests; consumers and targets may already have
    them.
    """

    stream: str
    manifests: int = 0
    records: int = 0
    unread: int = 0
    folder: str | None = None


def ensure_inventory_current(
    database: "Database", stream: Stream, checked: CheckedInventory | None = None
) -> None:
    """Pause the stream and raise if its storage has manifests that the inventory does not know.

    Runs one short query; the storage is listed once for each process and start of the database.

    Raises:
        InventoryOlderError: there are such manifests; the jobs of the stream are paused.
        StorageUnavailableError: the storage cannot be listed.
    """
    known, inventory = checked or CheckedInventory(), database.restore_check
    fingerprint = inventory.fingerprint()
    if fingerprint == known.fingerprint:
        if not known.unknown:
            return
        if known.checks_left:
            known.checks_left -= 1
            raise InventoryOlderError.of(stream.name, stream.storage.root, known.unknown)
    known.fingerprint, known.unknown = fingerprint, find_unknown_manifests(database, stream)
    if not known.unknown:
        # A process that listed the storage before the repair may have paused the stream after it.
        inventory.resume_stream(stream.name)
        return
    known.checks_left = _CHECKS_FROM_MEMORY
    error = InventoryOlderError.of(stream.name, stream.storage.root, known.unknown)
    log.error("%s", error)
    with suppress(PermissionDeniedError):  # the worker role may not pause, but still stops
        inventory.pause_stream(stream.name, error.pause_reason)
    raise error


def ensure_not_paused_as_older(database: "Database", stream: Stream) -> None:
    """Raise if a process has found the inventory older than the storage; runs one short query.

    Raises:
        JobPausedError: the stream is paused for that reason.
    """
    reason = database.jobs.paused(stream.name)
    if reason is not None and reason.startswith(OLDER):
        raise JobPausedError(stream.name, reason)


def find_unknown_manifests(database: "Database", stream: Stream) -> dict[str, str]:
    """Return the jobs of the manifest files that a stream's inventory does not know, by file name.

    Files are listed before the inventory is queried, so that manifests that are published
    concurrently are known. One file is read for each job that the inventory does not know. Memory
    is limited to a few thousand names and the result.

    Raises:
        StorageUnavailableError: the storage cannot be listed.
    """
    files, prefix = PartFileStorage(stream.storage), stream.storage.prefix
    unknown: dict[str, str] = {}
    of_unknown_jobs: dict[str, list[str]] = defaultdict(list)
    listed = parsed_names(files.manifest_names(f"{prefix}{stream.name}"))
    while some := list(islice(listed, _CHUNK)):
        mine, taken = database.restore_check.job_names(stream.name)
        known = {stream.name, *mine}
        candidates: dict[_Generation, str] = {}
        for name, parsed in some:
            job = parsed.head.removeprefix(prefix)
            if job in known:
                candidates[job, parsed.ids, parsed.generation] = name
            elif job.startswith(f"{stream.name}.") and job not in taken:
                of_unknown_jobs[job].append(name)
        unknown |= {
            candidates[one]: one[0]
            for one in database.stored_attempts.unknown_generations(stream.name, candidates)
        }
    for job, names in of_unknown_jobs.items():
        # Streams of another inventory may have the same name prefix, so the name is not enough.
        with suppress(ManifestUnfitError):
            first = parse_manifest_file(files.read_manifest(names[0], MAX_BYTES), names[0])
            if first.job is not None and first.job.stream == stream.name:
                unknown |= dict.fromkeys(names, job)
    return unknown


def discard_unknown_manifests(
    database: "Database", stream: Stream, *, now: datetime, dry_run: bool
) -> Discarded:
    """Move the manifest files of a stream that the inventory does not know to another folder.

    Manifest files that have the name of a manifest in the inventory, but other content, are moved
    as well. Part files stay: their names are never used again, and readers of the discarded
    manifests may still need them.

    Raises:
        StorageUnavailableError: a file cannot be listed, read or moved; earlier files were moved.
    """
    files = PartFileStorage(stream.storage)
    jobs = find_unknown_manifests(database, stream) | _taken_names(database, stream, files)
    mark = f"{now:%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}"
    inventory = database.restore_check
    numbers = dict(inventory.publish_counts(stream.name))
    without_number: Counter[str] = Counter()
    unknown_jobs: dict[str, ManifestCounts] = {}
    records = unread = 0
    for name, job in jobs.items():
        try:
            published = parse_manifest_file(files.read_manifest(name, MAX_BYTES), name)
        except ManifestUnfitError:
            unread += 1
            without_number[job] += 1
            continue
        records += published.records
        if published.number is None:
            without_number[job] += 1
        else:
            if job not in numbers:
                unknown_jobs[job] = published
            numbers[job] = max(numbers.get(job, 0), published.number)
    if not dry_run:
        counts = {job: number + without_number[job] for job, number in numbers.items()}
        inventory.raise_publish_counts(counts, stream.name, unknown_jobs)
        failpoint("discard.counted")
        for name in sorted(jobs):
            files.set_aside(name, mark)
        failpoint("discard.moved")
        inventory.resume_stream(stream.name)
    return Discarded(
        stream=stream.name,
        manifests=len(jobs),
        records=records,
        unread=unread,
        folder=files.discarded(mark) if jobs else None,
    )


def parsed_names(names: Iterable[str]) -> Iterator[tuple[str, ManifestFile]]:
    """Yield the names of manifest files, and leave out other files."""
    for name in names:
        parsed = parse_name(Folder.MANIFESTS, name)
        if not isinstance(parsed, ManifestFile) or not parsed.finished:
            continue
        if parsed.generation <= _MAX_GENERATION:
            yield name, parsed


def _taken_names(database: "Database", stream: Stream, files: PartFileStorage) -> dict[str, str]:
    """Return manifest files that have the names of other manifests, which the inventory knows."""
    jobs = {}
    for manifest in database.manifests.without_pointer(stream.name):
        uri = files.pointer_uri(manifest)
        name = uri.rpartition("/")[2]
        try:
            check_manifest_file(files.read_manifest(name, MAX_BYTES), manifest, uri)
        except ManifestFileTakenError:
            jobs[name] = manifest.job
        except ManifestUnfitError:
            continue  # the file does not exist
    return jobs
