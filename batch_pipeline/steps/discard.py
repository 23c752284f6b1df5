"""Sets manifests aside that the inventory does not know.

Nothing is deleted, and no publish number is assigned twice.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.manifest_file import (
    MAX_BYTES,
    Discarded,
    ManifestUnfitError,
    UnknownManifests,
    parse_manifest_file,
)
from batch_pipeline.model.stream import Stream
from batch_pipeline.steps.restore_check import ManifestFileReader


class Counting(Protocol):
    """What goes on without manifests that were set aside."""

    def publish_counts(self, stream: str) -> Mapping[str, int]:
        """Read how often each job of a stream has published."""

    def raise_publish_counts(self, numbers: Mapping[str, int], stream: str) -> None:
        """Let jobs never give publish numbers again that were given."""

    def resume_stream(self, stream: str) -> None:
        """Let the jobs of the stream go on."""


class MovableManifestFiles(ManifestFileReader, Protocol):
    """Manifest files that can be set aside."""

    def set_aside(self, name: str, mark: str) -> bool:
        """Move a manifest file to the folder of a mark; tells whether it was there.

        Raises:
            StorageUnavailableError: it cannot be moved, and stays.
        """

    def discarded(self, mark: str) -> str:
        """Give the URI of the folder of a mark."""


def discard_newer(
    stream: Stream,
    newer: UnknownManifests,
    pointers: MovableManifestFiles,
    inventory: Counting,
    *,
    mark: str,
    dry_run: bool,
) -> Discarded:
    """Set the manifest files of newer manifests aside, and let the stream go on without them.

    Part files stay where they are: their names are never given again, and who has been told of them
    can still read them. `mark` names the folder. A manifest without a publish number counts as one
    more.

    Raises:
        StorageUnavailableError: a file cannot be read or moved; those before it are moved.
    """
    numbers = dict(inventory.publish_counts(stream.name))
    plain: Counter[str] = Counter()
    records = unread = 0
    for name, job in newer.jobs.items():
        try:
            published = parse_manifest_file(pointers.read(name, MAX_BYTES), name)
        except ManifestUnfitError:
            unread += 1
            plain[job] += 1
            continue
        records += published.records
        if published.number is None:
            plain[job] += 1
        else:
            numbers[job] = max(numbers.get(job, 0), published.number)
    done = Discarded(
        stream=stream.name,
        manifests=len(newer.jobs),
        records=records,
        unread=unread,
        folder=pointers.discarded(mark) if newer.jobs else None,
    )
    if not dry_run:
        inventory.raise_publish_counts(
            {job: n + plain[job] for job, n in numbers.items()}, stream.name
        )
        failpoint("discard.counted")
        for name in newer.names:
            pointers.set_aside(name, mark)
        failpoint("discard.moved")
        inventory.resume_stream(stream.name)
    return done
