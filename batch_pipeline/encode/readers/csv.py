"""Read csv files: whole ones, slices of large ones in several tasks, and ranges that are items.

Text is read in blocks of complete records; `csv_parsers` says which of the two parsers reads a
block. Small files with the same header are parsed together.

A slice starts where the bytes were divided, which may be inside quotes. Only the quotes of all
earlier slices prove whether it does, so each task guesses from the first quotes of its slice, and
reports where its records start and end. A guess was right if the slice before, itself read
correctly, ends where this one starts; otherwise the slice is read again from there. This holds
while all quotes follow the rules: a task that finds a quote that breaks them gives up
(`TaskInputError`), and the file is read in one piece (decision record 35).
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from io import BytesIO
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from batch_pipeline.encode.chunks import ByteRange, LazyNumbers, MalformedRecord, Table
from batch_pipeline.encode.errors import (
    TaskInputError,
    format_size_limit,
    os_error_reason,
    too_many_columns,
)
from batch_pipeline.encode.readers.csv_parsers import (
    NEWLINE,
    RETURN,
    Cells,
    CsvRecord,
    CsvScanner,
    cells_to_batch,
    count_lines,
    find_end_of_records,
    guess_in_quotes,
    has_short_records,
    lazy_line_numbers,
    line_ends_outside_quotes,
    mask_escaped,
    parse_with_arrow,
    wrong_delimiter_reason,
)
from batch_pipeline.encode.readers.decoded_file import DecodedFile
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.location import FileRange
from batch_pipeline.model.record_rules import BadFileKind
from batch_pipeline.model.stream import Stream

_BLOCK_BYTES = 4 * 2**20
_DIALECT_BYTES = 64 * 2**10  # checked for another delimiter


def read_chunks(source: DecodedFile, stream: Stream) -> Iterator[Table]:
    """Yield the records of a file, or of the range that is its item.

    Raises:
        BadFileError: the file cannot be read to its end.
    """
    if source.range is not None:
        return read_range(source, source.range, stream)
    return CsvReader(source, stream).chunks()


class CsvReader:
    """The records of one csv file, or of a part of it that starts at a record.

    `header` holds the column names. If neither the caller nor the options provide them, they are
    read from the first record before the first chunk. `line` is the number of the next line to
    read. `is_regular` states that so far all records were well-formed and all quotes followed the
    rules.
    """

    def __init__(
        self, source: "DecodedFile | RangeInput", stream: Stream, *, header: tuple[str, ...] = ()
    ) -> None:
        self._source = source
        self._options = stream.source.csv
        self._limits = stream.read_limits
        self.header = header or self._options.names
        self.line = 1
        self.is_regular = True
        self._next_number = 1
        self._carry = b""  # read but not parsed yet
        self._eof = False

    def chunks(self) -> Iterator[Table]:
        """Yield the records in order, a few MiB at a time, or an empty table if there are none.

        Raises:
            BadFileError: the file or its header cannot be read, or a record is too long.
        """
        self.read_header()
        while True:
            if self.header and self._carry:
                self._carry = yield from self._parse_block(self._carry, eof=self._eof)
            self._check_length(len(self._carry), self.line)
            if self._eof:
                break
            self._read_block()
        if self.header and self._next_number == 1:
            yield self._table(cells_to_batch([], self.header), ())

    def read_header(self) -> int:
        """Read the column names and return the number of bytes up to their end.

        Raises:
            BadFileError: the file or its header cannot be read.
        """
        header_bytes = 0
        while not self.header and not self._eof:
            self._read_block()
            used = self._parse_header(self._carry, eof=self._eof)
            self._carry = self._carry[used:]
            header_bytes += used
            self._check_length(0 if self.header else len(self._carry), self.line)
        return header_bytes

    def _read_block(self) -> None:
        # The size doubles when a record is longer than a block: with blocks of a fixed size,
        # repeatedly scanning a long record would take quadratic time.
        wanted = max(_BLOCK_BYTES, len(self._carry))
        block = self._source.read(wanted)
        self._eof = len(block) < wanted
        self._carry += block

    def _parse_block(self, data: bytes, *, eof: bool) -> Generator[Table, None, bytes]:
        """Yield the complete records of `data`, and return the remaining bytes.

        Arrow's parser reads a block if its quotes follow the rules and no record is too long. The
        strict parser reads it otherwise, or if Arrow finds an error.
        """
        masked = mask_escaped(data, self._options)
        end = find_end_of_records(masked, self._options, eof=eof)
        if end is None:
            return data[(yield from self._parse_strictly(data, eof=eof)) :]
        if end:
            cells = None
            if has_short_records(masked, end, self._options, self._limits.max_record_bytes):
                cells = parse_with_arrow(data, masked, end, self._options, self.header)
            if cells is None:
                yield from self._parse_strictly(data[:end], eof=True)
            else:
                lines = lazy_line_numbers(data, end, self._options, self.line, cells.num_rows)
                self.line += count_lines(data, end)
                if cells.num_rows:
                    yield self._table(cells, lines)
        return data[end:]

    def _parse_strictly(self, data: bytes, *, eof: bool) -> Generator[Table, None, int]:
        """Yield the records of `data` with the strict parser, and return their size in bytes."""
        self.is_regular = False
        scanner = CsvScanner(data, self._options, first_line=self.line, eof=eof)
        good: list[Cells] = []
        bad: list[MalformedRecord] = []
        lines: list[int] = []
        numbers: list[int] = []
        for number, record in enumerate(scanner, start=self._next_number):
            self._check_length(scanner.size_bytes, record.line)
            if isinstance(record, MalformedRecord):
                bad.append(record)
            elif reason := self._record_fault(record):
                bad.append(MalformedRecord(line=record.line, reason=reason, raw=record.raw))
            else:
                good.append(record.cells)
                lines.append(record.line)
                numbers.append(number)
        self.line = scanner.line
        if good or bad:
            yield self._table(cells_to_batch(good, self.header), lines, numbers, tuple(bad))
        return scanner.consumed

    def _table(
        self,
        cells: pa.RecordBatch,
        lines: Sequence[int],
        numbers: Sequence[int] | None = None,
        bad: tuple[MalformedRecord, ...] = (),
    ) -> Table:
        first = self._next_number
        self._next_number += cells.num_rows + len(bad)
        return Table(
            batch=cells,
            line_numbers=lines,
            record_numbers=range(first, self._next_number) if numbers is None else numbers,
            text=frozenset(self.header),
            bad=bad,
        )

    def _check_length(self, size_bytes: int, line: int) -> None:
        limit = self._limits.max_record_bytes
        if size_bytes > limit:
            reason = f"a record is longer than {format_size_limit(limit)} (an open quote?)"
            raise self._source.bad_file(reason, line=line)

    def _record_fault(self, record: CsvRecord) -> str | None:
        if not _is_utf8(record.raw):
            return "is not UTF-8"
        expected, actual = len(self.header), len(record.cells)
        if expected != actual:
            return f"expected fields: {expected}, found: {actual}"
        return None

    def _parse_header(self, data: bytes, *, eof: bool) -> int:
        """Set the column names and return the bytes that they take, 0 if they are incomplete."""
        start = data[:_DIALECT_BYTES]  # the scanner splits all of its input into lines
        scanner = CsvScanner(start, self._options, first_line=self.line, eof=False)
        first = next(iter(scanner), None)
        if first is None:
            scanner = CsvScanner(data, self._options, first_line=self.line, eof=eof)
            first = next(iter(scanner), None)
        if first is None:
            self.line = scanner.line
            return scanner.consumed
        if isinstance(first, MalformedRecord):
            raise self._source.bad_file(f"header: {first.reason}", line=first.line)
        if reason := _header_fault(first, self._limits.max_columns):
            raise self._source.bad_file(f"header: {reason}", line=first.line)
        header = tuple(str(cell or b"", "utf-8") for cell in first.cells)
        if len(header) == 1 and not self._options.is_delimiter_given:
            self._check_delimiter(header[0], data, first.line, eof=eof)
        self.header = header
        masked = mask_escaped(first.raw, self._options)
        self.is_regular = find_end_of_records(masked, self._options, eof=True) is not None
        self.line = scanner.line
        return scanner.consumed

    def _check_delimiter(self, name: str, data: bytes, line: int, *, eof: bool) -> None:
        start = data[:_DIALECT_BYTES]
        is_whole = eof and len(start) == len(data)
        reason = wrong_delimiter_reason(start, name, self._options, is_whole=is_whole)
        if reason is not None:
            raise self._source.bad_file(f"header: {reason}", line=line)


MAX_JOINED_FILE_BYTES = 64 * 2**10


class JoinedCsvFiles:
    """The records of small csv files with the same header, parsed in one call.

    Parsing and validating a file of 2 KB takes 0.4 ms, nearly all of it fixed cost per call: with
    the text of 50 files in one call, it takes 0.05 ms. Only regular text is read this way. An
    irregular file is read again by `CsvReader`, which reports the problem and its position.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._options = stream.source.csv
        self._header: tuple[str, ...] = ()
        self._header_text = b""
        self._bodies: list[bytes] = []
        self.counts: list[int] = []  # of the records of each file, if they can be parsed

    def read(self, source: DecodedFile) -> bytes | None:
        """Return the records of a file, if they can be added to those of the other files.

        Raises:
            BadFileError: the file or its header cannot be read.
        """
        text = source.read(MAX_JOINED_FILE_BYTES + 1)
        if len(text) > MAX_JOINED_FILE_BYTES or self._options.escape is not None:
            return None
        if not self._bodies:
            self._header, self._header_text = self._read_header(text, source)
        elif len(self._header) == 1 and not self._options.is_delimiter_given:
            self._read_header(text, source)  # checks that the delimiter is not another one
        is_complete = not self._header_text or self._header_text.endswith(NEWLINE)
        if not (self._header and is_complete and text.startswith(self._header_text)):
            return None
        body = text[len(self._header_text) :]
        return body if body.endswith(NEWLINE) or not body else body + NEWLINE

    def add(self, body: bytes) -> None:
        """Add the records of a file."""
        self._bodies.append(body)
        self.counts.append(count_lines(body))

    def parse(self) -> Table | None:
        """Return the records of all files, None if some text is irregular."""
        text = b"".join(self._bodies)
        limit = self._stream.read_limits.max_record_bytes
        if find_end_of_records(text, self._options, eof=True) is None:
            return None
        if not has_short_records(text, len(text), self._options, limit):
            return None
        cells = parse_with_arrow(text, text, len(text), self._options, self._header)
        # If there are as many records as lines, each line is a record, so that none is blank and no
        # quote opens in one file and closes in another.
        if cells is None or cells.num_rows != sum(self.counts):
            return None
        return Table(
            batch=cells,
            line_numbers=lazy_line_numbers(text, len(text), self._options, 1, cells.num_rows),
            record_numbers=range(1, cells.num_rows + 1),
            text=frozenset(self._header),
        )

    def _read_header(self, text: bytes, source: DecodedFile) -> tuple[tuple[str, ...], bytes]:
        """Return the column names, and the text that they take at the start of the file."""
        part = RangeInput(BytesIO(text), 0, len(text), source)
        reader = CsvReader(part, self._stream)
        size = reader.read_header()
        return reader.header, text[:size]


