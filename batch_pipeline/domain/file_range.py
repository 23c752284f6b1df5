"""Ranges of bytes of files, and how the location of an item names one: `…csv#bytes=0-99,size=250`.

The first and the last byte count, as in HTTP; the size is that of the whole file, and may be left
out. A `#` in the name of a file is written `%23`, so nothing else can be meant. Text only: whether
there is such a file, and where its records start, is the business of others.
"""

import re
from dataclasses import dataclass

from batch_pipeline.domain.errors import InvalidValueError

MARK = "#bytes="
_RANGE = re.compile(r"(?s)(.*)#bytes=([0-9]{1,19})-([0-9]{1,19})(?:,size=([0-9]{1,19}))?")


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file from `start` up to, not including, `stop`; one byte at least.

    `file_bytes` is the size of the whole file, None where nobody has noted it.

    Raises:
        InvalidValueError: it is empty, or reaches beyond the file.
    """

    start: int
    stop: int
    file_bytes: int | None = None

    def __post_init__(self) -> None:
        end = self.stop if self.file_bytes is None else self.file_bytes
        if not 0 <= self.start < self.stop <= end:
            expected = f"a range of bytes of its file, such as {MARK}0-99"
            raise InvalidValueError("location", self.fragment, expected)

    @property
    def size_bytes(self) -> int:
        """Bytes of the range."""
        return self.stop - self.start

    @property
    def fragment(self) -> str:
        """The text that is put behind the URI of the file."""
        size = "" if self.file_bytes is None else f",size={self.file_bytes}"
        return f"{MARK}{self.start}-{self.stop - 1}{size}"


def split_location(location: str) -> tuple[str, FileRange | None]:
    """Take the range off a location; without one it is the whole file.

    Raises:
        InvalidValueError: it names a range that no file can have.
    """
    match = _RANGE.fullmatch(location) if MARK in location else None
    if match is None:
        return location, None
    size = None if match[4] is None else int(match[4])
    return match[1], FileRange(int(match[2]), int(match[3]) + 1, size)
