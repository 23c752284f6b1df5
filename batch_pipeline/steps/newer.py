"""Notices an inventory that is older than a storage, by the names of pointer files alone.

Files are listed first and the inventory is asked afterwards, so whoever publishes meanwhile is
known by then. One file is opened for each job that the inventory does not know.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol

from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.json_fields import MAX_BYTES
from batch_pipeline.domain.pointed import stream_of
from batch_pipeline.domain.restored import ManifestUnfitError, Newer
from batch_pipeline.domain.stored_file import Folder, PointerFile, parse_name
from batch_pipeline.domain.stream import Stream

_AT_ONCE = 5_000
_MOST_GENERATION = 2**31 - 1
_Asked = tuple[str, IdRange, int]


class OlderInventory(Protocol):
    """What the inventory is asked."""

    def job_names(self, stream: str) -> tuple[Collection[str], Collection[str]]:
        """Read the names of the jobs of a stream, and of all other jobs."""

    def unknown(self, stream: str, asked: Sequence[_Asked]) -> Collection[_Asked]:
        """Pick those generations of batches that no attempt was published as."""


class Pointers(Protocol):
    """The pointer files of a storage root."""

    def names(self, start: str) -> Iterable[str]:
        """List the names that begin so.

        Raises:
            StorageUnlistedError: they cannot be listed.
        """

    def read(self, name: str, most: int) -> bytes:
        """Read a pointer file of so many bytes at most.

        Raises:
            ManifestUnfitError: it is gone or too large.
            StorageUnlistedError: it cannot be read.
        """


def find_newer(stream: Stream, inventory: OlderInventory, pointers: Pointers) -> Newer:
    """Find the pointer files of a stream that its inventory knows nothing of.

    Memory is some thousand names, and those that are found.

    Raises:
        StorageUnlistedError: the storage cannot be asked.
    """
    prefix = stream.storage.prefix
    mine, others = inventory.job_names(stream.name)
    known, taken = {stream.name, *mine}, set(others)
    unknown: dict[str, str] = {}
    of_strange: dict[str, list[str]] = defaultdict(list)
    listed = _recognised(pointers.names(f"{prefix}{stream.name}"))
    while some := list(islice(listed, _AT_ONCE)):
        asked: dict[_Asked, str] = {}
        for name, named in some:
            job = named.head.removeprefix(prefix)
            if job in known:
                asked[job, named.ids, named.generation] = name
            elif job.startswith(f"{stream.name}.") and job not in taken:
                of_strange[job].append(name)
        unknown |= {asked[one]: one[0] for one in inventory.unknown(stream.name, [*asked])}
    for job, names in of_strange.items():
        if _is_of(stream, names[0], pointers):
            unknown |= dict.fromkeys(names, job)
    return Newer(stream=stream.name, jobs=unknown)


def _recognised(names: Iterable[str]) -> Iterator[tuple[str, PointerFile]]:
    for name in names:
        named = parse_name(Folder.MANIFESTS, name)
        if not isinstance(named, PointerFile) or not named.finished:
            continue
        if named.generation <= _MOST_GENERATION:
            yield name, named


def _is_of(stream: Stream, name: str, pointers: Pointers) -> bool:
    """Tell whether a job that the inventory does not know is the stream's, by what one file says.

    Others may be of streams of another inventory whose names begin alike.
    """
    with suppress(ManifestUnfitError):
        return stream_of(pointers.read(name, MAX_BYTES), name) == stream.name
    return False
