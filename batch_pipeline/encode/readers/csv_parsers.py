"""The two parsers of csv text: Arrow's, and a strict one for text that Arrow may misread.

Both are needed:

- Arrow is fast. For 100,000 records of 20 numbers (16 MiB), it takes 0.085 s of one core, including
  the check of quotes, and the strict parser 1.06 s (12 times as long); with every fourth cell in
  quotes, they take 0.065 s and 2.40 s (37 times).
- Arrow is lenient. It closes an open quote at the end of the text (`1,"x` becomes `1`, `x`) and
  accepts text after a closing quote (`1,"x"y` becomes `1`, `xy`), where a record must be
  quarantined. For one record with too few cells or invalid UTF-8, it rejects the whole block.

Therefore `find_end_of_records` proves for each block, by its quotes alone, that both parsers would
read the same records. `parse_with_arrow` reads such a block; `CsvScanner` reads the other blocks
and those in which Arrow finds an error, and reports what is wrong with which record.
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pyarrow as pa
from pyarrow import csv

from batch_pipeline.encode.chunks import LazyNumbers, MalformedRecord, Octets, Offsets
from batch_pipeline.model.stream import CsvOptions

NEWLINE, RETURN = b"\n", b"\r"
_MASK = 0  # not a delimiter, quote, escape or line end


def find_end_of_records(data: bytes, options: CsvOptions, *, eof: bool) -> int | None:
    """Return where the last complete record of `data` ends, 0 if there is none.

    Return None if a quote breaks the rules, so that the two parsers may disagree. `data` starts at
    a record; its escaped bytes are masked.
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


def has_short_records(data: bytes, end: int, options: CsvOptions, limit: int) -> bool:
    """Return whether no record up to `end` exceeds a limit; quotes must follow the rules."""
    if end <= limit:
        return True
    octets = np.frombuffer(data, np.uint8, end)
    ends = line_ends_outside_quotes(octets, np.flatnonzero(octets == ord(options.quote)))
    return int(np.diff(ends, prepend=-1, append=end).max()) - 1 <= limit


def line_ends_outside_quotes(
    octets: Octets, quotes: Offsets, *, starts_in_quotes: bool = False
) -> Offsets:
    """Return the positions of line feeds and returns with an even number of quotes before them."""
    ends = np.flatnonzero((octets == ord(NEWLINE)) | (octets == ord(RETURN)))
    outside: Offsets = ends[(np.searchsorted(quotes, ends) + starts_in_quotes) % 2 == 0]
    return outside


def count_lines(data: bytes, end: int | None = None) -> int:
    """Count the line ends up to `end`; a carriage return followed by a newline counts once."""
    octets = np.frombuffer(data, np.uint8)[:end]
    line_feeds = int(np.count_nonzero(octets == ord(NEWLINE)))  # four times as fast as bytes.count
    if data.find(RETURN, 0, end) < 0:
        return line_feeds
    return line_feeds + data.count(RETURN, 0, end) - data.count(RETURN + NEWLINE, 0, end)


def mask_escaped(data: bytes, options: CsvOptions) -> bytes:
    """Return the text with the byte after each escape masked: it has no special meaning.

    Return `data` itself if nothing is escaped.
    """
    if options.escape is None or options.escape.encode() not in data:
        return data
    octets = np.frombuffer(data, np.uint8).copy()
    escapes = find_escapes(octets, ord(options.escape))
    octets[escapes[escapes < len(data) - 1] + 1] = _MASK
    return octets.tobytes()


def double_lone_escapes(data: bytes, options: CsvOptions) -> bytes | None:
    """Return the text with escapes before ordinary bytes doubled.

    Arrow drops such an escape (`a\\n` becomes `an`); here it is part of the cell. Return None if
    the last byte is an escape, which only the strict parser reads.
    """
    if options.escape is None or options.escape.encode() not in data:
        return data
    octets = np.frombuffer(data, np.uint8)
    escapes = find_escapes(octets, ord(options.escape))
    if escapes[-1] == len(data) - 1:
        return None
    special = np.zeros(256, np.bool_)
    special[list(special_bytes(options))] = True
    lone = escapes[~special[octets[escapes + 1]]]
    return np.insert(octets, lone, ord(options.escape)).tobytes() if len(lone) else data


