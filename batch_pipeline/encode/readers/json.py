"""Read JSON files: an array of records, or documents one after the other, in blocks.

Record boundaries are found with NumPy from the brackets outside of strings, so that no value is
parsed here and a file of any size needs the memory of a few blocks. A streaming parser would stop
at the first malformed record; here a malformed record is passed on unchanged and goes to the
quarantine. The invariant is that no byte is skipped: if the end of a record is not certain, the
whole file is rejected instead of guessing, because a missing quote or bracket may swallow records.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from batch_pipeline.encode.chunks import JsonRecords, LazyNumbers, Mask, Octets, Offsets
from batch_pipeline.encode.readers.csv_parsers import find_escapes
from batch_pipeline.encode.readers.decoded_file import BLOCK_BYTES, DecodedFile
from batch_pipeline.model.stream import Stream

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
# One comparison finds the four brackets and few other bytes (Y y _ and DEL), which a table then
# excludes; comparing with each bracket takes four passes over the text.
_BRACKET_BITS, _BRACKETS = 0b1101_1001, 0b0101_1001
_SIDE_BITS, _SIDE_OF_OPENING = 0b110, 0b010

_IS_BRACKET = np.isin(np.arange(256), list(b"[]{}"))

Spans = list[tuple[int, int]]  # start and stop offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class BracketScan:
    """The outermost objects and arrays of a text, at `starts[i]:ends[i]`.

    `open_at` is the start of a last object or array that does not end in the text. `closed_at` is
    the position of a bracket that closes one opened before the text; nothing after it was examined.
    Either is None if there is none. `max_depth` counts nested levels.
    """

    starts: list[int]
    ends: list[int]
    open_at: int | None
    closed_at: int | None
    max_depth: int = 0


def scan_brackets(text: bytes) -> BracketScan:
    """Find the outermost brackets of a text that starts outside of strings and may end anywhere."""
    data = np.frombuffer(text, np.uint8)
    at = np.flatnonzero((data & _BRACKET_BITS) == _BRACKETS)
    at = at[_IS_BRACKET[data[at]]]
    if len(at) == 0:
        return BracketScan(starts=[], ends=[], open_at=None, closed_at=None)
    at = at[_are_outside_strings(_mark_quotes(data), at)]
    steps = np.where((data[at] & _SIDE_BITS) == _SIDE_OF_OPENING, 1, -1)
    depths = np.cumsum(steps)
    closing = np.flatnonzero(depths < 0)
    closed_at = int(at[closing[0]]) if len(closing) else None
    if closed_at is not None:
        at, steps, depths = at[: closing[0]], steps[: closing[0]], depths[: closing[0]]
    starts = at[(depths == 1) & (steps == 1)].tolist()
    ends = (at[(depths == 0) & (steps == -1)] + 1).tolist()
    open_at = starts.pop() if len(starts) > len(ends) else None
    max_depth = int(depths.max(initial=0))
    return BracketScan(
        starts=starts, ends=ends, open_at=open_at, closed_at=closed_at, max_depth=max_depth
    )


def _mark_quotes(data: Octets) -> Mask:
    """Mark the quotes that start or end a string, that is, all that are not escaped."""
    quotes: Mask = data == _QUOTE
    escaped = find_escapes(data, _BACKSLASH) + 1
    quotes[escaped[escaped < len(data)]] = False
    return quotes


def _are_outside_strings(quotes: Mask, at: Offsets) -> Mask:
    """Mark the positions outside of strings, which have an even number of quotes before them."""
    bounds = np.concatenate(([0], at))
    odd = np.bitwise_xor.reduceat(quotes.view(np.uint8), bounds)[:-1]
    outside: Mask = np.bitwise_xor.accumulate(odd) == 0
    return outside


BLANKS = b" \t\r\n"

# Possessive quantifiers (`++`, `*+`) prevent backtracking, so that hostile text takes linear time.
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_STRINGS = re.compile(_STRING, re.DOTALL)
_STRING_OR_OPEN = re.compile(_STRING.removesuffix(b'"') + b'("?)', re.DOTALL)
_UP_TO_COMMA = re.compile(rb'(?:[^",]++|' + _STRING + rb")*+", re.DOTALL)
_BLANK = re.compile(rb"[ \t\r\n]*+")
_SCALAR = re.compile(rb'[^ \t\r\n",]++|' + _STRING, re.DOTALL)
# A string next to another value without a separator, as the result of a missing quote.
_MISPLACED = re.compile(rb'[^[{,:\s]\s*""|""\s*[^,:}\]\s]')
_BRACKET = re.compile(rb"[][{}]")
_STRING_OR_BREAK = re.compile(_STRING + rb"|[\r\n]", re.DOTALL)


class RecordBoundaryError(Exception):
    """The start or the end of a record is not certain; `at` is an offset in the current text."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.at = at


