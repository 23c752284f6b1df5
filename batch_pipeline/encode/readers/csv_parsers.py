"""The two parsers of csv text: Arrow's, and a strict one for what Arrow cannot be trusted with.

Both are needed:

- Arrow is fast. 100,000 records of 20 numbers (16 MiB) take it 0.085 s of one core, the check of
  quotes included, and the strict parser 1.06 s (12 times as long); with every fourth cell in
  quotes they take 0.065 s and 2.40 s (37 times).
- Arrow is lenient. It closes an open quote at the end of the text (`1,"x` becomes `1`, `x`) and
  takes text behind a closed one (`1,"x"y` becomes `1`, `xy`), where a record must be quarantined.
  For one record with too few cells or invalid UTF-8 it rejects the whole block.

So `find_end_of_records` proves for each block, by looking at its quotes only, that both parsers
would read the same records. `parse_with_arrow` reads such a block; `CsvScanner` reads the others,
and those in which Arrow finds an error, and says what is wrong with which record.
"""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from batch_pipeline.encode.chunks import MalformedRecord
from batch_pipeline.model.stream import CsvOptions

NEWLINE, RETURN = b"\n", b"\r"
_MASK = 0  # not a delimiter, quote, escape or line end

Octets = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


def find_end_of_records(data: bytes, options: CsvOptions, *, eof: bool) -> int | None:
    """Return where the last complete record of `data` ends, 0 if there is none.

    None if a quote is where the rules allow none, so that the two parsers may disagree. `data`
    starts at a record; its escaped bytes are masked.
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


def longest_record_bytes(data: bytes, options: CsvOptions) -> int:
    """Return the bytes of the longest record, or a few more; quotes must follow the rules."""
    octets = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(octets == ord(options.quote))
    ends = np.flatnonzero((octets == ord(NEWLINE)) | (octets == ord(RETURN)))
    outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(np.diff(outside, prepend=-1, append=len(data)).max()) - 1


def count_lines(data: bytes, end: int | None = None) -> int:
    """Count the line ends up to `end`; a carriage return and the newline behind it are one."""
    octets = np.frombuffer(data, np.uint8)[:end]
    line_feeds = int(np.count_nonzero(octets == ord(NEWLINE)))  # four times as fast as bytes.count
    if data.find(RETURN, 0, end) < 0:
        return line_feeds
    return line_feeds + data.count(RETURN, 0, end) - data.count(RETURN + NEWLINE, 0, end)


def mask_escaped(data: bytes, options: CsvOptions) -> bytes:
    """Return text in which the byte behind each escape is masked: it has no special meaning.

    Returns `data` itself where nothing is escaped.
    """
    if options.escape is None or options.escape.encode() not in data:
        return data
    octets = np.frombuffer(data, np.uint8).copy()
    escapes = _escapes(octets, options.escape)
    octets[escapes[escapes < len(data) - 1] + 1] = _MASK
    return octets.tobytes()


def double_lone_escapes(data: bytes, options: CsvOptions) -> bytes | None:
    """Return text in which escapes in front of ordinary bytes are escaped themselves.

    Arrow drops such an escape (`a\\n` becomes `an`); here it is part of the cell. None if the last
    byte is an escape, which only the strict parser reads.
    """
    if options.escape is None or options.escape.encode() not in data:
        return data
    octets = np.frombuffer(data, np.uint8)
    escapes = _escapes(octets, options.escape)
    if escapes[-1] == len(data) - 1:
        return None
    special = np.zeros(256, np.bool_)
    special[list(special_bytes(options))] = True
    lone = escapes[~special[octets[escapes + 1]]]
    return np.insert(octets, lone, ord(options.escape)).tobytes() if len(lone) else data


def special_bytes(options: CsvOptions) -> bytes:
    """Return the bytes whose special meaning an escape removes."""
    return f"{options.delimiter}{options.quote}{options.escape or ''}\r\n".encode()


def _escapes(octets: Octets, escape: str) -> Positions:
    """Return the escapes that are not escaped themselves: in a run, every second one."""
    positions = np.flatnonzero(octets == ord(escape))
    index = np.arange(len(positions))
    is_first = np.diff(positions, prepend=-2) != 1
    first_of_run = np.maximum.accumulate(np.where(is_first, index, 0))
    active: Positions = positions[(index - first_of_run) % 2 == 0]
    return active


def _quotes_follow_rules(octets: Octets, quotes: Positions, options: CsvOptions) -> bool:
    """Return whether quotes open at the start of a cell, close at its end, and are doubled inside.

    Counted from 1, odd quotes open and even ones close; a doubled quote closes and opens again.
    Invariant: as long as every quote is at such a place, the parity of the quotes in front of a
    byte says whether it is inside quotes. One quote that is not (`5" pipe`) inverts the parity of
    all that follows, so that nothing behind it can be derived from the count.
    """
    edge = np.zeros(256, np.bool_)
    edge[[ord(options.quote), ord(options.delimiter), *b"\r\n"]] = True
    opening, closing = quotes[0::2], quotes[1::2]
    before = edge[octets[opening - 1]] | (opening == 0)
    at_end = closing == len(octets) - 1
    behind = edge[octets[np.where(at_end, closing, closing + 1)]]
    return bool(before.all() and behind.all())


def _last_line_end(data: bytes, quotes: Positions) -> int:
    """Return the end of the last line that ends outside of quotes."""
    end = data.rfind(NEWLINE) + 1
    if end and np.searchsorted(quotes, end) % 2 == 0:
        return end
    octets = np.frombuffer(data, np.uint8)
    for line_end in (NEWLINE, RETURN):
        # A return at the very end may be the first half of a line end.
        ends = np.flatnonzero(octets[: len(data) - (line_end == RETURN)] == ord(line_end))
        outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
        if len(outside):
            return int(outside[-1]) + 1
    return 0


Cells = list[bytes | None]


def parse_with_arrow(
    data: bytes, masked: bytes, end: int, options: CsvOptions, header: tuple[str, ...]
) -> pa.RecordBatch | None:
    """Parse the records up to `end`, None where Arrow finds an error.

    `masked` is `data` with its escaped bytes masked; `find_end_of_records` returned `end` for it.
    """
    text: bytes | pa.Buffer = pa.py_buffer(data)[:end]
    if masked is not data:
        escaped = double_lone_escapes(data[:end], options)
        if escaped is None:
            return None
        text = escaped
    if masked[end - 1 : end] not in (NEWLINE, RETURN):
        # At the end of the text Arrow takes the empty cell of `"1",` for empty text, not for null.
        text = bytes(text) + NEWLINE
    if data.startswith(BOM_UTF8):
        # Arrow removes a byte order mark, which is part of a cell in the middle of a file, as
        # where files were put together. It skips an empty line in front of one.
        text = NEWLINE + bytes(text)
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(
                column_names=header, block_size=len(text) + 1, use_threads=False
            ),
            parse_options=csv.ParseOptions(
                delimiter=options.delimiter,
                quote_char=options.quote,
                escape_char=options.escape or False,
                newlines_in_values=False,  # the block is one, so Arrow need not find its records
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:
        return None
    if not table.num_rows:
        return cells_to_batch([], header)
    columns = [column.chunk(0) for column in table.columns]  # one block makes one chunk
    return pa.RecordBatch.from_arrays(columns, list(header))


def cells_to_batch(rows: list[Cells], header: tuple[str, ...]) -> pa.RecordBatch:
    """Return records of the strict parser as a table, as Arrow's parser would."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(header)
    arrays = [pa.array(column, pa.binary()).cast(pa.string()) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, list(header))


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvRecord:
    """A well-formed record; an empty cell without quotes is None, one with quotes is empty."""

    line: int
    raw: bytes
    cells: Cells


