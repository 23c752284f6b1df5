"""Reads csv text in blocks of whole records: Arrow parses them, the strict scanner the rest.

Arrow is lenient about quotes (it closes an open one at the end and takes text behind a closed one),
so a block goes to it only when its quotes are proven to follow the rules.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from batch_pipeline.domain.stream import CsvOptions
from batch_pipeline.spark.read.csv_strict import BadText, Cells, CsvRecord, CsvScanner
from batch_pipeline.spark.read.sources import BLOCK_BYTES, MAX_RECORD_BYTES, TextSource

_NEWLINE, _RETURN = b"\n", b"\r"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvChunk:
    """Some consecutive records.

    `cells` has one string column per header name; an empty cell without quotes is null.
    """

    cells: pa.RecordBatch
    bad: tuple[BadText, ...] = ()


class CsvReader:
    """The records of one csv file; `header` is known once the first chunk was asked for."""

    def __init__(self, source: TextSource, options: CsvOptions) -> None:
        self.header: tuple[str, ...] = ()
        self._source = source
        self._options = options
        self._line = 1

    def chunks(self) -> Iterator[CsvChunk]:
        """Give the records in order, a few MiB at a time.

        Raises:
            BadFileError: the file or its header cannot be read, or a record has no end in sight.
        """
        carry, eof = b"", False
        while not eof:
            wanted = max(BLOCK_BYTES, len(carry))  # grows when a record outgrows the block
            block = self._source.read(wanted)
            eof = len(block) < wanted
            carry += block
            if not self.header:
                carry = carry[self._read_header(carry, eof=eof) :]
            if self.header and carry:
                carry = yield from self._records(carry, eof=eof)
            if len(carry) > MAX_RECORD_BYTES:
                reason = f"a record is longer than {MAX_RECORD_BYTES >> 20} MiB (an open quote?)"
                raise self._source.bad_file(reason, line=self._line)

    def _records(self, data: bytes, *, eof: bool) -> Generator[CsvChunk, None, bytes]:
        """Give the whole records of `data`, return what is left."""
        end = end_of_records(data, self._options, eof=eof)
        if end is None:
            return data[(yield from self._scanned(data, eof=eof)) :]
        if end:
            whole = data[:end]
            # Without a line end Arrow takes an empty last cell behind a quoted one for empty text.
            ended = whole if whole.endswith((_NEWLINE, _RETURN)) else whole + _NEWLINE
            try:
                cells = self._parsed(ended)
            except pa.ArrowInvalid:
                yield from self._scanned(whole, eof=True)
            else:
                self._line += _count_lines(whole)
                if cells.num_rows:
                    yield CsvChunk(cells=cells)
        return data[end:]

    def _parsed(self, data: bytes) -> pa.RecordBatch:
        table = csv.read_csv(
            pa.BufferReader(data),
            read_options=csv.ReadOptions(
                column_names=self.header, block_size=len(data) + 1, use_threads=False
            ),
            parse_options=csv.ParseOptions(
                delimiter=self._options.delimiter,
                quote_char=self._options.quote,
                newlines_in_values=True,
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(self.header, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        columns = [column.combine_chunks() for column in table.columns]
        return pa.RecordBatch.from_arrays(columns, list(self.header))

    def _scanned(self, data: bytes, *, eof: bool) -> Generator[CsvChunk, None, int]:
        """Give the records of `data` by the strict scanner, return how many bytes they took."""
        scanner = CsvScanner(data, self._options, first_line=self._line, eof=eof)
        good: list[Cells] = []
        bad: list[BadText] = []
        for found in scanner:
            if isinstance(found, BadText):
                bad.append(found)
            elif reason := self._fault(found):
                bad.append(BadText(line=found.line, reason=reason, raw=found.raw))
            else:
                good.append(found.cells)
        self._line = scanner.line
        if good or bad:
            yield CsvChunk(cells=self._batch(good), bad=tuple(bad))
        return scanner.consumed

    def _fault(self, record: CsvRecord) -> str | None:
        if not _is_utf8(record.raw):
            return "is not UTF-8"
        expected, found = len(self.header), len(record.cells)
        if expected != found:
            return f"expected {expected} field{'s' * (expected != 1)}, found {found}"
        return None

    def _batch(self, rows: list[Cells]) -> pa.RecordBatch:
        columns = zip(*rows, strict=True) if rows else ((),) * len(self.header)
        arrays = [pa.array(column, pa.binary()).cast(pa.string()) for column in columns]
        return pa.RecordBatch.from_arrays(arrays, list(self.header))

    def _read_header(self, data: bytes, *, eof: bool) -> int:
        """Find the column names and give the number of bytes that they take, 0 if they go on."""
        scanner = CsvScanner(data, self._options, first_line=self._line, eof=eof)
        records = iter(scanner)
        first = next(records, None)
        if first is None:
            self._line = scanner.line
            return scanner.consumed
        if isinstance(first, BadText):
            raise self._source.bad_file(f"header: {first.reason}", line=first.line)
        if reason := _header_fault(first):
            raise self._source.bad_file(f"header: {reason}", line=first.line)
        self.header = tuple(str(cell or b"", "utf-8") for cell in first.cells)
        self._line = scanner.line
        return scanner.consumed


def end_of_records(data: bytes, options: CsvOptions, *, eof: bool) -> int | None:
    """Give where the last whole record of `data` ends, 0 if there is none.

    None tells that a quote stands where the rules allow none, so that Arrow and the strict scanner
    may not agree. `data` starts at a record.
    """
    quote = options.quote.encode()
    if quote not in data:
        return len(data) if eof else _last_line_end(data, np.empty(0, np.int64))
    octets = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(octets == ord(quote))
    if not _quotes_follow_rules(octets, quotes, options):
        return None
    if eof:
        return len(data) if len(quotes) % 2 == 0 else None
    return _last_line_end(data, quotes)


def _quotes_follow_rules(
    octets: npt.NDArray[np.uint8], quotes: npt.NDArray[np.int64], options: CsvOptions
) -> bool:
    """Check that quotes open at the start of a cell, close at its end, and are doubled within.

    Counted from the first, the odd ones open and the even ones close; a doubled one closes and
    opens again. As long as no quote breaks this, the count alone tells inside from outside.
    """
    edge = np.zeros(256, np.bool_)
    edge[[ord(options.quote), ord(options.delimiter), *b"\r\n"]] = True
    opening, closing = quotes[0::2], quotes[1::2]
    before = edge[octets[opening - 1]] | (opening == 0)
    at_end = closing == len(octets) - 1
    behind = edge[octets[np.where(at_end, closing, closing + 1)]]
    return bool(before.all() and behind.all())


def _last_line_end(data: bytes, quotes: npt.NDArray[np.int64]) -> int:
    """Find the end of the last line that ends outside of quotes."""
    last_quote = int(quotes[-1]) if len(quotes) else -1
    end = data.rfind(_NEWLINE) + 1
    if len(quotes) % 2 == 0 and end > last_quote + 1:
        return end
    octets = np.frombuffer(data, np.uint8)
    for line_end in (_NEWLINE, _RETURN):
        # A return at the very end may be half of a line end.
        ends = np.flatnonzero(octets[: len(data) - (line_end == _RETURN)] == ord(line_end))
        outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
        if len(outside):
            return int(outside[-1]) + 1
    return 0


def _count_lines(data: bytes) -> int:
    line_feeds = data.count(_NEWLINE)
    if _RETURN not in data:
        return line_feeds
    return line_feeds + data.count(_RETURN) - data.count(_RETURN + _NEWLINE)


def _header_fault(record: CsvRecord) -> str | None:
    if not _is_utf8(record.raw):
        return "is not UTF-8"
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
