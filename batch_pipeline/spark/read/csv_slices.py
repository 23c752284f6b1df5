"""Reads a large plain csv file in parts: where records start, told by counting quotes.

Only for files whose quotes follow the rules and whose records are all good: anything else raises,
and the file must be read in one piece, which alone decides about malformed quotes.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from batch_pipeline.domain.errors import BadFileError
from batch_pipeline.domain.record_rules import ReadLimits
from batch_pipeline.domain.stream import CsvOptions
from batch_pipeline.spark.chunks import Table
from batch_pipeline.spark.read.csv_bounds import NEWLINE, RETURN, count_lines
from batch_pipeline.spark.read.csv_reader import CsvReader
from batch_pipeline.spark.read.refusals import MakesBadFile
from batch_pipeline.spark.read.slices import ByteRange

_BLOCK_BYTES = 2 * 2**20
_SEARCH_BYTES = 2**17
_IRREGULAR = "a quote against the rules or a bad record"
_UTF8_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class CsvCounts:
    """What a range of bytes holds; a line end counts where its first byte is."""

    quotes: int
    line_ends: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvSlice:
    """The records of a csv file whose first byte is in `bytes`.

    Whether its bounds are inside of quotes, and the number of the line that it starts in.
    """

    bytes: ByteRange
    starts_in_quotes: bool
    ends_in_quotes: bool
    line: int


class SliceRefusedError(Exception):
    """A slice holds a bad record or a quote against the rules: read the file in one piece."""


def can_be_sliced(options: CsvOptions) -> bool:
    """Tell whether counting quotes is enough: an escape may take the meaning from a quote."""
    return options.escape is None


def count_csv(file: BinaryIO, part: ByteRange, quote: str) -> CsvCounts:
    """Count the quotes and line ends of a range at the speed of memory.

    Raises:
        OSError: the file cannot be read.
    """
    before = max(part.start - 1, 0)
    file.seek(before)
    last = file.read(part.start - before)
    quotes = line_ends = 0
    left = part.stop - part.start
    while left > 0 and (block := file.read(min(_BLOCK_BYTES, left))):
        left -= len(block)
        quotes += int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord(quote)))
        line_ends += count_lines(block) - (last == RETURN and block.startswith(NEWLINE))
        last = block[-1:]
    return CsvCounts(quotes, line_ends)


def csv_slices(parts: Sequence[ByteRange], counts: Sequence[CsvCounts]) -> list[CsvSlice]:
    """Make the slices of a file out of its ranges, in order and without gaps, and their counts."""
    slices: list[CsvSlice] = []
    quotes, line = 0, 1
    for part, counted in zip(parts, counts, strict=True):
        starts = quotes % 2 == 1
        quotes += counted.quotes
        ends = quotes % 2 == 1
        slices.append(CsvSlice(bytes=part, starts_in_quotes=starts, ends_in_quotes=ends, line=line))
        line += counted.line_ends
    return slices


class CsvSliceReader:
    """The records of one slice; their numbers are counted from 1 within the slice.

    `file` is the raw file, plain UTF-8 text; its position is this reader's alone.
    """

    def __init__(
        self,
        file: BinaryIO,
        part: CsvSlice,
        options: CsvOptions,
        limits: ReadLimits,
        bad_file: MakesBadFile,
    ) -> None:
        self._file = file
        self._part = part
        self._options = options
        self._limits = limits
        self._bad_file = bad_file

    def chunks(self) -> Iterator[Table]:
        """Give the records in order, a few MiB at a time.

        Raises:
            BadFileError: the file cannot be read.
            SliceRefusedError: the file must be read in one piece.
        """
        part, quote = self._part, self._options.quote
        try:
            header, first, line = self._header()
            start, skipped = _record_start(
                self._file, part.bytes.start, quote, in_quotes=part.starts_in_quotes
            )
            stop, _ = _record_start(
                self._file, part.bytes.stop, quote, in_quotes=part.ends_in_quotes
            )
            if start >= first:
                first, line = start, part.line + skipped
            window = Window(self._file, ByteRange(first, max(stop, first)), self._bad_file)
            if not header:
                return
            reader = CsvReader(window, self._options, self._limits, header=header, first_line=line)
            for chunk in reader.chunks():
                if not reader.is_regular:
                    break
                yield chunk
        except BadFileError as error:
            # What looks too long from here may be the fault of a quote further in front.
            raise SliceRefusedError(error.reason) from error
        except OSError as error:
            reason = (error.strerror or "unknown reason").lower()
            raise self._bad_file(f"cannot be read ({reason})") from error
        if not reader.is_regular:
            raise SliceRefusedError(_IRREGULAR)

    def _header(self) -> tuple[tuple[str, ...], int, int]:
        """Read the names from the start of the file; give the byte and line behind them too."""
        reader, stop = read_header(self._file, self._options, self._limits, self._bad_file)
        if not reader.is_regular:
            raise SliceRefusedError(_IRREGULAR)
        return reader.header, stop, reader.line


def read_header(
    file: BinaryIO, options: CsvOptions, limits: ReadLimits, bad_file: MakesBadFile
) -> tuple[CsvReader, int]:
    """Give a reader that has read the names at the start of a file, and the byte behind them.

    Raises:
        BadFileError: they cannot be read.
    """
    file.seek(0)
    mark = len(_UTF8_MARK) * (file.read(len(_UTF8_MARK)) == _UTF8_MARK)
    size = file.seek(0, os.SEEK_END)
    reader = CsvReader(Window(file, ByteRange(mark, size), bad_file), options, limits)
    return reader, mark + reader.read_header()


def _record_start(file: BinaryIO, position: int, quote: str, *, in_quotes: bool) -> tuple[int, int]:
    """Find the first record that starts at `position` or behind it, and how many lines behind.

    It may turn out to be an empty line, which is no record.
    """
    if position == 0:
        return 0, 0
    file.seek(position - 1)
    last = file.read(1)
    lines = 0
    is_found = last in (NEWLINE, RETURN) and not in_quotes
    while block := file.read(_SEARCH_BYTES):
        joins = last == RETURN and block.startswith(NEWLINE)
        if is_found:
            return position + joins, lines
        octets = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(octets == ord(quote))
        ends = np.flatnonzero((octets == ord(NEWLINE)) | (octets == ord(RETURN)))
        outside = ends[(np.searchsorted(quotes, ends) + in_quotes) % 2 == 0]
        is_found = len(outside) > 0
        taken = block[: outside[0] + 1] if is_found else block
        lines += count_lines(taken) - joins
        position += len(taken)
        last = taken[-1:]
        in_quotes ^= len(quotes) % 2 == 1
        file.seek(position)
    return position, lines


class Window:
    """A range of a file as text of its own; nobody else may move the file's position."""

    def __init__(self, file: BinaryIO, part: ByteRange, bad_file: MakesBadFile) -> None:
        self.bad_file = bad_file
        self._file = file
        self._left = part.stop - part.start
        file.seek(part.start)

    def read(self, size_bytes: int) -> bytes:
        """Read exactly `size_bytes`, fewer only at the end of the range."""
        block = self._file.read(min(size_bytes, self._left))
        self._left -= len(block)
        return block
