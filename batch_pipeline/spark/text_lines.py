"""Lines that stay one text until somebody asks for one of them. Values only."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

Ends = npt.NDArray[np.int64]

_FEED = ord("\n")


class TextLines(Sequence[bytes]):
    """The lines of a text, without line feeds; what is behind the last feed is none of it.

    `ends` tells where each line ends in `text`, its line feed counted.
    """

    def __init__(self, text: bytes, ends: Ends) -> None:
        self.text = text
        self.ends = ends
        self._lines: list[bytes] | None = None

    @classmethod
    def of(cls, text: bytes, size_bytes: int) -> "TextLines":
        """Take the lines of the first `size_bytes` of a text, which end with a line feed."""
        octets = np.frombuffer(text, np.uint8, size_bytes)
        return cls(text, np.flatnonzero(octets == _FEED).astype(np.int64) + 1)

    @property
    def size_bytes(self) -> int:
        """Bytes of all lines with their line feeds."""
        return int(self.ends[-1])

    def views(self) -> Iterator[memoryview]:
        """Give the lines without copying them."""
        view, start = memoryview(self.text), 0
        for end in self.ends.tolist():
            yield view[start : end - 1]
            start = end

    def are_braced(self) -> bool:
        """Tell whether each line starts with a brace and ends with one: none is blank or padded."""
        octets = np.frombuffer(self.text, np.uint8)
        first = octets[0] if len(self.ends) else 0
        opened = first == ord("{") and (octets[self.ends[:-1]] == ord("{")).all()
        return bool(opened and (octets[self.ends - 2] == ord("}")).all())

    def longest(self) -> int:
        """Give the bytes of the longest line."""
        between = self.ends[1:] - self.ends[:-1]
        return max(int(self.ends[0]), int(between.max(initial=0))) - 1

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        return self._apart()[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._apart())

    def _apart(self) -> list[bytes]:
        if self._lines is None:
            self._lines = self.text[: self.size_bytes - 1].split(b"\n")
        return self._lines