def find_scalar_elements(
    text: bytes, start: int, gap_end: int, *, has_left: bool, has_right: bool
) -> Spans:
    """Find the elements that are neither objects nor arrays between two objects or arrays.

    `has_left` and `has_right` state whether there is an object or array on that side.

    Raises:
        RecordBoundaryError: There is an additional comma, or a comma is missing.
    """
    spans: Spans = []
    is_first = True
    while True:
        match = _UP_TO_COMMA.match(text, start, gap_end)
        stop = match.end() if match else start
        is_last = stop == gap_end
        if not is_last and text[stop : stop + 1] != b",":
            raise RecordBoundaryError("a quote is not closed", stop)
        first, last = _strip(text, start, stop)
        values = (first < last) + (is_first and has_left) + (is_last and has_right)
        if values > 1:
            raise RecordBoundaryError("a comma is missing between two elements", first)
        if values == 0 and not (is_first and is_last):
            raise RecordBoundaryError(
                "a comma has no element on one side", stop if is_first else start
            )
        if first < last:
            if b'"' in text[first:last] and not _STRINGS.fullmatch(text, first, last):
                raise RecordBoundaryError("a misplaced quote", first)
            spans.append((first, last))
        if is_last:
            return spans
        start, is_first = stop + 1, False


def find_scalar_documents(text: bytes, start: int, stop: int) -> Spans:
    """Find the documents that are neither objects nor arrays: words and strings.

    Raises:
        RecordBoundaryError: There is a comma, or a quote is not closed.
    """
    spans: Spans = []
    while True:
        # Match a pattern, because slicing would copy the rest for each scalar.
        blank = _BLANK.match(text, start, stop)
        start = blank.end() if blank else start
        if start == stop:
            return spans
        match = _SCALAR.match(text, start, stop)
        if match is None:
            is_comma = text[start : start + 1] == b","
            reason = "a comma between documents" if is_comma else "a quote is not closed"
            raise RecordBoundaryError(reason, start)
        spans.append(match.span())
        start = match.end()


def check_boundaries(text: bytes, start: int, stop: int) -> None:
    """Check that the end of a malformed object or array is certain.

    With a missing quote or bracket it may include the next records, or end too early.

    Raises:
        RecordBoundaryError: Its quotes or brackets do not match.
    """
    bare = _STRING_OR_OPEN.sub(lambda match: b'""' if match[1] else b'"', text[start:stop])
    rest = bare.replace(b'""', b"")
    if b'"' in rest or b"\\" in rest or _MISPLACED.search(bare):
        raise RecordBoundaryError("its quotes do not match: its end cannot be determined", start)
    expected: list[bytes] = []
    for bracket in _BRACKET.findall(bare):
        if bracket in b"[{":
            expected.append(b"]" if bracket == b"[" else b"}")
        elif not expected or expected.pop() != bracket:
            raise RecordBoundaryError(
                "its brackets do not match: its end cannot be determined", start
            )


