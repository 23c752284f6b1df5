"""Settles an inventory that is older than its storage: takes over what the manifests there say, or
sets them aside. Either way nothing is deleted, and publish numbers are never given twice.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.garbage import QUARANTINE_REMOVED_AT
from batch_pipeline.domain.item import Item
from batch_pipeline.domain.json_fields import MAX_BYTES
from batch_pipeline.domain.manifest import Manifest, PartFile
from batch_pipeline.domain.pointed import read_pointer
from batch_pipeline.domain.restored import (
    Adopted,
    Discarded,
    ManifestUnfitError,
    Newer,
    NotAdoptedError,
)
from batch_pipeline.domain.stream import Stream
from batch_pipeline.steps.newer import Pointers

Look = Callable[[PartFile], str | None]
_MOST_PROBLEMS = 100


class ItemTable(Protocol):
    """The meta table of the stream."""

    @property
    def name(self) -> str:
        """Its canonical name."""

    def items(self, batch: Batch) -> Sequence[Item]:
        """Read the items of a batch in id order."""


class Adopting(Protocol):
    """What takes over manifests."""

    def adopt(
        self, stream: Stream, meta_table: str, manifests: Sequence[Manifest], *, dry_run: bool
    ) -> Adopted:
        """Take over what manifests say, all of it or nothing.

        Raises:
            NotAdoptedError: they contradict the inventory or each other.
        """


class Counting(Protocol):
    """What goes on without manifests that were set aside."""

    def publish_counts(self, stream: str) -> Mapping[str, int]:
        """Read how often each job of a stream has published."""

    def count_past(self, numbers: Mapping[str, int], stream: str) -> None:
        """Let jobs never give publish numbers again that were given."""

    def release(self, stream: str) -> None:
        """Let the jobs of the stream go on."""


class MovingPointers(Pointers, Protocol):
    """Pointer files that can be set aside."""

    def set_aside(self, name: str, mark: str) -> bool:
        """Move a pointer file to the folder of a mark; tells whether it was there.

        Raises:
            StorageUnlistedError: it cannot be moved, and stays.
        """

    def discarded(self, mark: str) -> str:
        """Give the URI of the folder of a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What newer manifests are judged by, besides the inventory.

    `look` says what is wrong with a file by its size and its SHA-256, None if nothing is.
    """

    pointers: Pointers
    table: ItemTable
    look: Look


def adopt_newer(
    stream: Stream, newer: Newer, evidence: Evidence, inventory: Adopting, *, dry_run: bool
) -> Adopted:
    """Take over all newer manifests of a stream, or none.

    Every file that they name is looked at. `dry_run` does the same and leaves everything as it is.
    Memory is the manifests.

    Raises:
        NotAdoptedError: one is not what a manifest is, a file is not as it was published, or they
            contradict the inventory or each other.
        StorageUnlistedError: a manifest cannot be read.
    """
    problems: list[str] = []
    manifests: list[Manifest] = []
    for name in newer.names:
        try:
            manifest = read_pointer(evidence.pointers.read(name, MAX_BYTES), name, stream.storage)
        except ManifestUnfitError as error:
            problems.append(f"{name}: {error.problem}")
            continue
        if stream.storage.keep_quarantine is not None:
            manifest = _without_quarantine(manifest, evidence.look)
        manifests.append(manifest)
        problems += _wrong_files(manifest, evidence.look)
        if stream.user_table is not None:
            problems += _wrong_items(manifest, evidence.table)
    if problems:
        raise NotAdoptedError(stream.name, tuple(problems[:_MOST_PROBLEMS]))
    failpoint("adopt.read")
    return inventory.adopt(stream, evidence.table.name, manifests, dry_run=dry_run)


def _wrong_files(manifest: Manifest, look: Look) -> Iterator[str]:
    is_gone = manifest.origin is not None and QUARANTINE_REMOVED_AT in manifest.origin.facts
    quarantine = () if is_gone else manifest.quarantine_files
    for part in (*manifest.part_files, *quarantine):
        problem = look(part)
        if problem is not None:
            yield problem


def _without_quarantine(manifest: Manifest, look: Look) -> Manifest:
    """Mark a manifest whose quarantine files are all gone: they are not kept for ever."""
    files, origin = manifest.quarantine_files, manifest.origin
    if not files or origin is None or not all(look(part) for part in files):
        return manifest
    at = origin.published_at.isoformat()
    facts = {**origin.facts, QUARANTINE_REMOVED_AT: at}
    return replace(manifest, origin=replace(origin, facts=facts))


def _wrong_items(manifest: Manifest, table: ItemTable) -> Iterator[str]:
    """Look for the items of a manifest in a user's table, which may have been put back, too."""
    there = {item.id for item in table.items(manifest.batch)}
    origin = manifest.origin
    gone = [] if origin is None else [one.id for one in origin.items if one.id not in there]
    if gone:
        yield f"{table.name} has no item {gone[0]}, which batch {manifest.batch.key} holds"


def discard_newer(
    stream: Stream,
    newer: Newer,
    pointers: MovingPointers,
    inventory: Counting,
    *,
    mark: str,
    dry_run: bool,
) -> Discarded:
    """Set the pointer files of newer manifests aside, and let the stream go on without them.

    Part files stay where they are: their names are never given again, and who has been told of them
    can still read them. `mark` names the folder. Where a manifest does not tell its publish number,
    it counts as one more.

    Raises:
        StorageUnlistedError: a file cannot be read or moved; those before it are moved.
    """
    numbers = dict(inventory.publish_counts(stream.name))
    plain: Counter[str] = Counter()
    records = unread = 0
    for name, job in newer.jobs.items():
        try:
            manifest = read_pointer(pointers.read(name, MAX_BYTES), name, stream.storage)
        except ManifestUnfitError:
            unread += 1
            plain[job] += 1
            continue
        records += manifest.records
        if manifest.origin is not None:
            numbers[job] = max(numbers.get(job, 0), manifest.origin.publish_number)
    done = Discarded(
        stream=stream.name,
        manifests=len(newer.jobs),
        records=records,
        unread=unread,
        folder=pointers.discarded(mark) if newer.jobs else None,
    )
    if not dry_run:
        inventory.count_past({job: n + plain[job] for job, n in numbers.items()}, stream.name)
        failpoint("discard.counted")
        for name in newer.names:
            pointers.set_aside(name, mark)
        failpoint("discard.moved")
        inventory.release(stream.name)
    return done