def _header_fault(record: CsvRecord, max_columns: int) -> str | None:
    if not _is_utf8(record.raw):
        return "is not UTF-8"
    if b"\0" in record.raw:  # a damaged disk block, or a file of another kind
        return "contains a zero byte, so it is not text"
    if len(record.cells) > max_columns:
        return too_many_columns(len(record.cells), max_columns)
    names: set[bytes] = set()
    for number, cell in enumerate(record.cells, start=1):
        if not cell:
            return f"column {number} has no name"
        if cell in names:
            return f"column {str(cell, 'utf-8')!r} is duplicated"
        names.add(cell)
    return None


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


_COUNT_BYTES = 2 * 2**20
_SEARCH_BYTES = 2**17
_GUESS_BYTES = 2**18


class CsvSlice:
    """The records of a csv file whose first byte is in `part`, numbered from 1 within the slice.

    `start` is where the first of them starts, guessed unless it is given. Lines before it are
    counted only when a line number is accessed.
    """

    def __init__(
        self, source: DecodedFile, stream: Stream, part: ByteRange, start: int | None = None
    ) -> None:
        self.start = start
        self._source = source
        self._stream = stream
        self._part = part
        self._text: _SliceInput | None = None

    def chunks(self) -> Iterator[Table]:
        """Yield the records.

        Raises:
            TaskInputError: the file must be read in one piece.
        """
        with _refuse_slice_on_error():
            reader, header_end = read_header(self._source, self._stream)
            if reader.is_regular and reader.header:
                start = self._find_start() if self.start is None else self.start
                self.start = start = max(start, header_end)
                self._text = _SliceInput(self._source, self._stream, start, self._part.stop)
                reader = CsvReader(self._text, self._stream, header=reader.header)
                for chunk in _number_lines(reader.chunks(), _line_counter(self._source, start)):
                    if not reader.is_regular:
                        break
                    yield chunk
        if not reader.is_regular:
            raise TaskInputError("an invalid quote or a bad record")

    def find_end(self) -> int | None:
        """Return where the first record behind `part` starts, None if the file has no header.

        Reads the rest of the slice, if any, without parsing it.

        Raises:
            TaskInputError: the file must be read in one piece.
        """
        text = self._text
        with _refuse_slice_on_error():
            while text is not None and text.end is None:
                text.read(_COUNT_BYTES)
        return None if text is None else text.end

    def _find_start(self) -> int:
        file, options, position = self._source.file, self._stream.source.csv, self._part.start
        file.seek(position)
        in_quotes = guess_in_quotes(file.read(_GUESS_BYTES), options)
        return _record_start(file, position, options.quote, in_quotes=in_quotes)


