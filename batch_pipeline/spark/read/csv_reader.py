"""Reads csv text in blocks of whole records: Arrow parses them, the strict scanner the rest.

Arrow is lenient about quotes (it closes an open one at the end and takes text behind a closed one),
so a block goes to it only when its quotes are proven to follow the rules.
"""

from codecs import BOM_UTF8
from collections.abc import Generator, Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from pyarrow import csv

from batch_pipeline.domain.errors import BadFileError
from batch_pipeline.domain.record_rules import ReadLimits
from batch_pipeline.domain.stream import CsvOptions
from batch_pipeline.spark.chunks import BadText, Table
from batch_pipeline.spark.read.csv_bounds import (
    NEWLINE,
    RETURN,
    count_lines,
    double_lone_escapes,
    end_of_records,
    hide_escaped,
    longest_record,
)
from batch_pipeline.spark.read.csv_dialect import delimiter_fault
from batch_pipeline.spark.read.csv_places import CsvPlaces
from batch_pipeline.spark.read.csv_strict import Cells, CsvRecord, CsvScanner

_BLOCK_BYTES = 4 * 2**20
_START_BYTES = 64 * 2**10  # looked through for another delimiter


class TextBlocks(Protocol):
    """The bytes of a text file, uncompressed, UTF-8, without a byte order mark."""

    def read(self, size_bytes: int) -> bytes:
        """Read exactly `size_bytes`, fewer only at the end of the file."""
        ...

    def bad_file(self, reason: str, *, line: int | None = None) -> BadFileError:
        """Make the error that says that this whole file is bad."""
        ...


