"""What flows through a task: some consecutive records of one file, as JSON text or as a table.

Values only. A stage takes a chunk and gives a chunk; records that it sets aside or filters out stay
in the chunk's counts, so that every record read is accounted for at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class BadText:
    """A record set aside: `line` is where its text starts, counted from 1, or, in a file without
    lines, its number; `raw` is its text without a line end."""

    line: int
    reason: str
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRecords:
    """Records as JSON text, one object a line, without line ends.

    `lines` are `TextLines` where the text of all of them is there in one piece.
    `places` are the lines where the records start, `numbers` their positions among the file's
    records, bad ones counted; both from 1.
    """

    lines: Sequence[bytes]
    places: Sequence[int]
    numbers: Sequence[int]
    bad: tuple[BadText, ...] = ()
    filtered: int = 0
    rescued: int = 0

    @property
    def good(self) -> int:
        """Records that go on."""
        return len(self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Records as columns of Arrow arrays.

    Columns named in `text` hold text cells, whose types the check finds out; an empty cell is null.
    Columns named in `json` hold JSON text, of values of any kind. The other ones are typed.
    """

    batch: pa.RecordBatch
    places: Sequence[int]
    numbers: Sequence[int]
    text: frozenset[str] = frozenset()
    json: frozenset[str] = frozenset()
    bad: tuple[BadText, ...] = ()
    filtered: int = 0
    rescued: int = 0

    @property
    def good(self) -> int:
        """Records that go on."""
        return int(self.batch.num_rows)


Chunk = JsonRecords | Table