@contextmanager
def _refuse_slice_on_error() -> Iterator[None]:
    # A record may only be too long here because of a quote in an earlier slice. The task that reads
    # the whole file reports the error.
    try:
        yield
    except BadFileError as error:
        raise TaskInputError(error.reason) from error
    except OSError as error:
        raise TaskInputError(os_error_reason(error)) from error


def _line_counter(source: DecodedFile, position: int) -> Callable[[], int]:
    """Return a function that counts the lines before a position, at memory speed and only once."""

    @cache
    def count() -> int:
        lines, last = 0, b""
        for block in source.blocks_before(position):
            lines += count_lines(block) - (last == RETURN and block.startswith(NEWLINE))
            last = block[-1:]
        return lines

    return count


def _number_lines(chunks: Iterable[Table], lines_before: Callable[[], int]) -> Iterator[Table]:
    """Yield chunks of a part of a file with the line numbers of the file."""

    def in_file(lines: Sequence[int]) -> LazyNumbers:
        return LazyNumbers(len(lines), lambda: [lines_before() + line for line in lines])

    for chunk in chunks:
        bad = tuple(replace(record, line=lines_before() + record.line) for record in chunk.bad)
        yield replace(chunk, line_numbers=in_file(chunk.line_numbers), bad=bad)


def read_header(source: DecodedFile, stream: Stream) -> tuple[CsvReader, int]:
    """Return a reader that has read the names at the start of a file, and the position after them.

    Raises:
        BadFileError: the names cannot be read.
    """
    file = source.file
    size = file.seek(0, os.SEEK_END)
    text = RangeInput(file, source.text_start, size, source)
    reader = CsvReader(text, stream)
    return reader, source.text_start + reader.read_header()