def special_bytes(options: CsvOptions) -> bytes:
    """Return the bytes whose special meaning an escape removes."""
    return f"{options.delimiter}{options.quote}{options.escape or ''}\r\n".encode()


def find_escapes(octets: Octets, escape: int) -> Offsets:
    """Return the escapes that are not escaped themselves: in a run, every second one."""
    positions = np.flatnonzero(octets == escape)
    index = np.arange(len(positions))
    is_first = np.diff(positions, prepend=-2) != 1
    first_of_run = np.maximum.accumulate(np.where(is_first, index, 0))
    active: Offsets = positions[(index - first_of_run) % 2 == 0]
    return active


def _quotes_follow_rules(octets: Octets, quotes: Offsets, options: CsvOptions) -> bool:
    """Return whether quotes open at the start of a cell, close at its end, and are doubled inside.

    Counted from 1, odd quotes open and even ones close; a doubled quote closes and opens again.
    Invariant: as long as every quote follows these rules, the parity of the quotes before a byte
    says whether it is inside quotes. A single quote that breaks them (`5" pipe`) inverts the parity
    for all following bytes, so that nothing after it can be derived from the count.
    """
    edge = np.zeros(256, np.bool_)
    edge[[ord(options.quote), ord(options.delimiter), *b"\r\n"]] = True
    opening, closing = quotes[0::2], quotes[1::2]
    # Treat the bytes before the first and after the last one, which do not exist, as quotes.
    before = edge.take(octets.take(np.maximum(opening - 1, 0)))
    behind = edge.take(octets.take(closing + 1, mode="clip"))
    return bool(before.all() and behind.all())


def guess_in_quotes(text: bytes, options: CsvOptions) -> bool:
    """Guess whether a part of a text starts inside quotes.

    It does if its quotes follow the rules only when the first one is a closing quote. Both readings
    are valid if text inside quotes has delimiters or line ends around its own quotes, which is rare
    (Ge et al., "Speculative Distributed CSV Data Parsing for Big Data Analytics", SIGMOD 2019).
    """
    octets = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(octets == ord(options.quote))
    if _quotes_follow_rules(octets, quotes, options):
        return False
    return _quotes_follow_rules(octets, quotes[1:], options)


def _last_line_end(data: bytes, quotes: Offsets) -> int:
    """Return the end of the last line that ends outside of quotes."""
    end = data.rfind(NEWLINE) + 1
    if end and np.searchsorted(quotes, end) % 2 == 0:
        return end
    ends = line_ends_outside_quotes(np.frombuffer(data, np.uint8), quotes)
    # A return at the very end may be the first half of a line end.
    ends = ends[ends < len(data) - data.endswith(RETURN)]
    return int(ends[-1]) + 1 if len(ends) else 0


Cells = list[bytes | None]