class CsvReader:
    """The records of one csv file, or of a part of it that starts at a record.

    `header` are the names of the columns. Where they are not given, by the options or for a part by
    the start of the file, the first record holds them: they are known once the first chunk was
    asked for. `first_line` is the number of the line that the text starts with, `line` of the one
    to read next. `is_regular` tells that so far all records were good and all quotes where they may
    be.
    """

    def __init__(
        self,
        source: TextBlocks,
        options: CsvOptions,
        limits: ReadLimits,
        *,
        header: tuple[str, ...] = (),
        first_line: int = 1,
    ) -> None:
        self.header = header or options.names
        self._source = source
        self._options = options
        self._limits = limits
        self.line = first_line
        self.is_regular = True
        self._number = 1
        self._carry = b""
        self._eof = False

    def chunks(self) -> Iterator[Table]:
        """Give the records in order, a few MiB at a time; a file with a header only gives no rows.

        Raises:
            BadFileError: the file or its header cannot be read, or a record is too long.
        """
        self.read_header()
        while True:
            if self.header and self._carry:
                self._carry = yield from self._records(self._carry, eof=self._eof)
            self._refuse_too_long(len(self._carry), self.line)
            if self._eof:
                break
            self._read_on()
        if self.header and self._number == 1:
            yield self._table(self._batch([]), ())

    def read_header(self) -> int:
        """Find the names of the columns, and give how many bytes were taken up until then.

        Raises:
            BadFileError: the file or its header cannot be read.
        """
        taken = 0
        while not self.header and not self._eof:
            self._read_on()
            used = self._header_size(self._carry, eof=self._eof)
            self._carry = self._carry[used:]
            taken += used
            self._refuse_too_long(0 if self.header else len(self._carry), self.line)
        return taken

    def _read_on(self) -> None:
        wanted = max(_BLOCK_BYTES, len(self._carry))  # grows when a record outgrows the block
        block = self._source.read(wanted)
        self._eof = len(block) < wanted
        self._carry += block

    def _records(self, data: bytes, *, eof: bool) -> Generator[Table, None, bytes]:
        """Give the whole records of `data`, return what is left."""
        hidden = hide_escaped(data, self._options)
        end = end_of_records(hidden, self._options, eof=eof)
        if end is None:
            return data[(yield from self._scanned(data, eof=eof)) :]
        if end:
            cells = self._parsed(data, hidden, end)
            if cells is None:
                yield from self._scanned(data[:end], eof=True)
            else:
                places = CsvPlaces(data, end, self._options, self.line, cells.num_rows)
                self.line += count_lines(data, end)
                if cells.num_rows:
                    yield self._table(cells, places)
        return data[end:]

    def _parsed(self, data: bytes, hidden: bytes, end: int) -> pa.RecordBatch | None:
        """Take the whole records up to `end` apart, None when Arrow finds something wrong."""
        limit = self._limits.max_record_bytes
        if end > limit and longest_record(hidden[:end], self._options) > limit:
            return None
        text: bytes | pa.Buffer = pa.py_buffer(data)[:end]
        if hidden is not data:
            escaped = double_lone_escapes(data[:end], self._options)
            if escaped is None:
                return None
            text = escaped
        if hidden[end - 1 : end] not in (NEWLINE, RETURN):
            # Without one Arrow takes an empty last cell behind a quoted one for empty text.
            text = bytes(text) + NEWLINE
        if data.startswith(BOM_UTF8):
            text = NEWLINE + bytes(text)  # Arrow takes a mark off, which is text in mid-file
        try:
            table = csv.read_csv(
                pa.BufferReader(text),
                read_options=csv.ReadOptions(
                    column_names=self.header, block_size=len(text) + 1, use_threads=False
                ),
                parse_options=csv.ParseOptions(
                    delimiter=self._options.delimiter,
                    quote_char=self._options.quote,
                    escape_char=self._options.escape or False,
                    newlines_in_values=False,
                ),
                convert_options=csv.ConvertOptions(
                    column_types=dict.fromkeys(self.header, pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            return None
        if not table.num_rows:
            return self._batch([])
        columns = [column.chunk(0) for column in table.columns]  # the block is one, so is the chunk
        return pa.RecordBatch.from_arrays(columns, list(self.header))

    def _scanned(self, data: bytes, *, eof: bool) -> Generator[Table, None, int]:
        """Give the records of `data` by the strict scanner, return how many bytes they took."""
        self.is_regular = False
        scanner = CsvScanner(data, self._options, first_line=self.line, eof=eof)
        good: list[Cells] = []
        bad: list[BadText] = []
        places: list[int] = []
        numbers: list[int] = []
        for number, found in enumerate(scanner, start=self._number):
            self._refuse_too_long(scanner.size_bytes, found.line)
            if isinstance(found, BadText):
                bad.append(found)
            elif reason := self._fault(found):
                bad.append(BadText(line=found.line, reason=reason, raw=found.raw))
            else:
                good.append(found.cells)
                places.append(found.line)
                numbers.append(number)
        self.line = scanner.line
        if good or bad:
            yield self._table(self._batch(good), places, numbers, tuple(bad))
        return scanner.consumed

    def _table(
        self,
        cells: pa.RecordBatch,
        places: Sequence[int],
        numbers: Sequence[int] | None = None,
        bad: tuple[BadText, ...] = (),
    ) -> Table:
        first = self._number
        self._number += cells.num_rows + len(bad)
        return Table(
            batch=cells,
            places=places,
            numbers=range(first, self._number) if numbers is None else numbers,
            text=frozenset(self.header),
            bad=bad,
        )

    def _refuse_too_long(self, size_bytes: int, line: int) -> None:
        limit = self._limits.max_record_bytes
        if size_bytes > limit:
            reason = f"a record is longer than {size_text(limit)} (an open quote?)"
            raise self._source.bad_file(reason, line=line)

    def _fault(self, record: CsvRecord) -> str | None:
        if not _is_utf8(record.raw):
            return "is not UTF-8"
        expected, found = len(self.header), len(record.cells)
        if expected != found:
            return f"expected fields: {expected}, found: {found}"
        return None

    def _batch(self, rows: list[Cells]) -> pa.RecordBatch:
        columns = zip(*rows, strict=True) if rows else ((),) * len(self.header)
        arrays = [pa.array(column, pa.binary()).cast(pa.string()) for column in columns]
        return pa.RecordBatch.from_arrays(arrays, list(self.header))

    def _header_size(self, data: bytes, *, eof: bool) -> int:
        """Find the column names and give the number of bytes that they take, 0 if they go on."""
        scanner = CsvScanner(data, self._options, first_line=self.line, eof=eof)
        records = iter(scanner)
        first = next(records, None)
        if first is None:
            self.line = scanner.line
            return scanner.consumed
        if isinstance(first, BadText):
            raise self._source.bad_file(f"header: {first.reason}", line=first.line)
        if reason := _header_fault(first, self._limits.max_columns):
            raise self._source.bad_file(f"header: {reason}", line=first.line)
        header = tuple(str(cell or b"", "utf-8") for cell in first.cells)
        if len(header) == 1 and not self._options.is_delimiter_given:
            self._refuse_other_delimiter(header[0], data, first.line, eof=eof)
        self.header = header
        quotes = end_of_records(hide_escaped(first.raw, self._options), self._options, eof=True)
        self.is_regular = quotes is not None
        self.line = scanner.line
        return scanner.consumed

    def _refuse_other_delimiter(self, name: str, data: bytes, line: int, *, eof: bool) -> None:
        start = data[:_START_BYTES]
        is_whole = eof and len(start) == len(data)
        reason = delimiter_fault(start, name, self._options, is_whole=is_whole)
        if reason is not None:
            raise self._source.bad_file(f"header: {reason}", line=line)


def size_text(size_bytes: int) -> str:
    """Write a limit the way that people set it."""
    return f"{size_bytes >> 20} MiB" if size_bytes % 2**20 == 0 else f"{size_bytes} bytes"


def _header_fault(record: CsvRecord, max_columns: int) -> str | None:
    if not _is_utf8(record.raw):
        return "is not UTF-8"
    if b"\0" in record.raw:  # a disk that lost a block, or a file of another kind
        return "holds a zero byte, which no text does"
    if len(record.cells) > max_columns:
        limit = "`read_limits.max_columns`"
        return f"has {len(record.cells)} columns, more than {limit} allows ({max_columns})"
    seen: set[bytes] = set()
    for number, cell in enumerate(record.cells, start=1):
        if not cell:
            return f"column {number} has no name"
        if cell in seen:
            return f"column {str(cell, 'utf-8')!r} is there twice"
        seen.add(cell)
    return None


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
