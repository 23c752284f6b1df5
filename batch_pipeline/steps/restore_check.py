"""Detection of an inventory that is older than its storage, by the names of manifest files alone.

Files are listed before the inventory is queried, so that a manifest which is published meanwhile is
known by then. One file is opened for each job that the inventory does not know.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol

from batch_pipeline.model.garbage import Folder, ManifestFile, parse_name
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.manifest_file import (
    MAX_BYTES,
    ManifestUnfitError,
    UnknownManifests,
    stream_of,
)
from batch_pipeline.model.stream import Stream

_AT_ONCE = 5_000
_MOST_GENERATION = 2**31 - 1
_Generation = tuple[str, IdRange, int]


class OlderInventory(Protocol):
    """Queries of an inventory that may be older than its storage."""

    def job_names(self, stream: str) -> tuple[Collection[str], Collection[str]]:
        """Read the names of the jobs of a stream, and of all other jobs."""

    def unknown_generations(
        self, stream: str, candidates: Sequence[_Generation]
    ) -> Collection[_Generation]:
        """Return those generations of batches that no attempt was published as."""


class ManifestFileReader(Protocol):
    """The manifest files of a storage root."""

    def names(self, start: str) -> Iterable[str]:
        """List the names that begin so.

        Raises:
            StorageUnavailableError: they cannot be listed.
        """

    def read(self, name: str, most: int) -> bytes:
        """Read a manifest file of so many bytes at most.

        Raises:
            ManifestUnfitError: it is gone or too large.
            StorageUnavailableError: it cannot be read.
        """


def find_unknown_manifests(
    stream: Stream, inventory: OlderInventory, files: ManifestFileReader
) -> UnknownManifests:
    """Find the manifest files of a stream that its inventory does not know.

    Memory is some thousand names, and those that are found.

    Raises:
        StorageUnavailableError: the storage cannot be listed.
    """
    prefix = stream.storage.prefix
    mine, others = inventory.job_names(stream.name)
    known, taken = {stream.name, *mine}, set(others)
    unknown: dict[str, str] = {}
    of_unknown_jobs: dict[str, list[str]] = defaultdict(list)
    listed = _parsed_names(files.names(f"{prefix}{stream.name}"))
    while some := list(islice(listed, _AT_ONCE)):
        candidates: dict[_Generation, str] = {}
        for name, named in some:
            job = named.head.removeprefix(prefix)
            if job in known:
                candidates[job, named.ids, named.generation] = name
            elif job.startswith(f"{stream.name}.") and job not in taken:
                of_unknown_jobs[job].append(name)
        unknown |= {
            candidates[one]: one[0]
            for one in inventory.unknown_generations(stream.name, [*candidates])
        }
    for job, names in of_unknown_jobs.items():
        if _is_of(stream, names[0], files):
            unknown |= dict.fromkeys(names, job)
    return UnknownManifests(stream=stream.name, jobs=unknown)


def _parsed_names(names: Iterable[str]) -> Iterator[tuple[str, ManifestFile]]:
    for name in names:
        named = parse_name(Folder.MANIFESTS, name)
        if not isinstance(named, ManifestFile) or not named.finished:
            continue
        if named.generation <= _MOST_GENERATION:
            yield name, named


def _is_of(stream: Stream, name: str, files: ManifestFileReader) -> bool:
    """Return whether a job that the inventory does not know is the stream's, by one of its files.

    Others may be of streams of another inventory whose names begin alike.
    """
    with suppress(ManifestUnfitError):
        return stream_of(files.read(name, MAX_BYTES), name) == stream.name
    return False
