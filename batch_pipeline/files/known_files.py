"""Which files are known to be registered as they stand, in eight bytes for each.

Of a file only a digest of its name and of its version is kept: nobody can be told what is known.
Two files with one digest would be taken for one; among ten million there is a chance of one in
370,000 of that, until what is known is forgotten.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from hashlib import blake2b

from batch_pipeline.domain.item import FoundFile

_SHELVES = 256


class KnownFiles:
    """A set of files that is replaced as a whole: what a pass over a landing has seen."""

    def __init__(self, stamps: Iterable[int] = ()) -> None:
        self._shelves = [array("Q") for _ in range(_SHELVES)]
        for stamp in stamps:
            self._shelves[stamp % _SHELVES].append(stamp)
        for number, shelf in enumerate(self._shelves):  # one by one: sorting takes five times this
            self._shelves[number] = array("Q", sorted(shelf))

    def __contains__(self, stamp: int) -> bool:
        shelf = self._shelves[stamp % _SHELVES]
        place = bisect_left(shelf, stamp)
        return place < len(shelf) and shelf[place] == stamp

    def __len__(self) -> int:
        return sum(len(shelf) for shelf in self._shelves)


def stamp_of(file: FoundFile) -> int:
    """Give the digest of a file as it stands: 64 bits of its location, size and ETag.

    Where no ETag is known the time stands for it.
    """
    version = file.modified_at if file.etag is None else file.etag
    text = f"{file.location}\0{file.size_bytes}\0{version}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
