"""Reads text files, one record a line: the line as it is, or its fixed-width columns.

Whole blocks are cut into lines and cells at once; no cell is looked at in Python.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.domain.record_rules import ReadLimits
from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.domain.text_options import FixedColumn, TextOptions
from batch_pipeline.spark.chunks import BadText, Table
from batch_pipeline.spark.read.arrow_values import fitted
from batch_pipeline.spark.read.csv_reader import TextBlocks, size_text

_BLOCK_BYTES = 2 * 2**20
_NEWLINE = b"\n"
_BLANKS = " \t"
_LINE = Column(name="line", type=ColumnType.STRING)


class TextReader:
    """The records of one text file, whose lines end with a newline, with or without a return.

    Without columns every line is a record, an empty one too; with columns blank lines are skipped.
    """

    def __init__(self, source: TextBlocks, options: TextOptions, limits: ReadLimits) -> None:
        self._source = source
        self._columns = options.columns
        self._limits = limits
        self._line = 1
        self._number = 1

    def chunks(self) -> Iterator[Table]:
        """Give the records in order, a few MiB at a time; a file without any gives its columns.

        Raises:
            BadFileError: the file cannot be read, or a line is too long.
        """
        carry, eof = b"", False
        while not eof:
            wanted = max(_BLOCK_BYTES, len(carry))
            block = self._source.read(wanted)
            eof = len(block) < wanted
            carry += block
            end = len(carry) if eof else carry.rfind(_NEWLINE) + 1
            if end:
                yield from self._tables(carry[:end])
                carry = carry[end:]
            self._refuse_too_long(len(carry), self._line)
        if self._number == 1:
            yield self._table(pa.array([], pa.string()), (), ())

    def _tables(self, data: bytes) -> Iterator[Table]:
        lines = _lines(data)
        sizes = pc.binary_length(lines)
        longest = pc.max(sizes).as_py()
        if longest > self._limits.max_record_bytes:
            self._refuse_too_long(longest, self._line + pc.index(sizes, longest).as_py())
        first = self._line
        self._line += len(lines)
        places: Sequence[int] = range(first, self._line)
        if self._columns:
            blank = pc.equal(pc.ascii_trim(lines, _BLANKS), "")
            if pc.any(blank).as_py():
                kept = np.flatnonzero(~blank.to_numpy(zero_copy_only=False))
                lines = lines.take(pa.array(kept))
                places = (kept + first).tolist()
        numbers: Sequence[int] = range(self._number, self._number + len(lines))
        self._number += len(lines)
        done = fitted(lines, _LINE)
        if not done.misfits:
            if len(lines):
                yield self._table(lines, places, numbers)
            return
        raw = lines.view(pa.binary())
        bad = [
            BadText(line=places[row], reason=str(misfit), raw=raw[row].as_py())
            for row, misfit in sorted(done.misfits.items())
        ]
        good = [row for row in range(len(lines)) if row not in done.misfits]
        yield self._table(
            done.array.take(pa.array(good, pa.int64())),
            [places[row] for row in good],
            [numbers[row] for row in good],
            tuple(bad),
        )

    def _table(
        self,
        lines: pa.StringArray,
        places: Sequence[int],
        numbers: Sequence[int],
        bad: tuple[BadText, ...] = (),
    ) -> Table:
        names = [column.name for column in self._columns]
        cells = [_cells(lines, column) for column in self._columns]
        if not names:
            names, cells = [_LINE.name], [lines]
        return Table(
            batch=pa.RecordBatch.from_arrays(cells, names),
            places=places,
            numbers=numbers,
            text=frozenset(names) if self._columns else frozenset(),
            bad=bad,
        )

    def _refuse_too_long(self, size_bytes: int, line: int) -> None:
        limit = self._limits.max_record_bytes
        if size_bytes > limit:
            raise self._source.bad_file(f"a line is longer than {size_text(limit)}", line=line)


def _lines(data: bytes) -> pa.StringArray:
    """Cut whole lines out of a block; whether they are UTF-8 is not looked at."""
    if b"\r\n" in data:
        data = data.replace(b"\r\n", _NEWLINE)
    if not data.endswith(_NEWLINE):
        data = data.removesuffix(b"\r") + _NEWLINE
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(_NEWLINE))
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends - np.arange(len(ends))
    text = data.replace(_NEWLINE, b"")
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))


def _cells(lines: pa.StringArray, column: FixedColumn) -> pa.StringArray:
    """Cut one column out of the lines, without blanks at its ends; null where nothing is left."""
    start = column.start - 1
    found = pc.utf8_slice_codeunits(lines, start, start + column.width)
    trimmed = pc.ascii_trim(found, _BLANKS)
    return pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed)