def _record_start(file: BinaryIO, position: int, quote: str, *, in_quotes: bool) -> int:
    """Return where the first record at or after `position`, or an empty line, starts."""
    if position == 0:
        return 0
    file.seek(position - 1)
    last = file.read(1)
    is_start = last in (NEWLINE, RETURN) and not in_quotes
    while block := file.read(_SEARCH_BYTES):
        if is_start:
            return position + (last == RETURN and block.startswith(NEWLINE))
        octets = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(octets == ord(quote))
        outside = line_ends_outside_quotes(octets, quotes, starts_in_quotes=in_quotes)
        is_start = len(outside) > 0
        taken = block[: outside[0] + 1] if is_start else block
        position += len(taken)
        last = taken[-1:]
        in_quotes ^= len(quotes) % 2 == 1
        file.seek(position)
    return position


class RangeInput:
    """A range of a file as a separate text; nothing else may move the position of the file."""

    def __init__(self, file: BinaryIO, start: int, stop: int, source: DecodedFile) -> None:
        self.bad_file = source.bad_file
        self._file = file
        self._left = stop - start
        file.seek(start)

    def read(self, size_bytes: int) -> bytes:
        """Read exactly `size_bytes`, fewer only at the end of the range."""
        block = self._file.read(min(size_bytes, self._left))
        self._left -= len(block)
        return block


