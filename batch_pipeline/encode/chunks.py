"""Chunks: consecutive records of one file, as JSON text or as a table.

Each step of a task takes a chunk and returns a chunk. Records that it sets aside or filters out
remain in the counts of the chunk, so that every record read is accounted for at the end.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batch_pipeline.encode.json_values import json_text
from batch_pipeline.model.record_rules import OnNonfinite

Octets = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedRecord:
    """A record set aside for the quarantine.

    `line` is the line on which the record starts, from 1, or the record number in a file without
    lines; `raw` is the text of the record without a line end.
    """

    line: int
    reason: str
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Records:
    """Numbers and counts of the records of a chunk.

    `line_numbers` are the lines of the file where the records start, `record_numbers` their
    positions among its records, malformed ones included; both from 1.
    """

    line_numbers: Sequence[int]
    record_numbers: Sequence[int]
    bad: tuple[MalformedRecord, ...] = ()
    filtered: int = 0
    rescued: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRecords(_Records):
    """Records as JSON text, one object per line, without line ends.

    `lines` is a `TextLines` if the text of all lines is in one piece.
    """

    lines: Sequence[bytes]

    @property
    def good(self) -> int:
        """Return the number of records that the next step takes."""
        return len(self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(_Records):
    """Records as columns of Arrow arrays.

    Columns named in `text` hold text cells, whose types validation infers; an empty cell is null.
    Columns named in `json` hold JSON text of values of any type. The others are typed.
    """

    batch: pa.RecordBatch
    text: frozenset[str] = frozenset()
    json: frozenset[str] = frozenset()

    @property
    def good(self) -> int:
        """Return the number of records that the next step takes."""
        return int(self.batch.num_rows)


def remaining(
    chunk: "Chunk",
    rows: Sequence[int],
    bad: Mapping[int, tuple[str, bytes]],
    *,
    filtered: int = 0,
    rescued: int = 0,
) -> dict[str, Any]:
    """Return the numbers and counts of a chunk that is reduced to these rows.

    `bad` has the reason and the text of each malformed row; `filtered` and `rescued` are added.
    """
    malformed = (
        MalformedRecord(line=chunk.line_numbers[row], reason=reason, raw=raw)
        for row, (reason, raw) in sorted(bad.items())
    )
    return {
        "line_numbers": _numbers_at(chunk.line_numbers, rows),
        "record_numbers": _numbers_at(chunk.record_numbers, rows),
        "bad": (*chunk.bad, *malformed),
        "filtered": chunk.filtered + filtered,
        "rescued": chunk.rescued + rescued,
    }


def _numbers_at(numbers: Sequence[int], rows: Sequence[int]) -> Sequence[int]:
    """Return the numbers of the remaining rows; if no row was removed, they stay lazy."""
    return numbers if len(rows) == len(numbers) else [numbers[row] for row in rows]


def move_rows_to_bad(table: Table, reasons: Mapping[int, str]) -> Table:
    """Return the table with the rows that have a reason moved to `bad`, as JSON text."""

    def text(row: int) -> bytes:
        return json_text(table.batch.slice(row, 1).to_pylist()[0], OnNonfinite.STRING)

    return set_rows_aside(table, {row: (reason, text(row)) for row, reason in reasons.items()})


def set_rows_aside(table: Table, rows: Mapping[int, tuple[str, bytes]]) -> Table:
    """Return the table with rows moved to `bad`, each for a reason and with a text."""
    if not rows:
        return table
    good = [row for row in range(table.good) if row not in rows]
    batch = table.batch.take(pa.array(good, pa.int64()))
    return replace(table, batch=batch, **remaining(table, good, rows))


Chunk = JsonRecords | Table
_LINE_FEED = ord("\n")


class TextLines(Sequence[bytes]):
    """The lines of a text, without line feeds; text after the last line feed is not included.

    `ends` holds the end of each line in `text`, including its line feed. The text is split into
    objects only when a line is accessed: most steps work on the text and the ends.
    """

    def __init__(self, text: bytes, ends: Offsets) -> None:
        self.text = text
        self.ends = ends
        self._lines: list[bytes] | None = None

    @classmethod
    def of(cls, text: bytes, size_bytes: int) -> "TextLines":
        """Return the lines of the first `size_bytes` of a text, which end with a line feed."""
        octets = np.frombuffer(text, np.uint8, size_bytes)
        return cls(text, np.flatnonzero(octets == _LINE_FEED).astype(np.int64) + 1)

    @property
    def size_bytes(self) -> int:
        """Return the size of all lines, including their line feeds."""
        return int(self.ends[-1])

    def views(self) -> Iterator[memoryview]:
        """Yield the lines without copying them."""
        view, start = memoryview(self.text), 0
        for end in self.ends.tolist():
            yield view[start : end - 1]
            start = end

    def are_braced(self) -> bool:
        """Return whether each line starts and ends with a brace: none is blank or padded."""
        octets = np.frombuffer(self.text, np.uint8)
        first = octets[0] if len(self.ends) else 0
        opened = first == ord("{") and (octets[self.ends[:-1]] == ord("{")).all()
        return bool(opened and (octets[self.ends - 2] == ord("}")).all())

    def longest(self) -> int:
        """Return the size of the longest line."""
        between = self.ends[1:] - self.ends[:-1]
        return max(int(self.ends[0]), int(between.max(initial=0))) - 1

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        return self._split()[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._split())

    def _split(self) -> list[bytes]:
        if self._lines is None:
            self._lines = self.text[: self.size_bytes - 1].split(b"\n")
        return self._lines


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of a file from `start` up to, not including, `stop`.

    A record belongs to the range that contains its first byte.
    """

    start: int
    stop: int


class LazyNumbers(Sequence[int]):
    """`count` numbers that `compute` returns; it is called at most once, at the first access."""

    def __init__(self, count: int, compute: Callable[[], Sequence[int]]) -> None:
        self._count = count
        self._compute = compute
        self._numbers: Sequence[int] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if self._numbers is None:
            self._numbers = self._compute()
        return self._numbers[index]