def parse_with_arrow(
    data: bytes, masked: bytes, end: int, options: CsvOptions, header: tuple[str, ...]
) -> pa.RecordBatch | None:
    """Parse the records up to `end`; return None if Arrow finds an error.

    `masked` is `data` with its escaped bytes masked; `find_end_of_records` returned `end` for it.
    """
    text: bytes | pa.Buffer = pa.py_buffer(data)[:end]
    if masked is not data:
        escaped = double_lone_escapes(data[:end], options)
        if escaped is None:
            return None
        text = escaped
    if masked[end - 1 : end] not in (NEWLINE, RETURN):
        # At the end of the text, Arrow reads the empty cell of `"1",` as empty text, not as null.
        text = bytes(text) + NEWLINE
    if data.startswith(codecs.BOM_UTF8):
        # Arrow removes a byte order mark, which is part of a cell in the middle of a file, such as
        # after concatenating files. It skips an empty line before the mark.
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
                newlines_in_values=False,  # there is one block, so Arrow need not find its records
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                check_utf8=not data.isascii(),  # faster for the whole text than cell by cell
            ),
        )
    except pa.ArrowInvalid:
        return None
    if not table.num_rows:
        return cells_to_batch([], header)
    batch: pa.RecordBatch = table.to_batches()[0]  # one block makes one batch
    return batch


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
    `line` the number of the line after them, `size_bytes` the length of the last record without its
    line end. Unless `eof` is set, a record that may continue after the block is left unread.
    """

    def __init__(self, data: bytes, options: CsvOptions, *, first_line: int, eof: bool) -> None:
        self.consumed = self.size_bytes = 0
        self.line = first_line
        self._data = data
        self._eof = eof
        self._delimiter = options.delimiter.encode()
        self._quote = options.quote.encode()
        quote = re.escape(self._quote)
        self._closing = re.compile(
            b"[^%b]*(?:%b%b[^%b]*)*%b(?!%b)" % (quote, quote, quote, quote, quote, quote)
        )
        # Cells and lines are found in the masked text, and cut from `data` at the same positions.
        self._masked = mask_escaped(data, options)
        self._has_escapes = self._masked is not data
        escaped = b"%b([%b])" % (
            re.escape((options.escape or "").encode()),
            re.escape(special_bytes(options)),
        )
        self._escaped = re.compile(escaped)
        self._escaped_or_doubled = re.compile(b"%b|%b%b" % (escaped, quote, quote))

    def __iter__(self) -> Iterator[CsvRecord | MalformedRecord]:
        all_lines = self._masked.splitlines(keepends=True)
        if all_lines and not self._eof and not all_lines[-1].endswith(NEWLINE):
            # The last line may continue after the block. Other lines after the last newline may
            # end with a return.
            all_lines.pop()
        lines = iter(all_lines)
        for text in lines:
            body = text.rstrip(b"\r\n")
            records: list[CsvRecord | MalformedRecord] = []
            if self._has_escapes or self._quote in text:
                scanned = self._scan(text, lines)
                if scanned is None:
                    return
                text, records = scanned  # noqa: PLW2901 - with the lines that it continues on
                body = text.rstrip(b"\r\n")
            elif body:
                cells: Cells = [cell or None for cell in body.split(self._delimiter)]
                records = [CsvRecord(line=self.line, raw=body, cells=cells)]
            self.size_bytes = len(body)
            self.line += self._count_lines(self.consumed, len(text))
            self.consumed += len(text)
            yield from records

    def _scan(
        self, first: bytes, following: Iterator[bytes]
    ) -> tuple[bytes, list[CsvRecord | MalformedRecord]] | None:
        """Scan a record cell by cell; return its lines and the record, None if it is cut off."""
        if not first.rstrip(b"\r\n"):
            return first, []
        text = bytearray(first)
        spans: list[tuple[int, int]] = []
        position, is_last = 0, False
        while not is_last:
            if text[position : position + 1] != self._quote:
                end = text.find(self._delimiter, position)
                is_last = end < 0
                end = len(text.rstrip(b"\r\n")) if is_last else end
            else:
                scan_from = position + 1
                while (match := self._closing.match(text, scan_from)) is None:
                    scan_from = len(text)
                    if (line := next(following, None)) is not None:
                        text += line
                    elif self._eof:
                        return bytes(text), self._broken(text, "a quote is not closed")
                    else:
                        return None
                end = match.end()
                behind = bytes(text[end : end + 1])
                is_last = behind in (b"", b"\r", b"\n")
                if not is_last and behind != self._delimiter:
                    return bytes(text), self._broken(text, "text follows a closing quote")
            spans.append((position, end))
            position = end + 1
        raw = self._data[self.consumed : self.consumed + len(text.rstrip(b"\r\n"))]
        cells = [self._cell(raw[start:end]) for start, end in spans]
        return bytes(text), [CsvRecord(line=self.line, raw=raw, cells=cells)]

    def _cell(self, text: bytes) -> bytes | None:
        """Return the value of a cell."""
        if not text.startswith(self._quote):
            return (self._escaped.sub(rb"\1", text) if self._has_escapes else text) or None
        if not self._has_escapes:
            return text[1:-1].replace(self._quote * 2, self._quote)
        return self._escaped_or_doubled.sub(lambda match: match[1] or self._quote, text[1:-1])

    def _count_lines(self, start: int, size: int) -> int:
        """Count the lines of the text of one or more records, including escaped line ends."""
        return len(self._data[start : start + size].splitlines())

    def _broken(self, text: bytearray, reason: str) -> list[CsvRecord | MalformedRecord]:
        # The quote could end anywhere, so no line of the span is read as a record. Each line counts
        # as a malformed record, so that a limit on bad records covers everything that is lost.
        bad: list[CsvRecord | MalformedRecord] = []
        start, line = self.consumed, self.line
        for part in text.splitlines(keepends=True):
            raw = self._data[start : start + len(part.rstrip(b"\r\n"))]
            is_first = start == self.consumed
            why = reason if is_first else f"follows an unclosed quote on line {self.line}"
            if raw:
                bad.append(MalformedRecord(line=line, reason=why, raw=raw))
            line += self._count_lines(start, len(part))
            start += len(part)
        return bad


def lazy_line_numbers(
    data: bytes, end: int, options: CsvOptions, first_line: int, count: int
) -> LazyNumbers:
    """Return the line numbers of the `count` records up to `end`, scanned when accessed."""

    def scan() -> list[int]:
        scanner = CsvScanner(data[:end], options, first_line=first_line, eof=True)
        return [record.line for record in scanner]

    return LazyNumbers(count, scan)


_DELIMITERS = (",", ";", "\t", "|")
_MAX_RECORDS = 100
_DEFAULT = CsvOptions()
_NUMBER = re.compile(rb"[+-]?[0-9]+([.,][0-9]+)?")


def guess_charset(start: bytes) -> str:
    """Return a charset that can decode the start of a text, `utf-8` if possible."""
    for charset in ("utf-8", "cp1252"):
        try:
            codecs.getincrementaldecoder(charset)().decode(start)
        except UnicodeDecodeError:
            continue
        return charset
    return "iso-8859-1"


def detect_dialect(
    start: bytes, *, is_whole: bool, options: CsvOptions = _DEFAULT
) -> CsvOptions | None:
    """Return the dialect of csv text, None if no delimiter splits its lines consistently.

    A delimiter fits if nine out of ten records have as many cells as the first record, at least
    two. A first record that begins with a number is not a header: its columns get `names`.
    `is_whole` states that `start` is the whole text. Quote and escape are those of `options`.
    """
    most = 1
    best: CsvOptions | None = None
    for delimiter in _DELIMITERS:
        if delimiter in {options.quote, options.escape}:
            continue
        candidate = replace(options, delimiter=delimiter)
        records = _records(start, candidate, is_whole=is_whole)
        width = len(records[0].cells) if records else 0
        alike = sum(len(record.cells) == width for record in records)
        if width > most and alike >= 0.9 * len(records):
            most, best = width, _with_names(records, candidate)
    return best


def wrong_delimiter_reason(
    start: bytes, header: str, options: CsvOptions, *, is_whole: bool
) -> str | None:
    """Return why a header of one column seems to have another delimiter, None if it does not.

    The header and nine out of ten of the first records must have the same number of cells, and the
    names must be distinct.
    """
    dialect = detect_dialect(start, is_whole=is_whole, options=options)
    if dialect is None or dialect.delimiter == options.delimiter:
        return None
    names = _records(start, dialect, is_whole=is_whole)[0].cells
    if None in names or b"" in names or len(set(names)) < len(names):
        return None
    detected = dialect.delimiter.replace("\t", "\\t")
    return (
        f"has one column, {header[:60]!r}, with delimiter `{options.delimiter}`, but "
        f"{len(names)} with `{detected}`, like the records; set `source.options: "
        f'{{delimiter: "{detected}"}}`, or `{{delimiter: "{options.delimiter}"}}` to read it as '
        f"one column"
    )


def _records(start: bytes, options: CsvOptions, *, is_whole: bool) -> list[CsvRecord]:
    records = islice(CsvScanner(start, options, first_line=1, eof=is_whole), _MAX_RECORDS)
    return [record for record in records if isinstance(record, CsvRecord)]


def _with_names(records: list[CsvRecord], options: CsvOptions) -> CsvOptions:
    first = records[0].cells
    if len(records) < 2 or not _NUMBER.fullmatch(first[0] or b""):
        return options
    names = tuple(f"column_{number}" for number in range(1, len(first) + 1))
    return replace(options, names=names)