class _SliceInput(RangeInput):
    """The text of a slice from its first record to the end of its last, which it finds.

    `end` is set when the text has been read up to `stop`: its quotes show where records end.
    """

    def __init__(self, source: DecodedFile, stream: Stream, start: int, stop: int) -> None:
        super().__init__(source.file, start, max(start, stop), source)
        self.end = start if start >= stop else None  # one record covers the whole slice
        self._stop = stop
        self._quote = stream.source.csv.quote
        self._in_quotes = False

    def read(self, size_bytes: int) -> bytes:
        """Read exactly `size_bytes`, fewer only at the end of the last record."""
        block = super().read(size_bytes)
        if self.end is None:
            quotes = np.count_nonzero(np.frombuffer(block, np.uint8) == ord(self._quote))
            self._in_quotes ^= quotes % 2 == 1
            if len(block) < size_bytes:
                stop = self._stop
                self.end = _record_start(self._file, stop, self._quote, in_quotes=self._in_quotes)
                self._file.seek(stop)
                self._left = self.end - stop
                block += super().read(size_bytes - len(block))
        return block


def read_range(source: DecodedFile, part: FileRange, stream: Stream) -> Iterator[Table]:
    """Yield the records of an item that is a range of a csv file, with line numbers of the file.

    The column names are those at the start of the file; ranges start and end at records. Lines
    before the range are counted only when a line number is accessed: most readers never do that.

    Raises:
        BadFileError: the file cannot be read to the end of the range.
    """
    start = max(part.start, source.text_start)
    header: tuple[str, ...] = ()
    if part.start:
        names, header_end = read_header(source, stream)
        if part.start < header_end:
            raise source.bad_file(f"byte {part.start} is in front of the column names")
        header = names.header

    lines_before = _line_counter(source, start)
    text = RangeInput(source.file, start, max(part.stop, start), source)
    try:
        yield from _number_lines(CsvReader(text, stream, header=header).chunks(), lines_before)
    except BadFileError as error:
        if error.line is None:
            raise
        line, kind = lines_before() + error.line, BadFileKind(error.kind)
        raise source.bad_file(error.reason, line=line, kind=kind) from error


_CUT_BLOCK_BYTES = 2**20


def find_cuts(source: DecodedFile, stream: Stream, max_bytes: int) -> list[int]:
    """Read a csv file once and return the record ends at which to cut.

    Return none if a quote breaks the rules, because the file, read in one piece, may have other
    records than the quote count suggests, or if a record does not end. The column names are in the
    first range.

    Raises:
        BadFileError: the header cannot be read.
    """
    options, max_record_bytes = stream.source.csv, stream.read_limits.max_record_bytes
    size_bytes = source.facts.size_bytes
    start, done = 0, source.text_start  # `done` is the end of the last complete record
    _, header_end = read_header(source, stream)
    first_cut = max(done + 1, header_end)
    file = source.file
    file.seek(done)
    cuts: list[int] = []
    carry = b""
    while (position := done + len(carry)) < size_bytes:
        limit = start + max_bytes
        wanted = min(max(_CUT_BLOCK_BYTES, len(carry)), limit - position)
        if wanted <= 0:  # a record longer than a range: read to its end, but not much further
            wanted = max(min(_CUT_BLOCK_BYTES, max_bytes), len(carry))
        block = file.read(min(wanted, size_bytes - position))
        if not block:
            return []  # the file is shorter than before: it has changed
        carry += block
        is_end = done + len(carry) >= size_bytes
        end = find_end_of_records(mask_escaped(carry, options), options, eof=is_end)
        if end is None or len(carry) - end > max_record_bytes:
            return []
        done, carry = done + end, carry[end:]
        is_reached = done + len(carry) >= limit
        if is_reached and max(start + 1, first_cut) <= done < size_bytes:
            cuts.append(done)
            start = done
    return cuts