def _strip(text: bytes, start: int, stop: int) -> tuple[int, int]:
    part = text[start:stop]
    first = stop - len(part.lstrip(BLANKS))
    return first, max(first, start + len(part.rstrip(BLANKS)))


_MAX_DEPTH = 10_000  # of an incomplete record; no parser accepts so many levels
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_decode_values = msgspec.json.Decoder(list[msgspec.Raw]).decode


_COMMA = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")


def read_chunks(source: DecodedFile, _stream: Stream) -> Iterator[JsonRecords]:
    """Yield the records of a file."""
    return JsonReader(source).chunks()


class JsonReader:
    """Reads the records of one JSON file, each as one line: line ends between values become spaces.

    Line ends inside of strings are not valid JSON. They remain, so that the validator rejects them.
    """

    def __init__(self, source: DecodedFile, *, block_bytes: int = BLOCK_BYTES) -> None:
        self._source = source
        self._block_bytes = block_bytes
        self._is_array = False
        self._has_left = False  # whether a record precedes the text to be read
        self._array_ended = False
        self._line = 1  # of the start of the text to be read
        self._records = 0

    def chunks(self) -> Iterator[JsonRecords]:
        """Yield the records in order, a few MiB at a time.

        Raises:
            BadFileError: The file cannot be read, a record is too long, or the start or the end of
                a record is not certain.
        """
        text, eof = self._read_start()
        while True:
            try:
                used, spans = self._find_records(text, eof=eof)
                values = self._extract(text, spans)
            except RecordBoundaryError as error:
                line = self._line_of(text, error.at)
                raise self._source.bad_file(str(error), line=line) from error
            if values:
                yield self._chunk(text, spans, values)
            self._line += text.count(b"\n", 0, used)
            text = text[used:]
            if len(text) > self._source.limits.max_record_bytes:
                raise self._source.too_long("a record", line=self._line_of(text, 0))
            if eof:
                return
            wanted = max(self._block_bytes, len(text))
            block = self._source.read(wanted)
            eof = len(block) < wanted
            text += block

    def _read_start(self) -> tuple[bytes, bool]:
        """Read up to the first record, and return whether that is the whole file."""
        eof, text = False, b""
        while not eof and not text:
            block = self._source.read(self._block_bytes)
            eof = len(block) < self._block_bytes
            text = block.lstrip(BLANKS)
            self._line += block.count(b"\n", 0, len(block) - len(text))
        if text.startswith(b"["):
            self._is_array = True
            text = text[1:]
        return text, eof

    def _find_records(self, text: bytes, *, eof: bool) -> tuple[int, Spans]:
        """Return the number of bytes used, and the spans of the complete records in them."""
        if self._array_ended:
            self._check_rest(text, 0)
            return len(text), []
        scan = scan_brackets(text)
        spans = list(zip(scan.starts, scan.ends, strict=True))
        stop = scan.closed_at
        if scan.open_at is not None and scan.max_depth > _MAX_DEPTH:
            raise RecordBoundaryError(
                "the record that starts here is nested too deeply", scan.open_at
            )
        if stop is not None and (not self._is_array or text[stop : stop + 1] != b"]"):
            raise RecordBoundaryError("an unmatched closing bracket", stop)
        if stop is None and eof:
            self._check_end(text, scan)
            stop = len(text)
        spans = self._add_scalars(text, spans, stop)
        if stop is None:
            stop = spans[-1][1] if spans else 0
        elif scan.closed_at is not None:
            self._array_ended = True
            self._check_rest(text, stop + 1)
            stop = len(text)
        self._has_left = self._has_left or bool(spans)
        return stop, spans

    def _check_end(self, text: bytes, scan: BracketScan) -> None:
        if scan.open_at is not None:
            raise RecordBoundaryError("the record that starts here has no end", scan.open_at)
        if self._is_array:
            raise RecordBoundaryError("the array has no end", len(text))

    def _check_rest(self, text: bytes, start: int) -> None:
        rest = text[start:].lstrip(BLANKS)
        if rest:
            raise RecordBoundaryError("data follows the end of the array", len(text) - len(rest))

    def _add_scalars(self, text: bytes, spans: Spans, stop: int | None) -> Spans:
        """Check the text around the records up to `stop`, and add the spans of scalars in it."""
        between, has_left = _COMMA if self._is_array else _BLANK, self._has_left
        # Separators repeat, so only distinct ones are checked; most files have no scalars.
        separators = {text[end:start] for (_, end), (start, _) in pairwise(spans)}
        is_clean = all(map(between.fullmatch, separators))
        if spans:
            first = between if has_left else _BLANK
            is_clean = is_clean and bool(first.fullmatch(text, 0, spans[0][0]))
        if stop is not None:
            last = spans[-1][1] if spans else 0
            is_clean = is_clean and bool(_BLANK.fullmatch(text, last, stop))
        if is_clean:
            return spans
        scalars: Spans = []
        start = 0
        for index, (gap_end, next_start) in enumerate([*spans, (stop, 0)]):
            if gap_end is None:
                break
            if self._is_array:
                has_right = index < len(spans)
                scalars += find_scalar_elements(
                    text, start, gap_end, has_left=has_left, has_right=has_right
                )
            else:
                scalars += find_scalar_documents(text, start, gap_end)
            start, has_left = next_start, True
        return sorted([*spans, *scalars])

    def _extract(self, text: bytes, spans: Spans) -> list[bytes]:
        """Return the records, each as one line."""
        limit = self._source.limits.max_record_bytes
        for start, end in spans if len(text) > limit else ():
            if end - start > limit:
                raise self._source.too_long("a record", line=self._line_of(text, start))
        values = [text[start:end] for start, end in spans]
        joined = b",".join(values)
        if not _are_valid(joined, len(values)):
            return [
                _join_lines(value) if _are_valid(value, 1) else _extract_invalid(text, span)
                for value, span in zip(values, spans, strict=True)
            ]
        return [_join_lines(value) for value in values] if _has_breaks(joined) else values

    def _chunk(self, text: bytes, spans: Spans, values: list[bytes]) -> JsonRecords:
        first, line = self._records + 1, self._line
        self._records += len(values)
        return JsonRecords(
            lines=values,
            line_numbers=LazyNumbers(len(values), lambda: _line_numbers(text, spans, line)),
            record_numbers=range(first, first + len(values)),
        )

    def _line_of(self, text: bytes, at: int) -> int:
        return self._line + text.count(b"\n", 0, at)


def _are_valid(joined: bytes, count: int) -> bool:
    """Return whether a text is `count` JSON values with commas between them."""
    try:
        return len(_decode_values(b"[%b]" % joined)) == count
    except (msgspec.DecodeError, RecursionError):
        return False


def _has_breaks(text: bytes) -> bool:
    return b"\n" in text or b"\r" in text


def _join_lines(value: bytes) -> bytes:
    """Return valid JSON as one line; its line ends are all between values."""
    return value.translate(_ONE_LINE) if _has_breaks(value) else value


def _extract_invalid(text: bytes, span: tuple[int, int]) -> bytes:
    """Return a malformed record as one line, if its end is certain.

    Line ends outside of strings become spaces.
    """
    value = text[slice(*span)]
    if value[:1] in (b"{", b"["):
        check_boundaries(text, *span)
    return _STRING_OR_BREAK.sub(
        lambda match: b" " if match[0] in (b"\r", b"\n") else match[0], value
    )


def _line_numbers(text: bytes, spans: Spans, first_line: int) -> Sequence[int]:
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    starts = [start for start, _ in spans]
    lines: list[int] = (np.searchsorted(ends, starts) + first_line).tolist()
    return lines