class CsvScanner:
    """The strict parser: the records of one block, which starts at a record, and its bad lines.

    Blank lines are skipped. `consumed` is the number of bytes of the records returned so far,
    `line` the number of the line after them, `size_bytes` the length of the last one without its
    line end. Unless `eof`, a record that may continue behind the block is left unread.
    """

    def __init__(self, data: bytes, options: CsvOptions, *, first_line: int, eof: bool) -> None:
        self.consumed = self.size_bytes = 0
        self.line = first_line
        self._eof = eof
        self._delimiter = options.delimiter.encode()
        self._quote = options.quote.encode()
        quote = re.escape(self._quote)
        self._closing = re.compile(
            b"[^%b]*(?:%b%b[^%b]*)*%b(?!%b)" % (quote, quote, quote, quote, quote, quote)
        )
        masked = mask_escaped(data, options)
        self._texts = self._lines = masked.splitlines(keepends=True)
        self._has_escapes = masked is not data
        if self._has_escapes:  # boundaries are found in `_lines`, cells are cut from `_texts`
            ends = list(accumulate(map(len, self._lines)))
            starts = [0, *ends]
            self._texts = [data[a:b] for a, b in zip(starts, ends, strict=False)]
            self._escaped = _Escapes(options)
        if self._lines and not eof and not self._lines[-1].endswith(b"\n"):
            self._lines.pop()

    def __iter__(self) -> Iterator[CsvRecord | MalformedRecord]:
        index = 0
        while index < len(self._lines):
            line = self._lines[index]
            body = line.rstrip(b"\r\n")
            used = 1
            records: list[CsvRecord | MalformedRecord] = []
            if self._quote in line:
                scanned = self._quoted(index)
                if scanned is None:
                    return
                used, records = scanned
            elif body:
                cells: Cells = [cell or None for cell in body.split(self._delimiter)]
                raw = self._texts[index][: len(body)]
                if self._has_escapes:
                    cells = self._unescaped(raw, cells)
                records = [CsvRecord(line=self.line, raw=raw, cells=cells)]
            taken = sum(map(len, self._lines[index : index + used]))
            last = self._lines[index + used - 1]
            self.size_bytes = taken - len(last) + len(last.rstrip(b"\r\n"))
            self.consumed += taken
            self.line += self._lines_of(index, used)
            index += used
            yield from records

    def _quoted(self, first: int) -> tuple[int, list[CsvRecord | MalformedRecord]] | None:
        """Return how many lines a record with quotes has, and the record; None if it is cut off."""
        text = bytearray(self._lines[first])
        spans: list[tuple[int, int]] = []
        used, position = 1, 0
        while True:
            if text[position : position + 1] != self._quote:
                end, last = self._plain_cell(text, position)
                spans.append((position, end))
                position = end + 1
            else:
                scan_from = position + 1
                while (match := self._closing.match(text, scan_from)) is None:
                    if first + used == len(self._lines):
                        if not self._eof:
                            return None
                        return used, self._broken(first, used, "a quote is not closed")
                    scan_from = len(text)
                    text += self._lines[first + used]
                    used += 1
                spans.append((position, match.end()))
                position = match.end()
                behind = bytes(text[position : position + 1])
                last = behind in (b"", b"\r", b"\n")
                if not last and behind != self._delimiter:
                    return used, self._broken(first, used, "text follows a closing quote")
                position += 1
            if last:
                size = len(text.rstrip(b"\r\n"))
                raw = b"".join(self._texts[first : first + used])[:size]
                cells = [self._cell(raw[start:end]) for start, end in spans]
                return used, [CsvRecord(line=self.line, raw=raw, cells=cells)]

    def _plain_cell(self, text: bytearray, position: int) -> tuple[int, bool]:
        """Return the end of a cell without quotes, and whether it is the last one."""
        end = text.find(self._delimiter, position)
        return (len(text.rstrip(b"\r\n")), True) if end < 0 else (end, False)

    def _cell(self, text: bytes) -> bytes | None:
        """Return the value of a cell."""
        quote = self._quote
        if not text.startswith(quote):
            if self._has_escapes:
                text = self._escaped.plain(text)
            return text or None
        if self._has_escapes:
            return self._escaped.quoted(text[1:-1])
        return text[1:-1].replace(quote * 2, quote)

    def _unescaped(self, raw: bytes, masked: Cells) -> Cells:
        """Remove the escapes of a record without quotes; `masked` shows where its cells end."""
        cells: Cells = []
        start = 0
        for cell in masked:
            end = start + len(cell or b"")
            cells.append(self._escaped.plain(raw[start:end]) or None)
            start = end + 1
        return cells

    def _lines_of(self, first: int, used: int) -> int:
        if not self._has_escapes:
            return used
        text = b"".join(self._texts[first : first + used])
        return count_lines(text) + (not text.endswith((b"\r", b"\n")))

    def _broken(self, first: int, used: int, reason: str) -> list[CsvRecord | MalformedRecord]:
        # The quote could end anywhere, so no line of the span is taken for a record. Each counts as
        # a malformed one: a limit on bad records then sees how much is lost.
        bad: list[CsvRecord | MalformedRecord] = []
        for offset in range(used):
            line = self.line + self._lines_of(first, offset) if offset else self.line
            size = len(self._lines[first + offset].rstrip(b"\r\n"))
            raw = self._texts[first + offset][:size]
            why = reason if offset == 0 else f"stands behind an open quote of line {self.line}"
            if raw:
                bad.append(MalformedRecord(line=line, reason=why, raw=raw))
        return bad


class _Escapes:
    """Removes escapes and doubled quotes from cells."""

    def __init__(self, options: CsvOptions) -> None:
        escape = re.escape((options.escape or "").encode())
        quote = options.quote.encode()
        special = re.escape(special_bytes(options))
        self._quote = quote
        self._plain = re.compile(b"%b([%b])" % (escape, special))
        self._quoted = re.compile(b"%b([%b])|%b" % (escape, special, re.escape(quote * 2)))

    def plain(self, text: bytes) -> bytes:
        return self._plain.sub(rb"\1", text)

    def quoted(self, text: bytes) -> bytes:
        return self._quoted.sub(lambda match: match[1] or self._quote, text)


class LazyLineNumbers(Sequence[int]):
    """The lines of the `count` records of `data` up to `end`; scanned when one is accessed."""

    def __init__(
        self, data: bytes, end: int, options: CsvOptions, first_line: int, count: int
    ) -> None:
        self._data = data
        self._end = end
        self._options = options
        self._first_line = first_line
        self._count = count
        self._lines: list[int] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if self._lines is None:
            whole = self._data[: self._end]
            scanner = CsvScanner(whole, self._options, first_line=self._first_line, eof=True)
            self._lines = [record.line for record in scanner]
        return self._lines[index]
