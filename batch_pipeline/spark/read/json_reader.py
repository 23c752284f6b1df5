"""Reads JSON that is not one record a line: an array of records, or documents behind each other.

Only where records start and end is found out here; what is in them is for the check. A value that
is no object goes on too, as a record that the check refuses.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from batch_pipeline.domain.errors import BadFileError
from batch_pipeline.spark.chunks import JsonRecords
from batch_pipeline.spark.read.json_faults import (
    BLANKS,
    Gap,
    JsonFaultError,
    check_bounds,
    elements_between,
    in_one_line,
    words_between,
)
from batch_pipeline.spark.read.json_structure import Structure, structure_of
from batch_pipeline.spark.read.lazy_numbers import LazyNumbers
from batch_pipeline.spark.read.sources import BLOCK_BYTES, OpenSource

_NOT_VALID = (msgspec.DecodeError, RecursionError)
_DEEPEST = 10_000  # levels of a record that does not end; no parser reads as many
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_decode_values = msgspec.json.Decoder(list[msgspec.Raw]).decode


Spans = list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """What may stand between two records, and how to find there what is none."""

    between: re.Pattern[bytes]
    others: Callable[[bytes, Gap], Spans]


_NOTHING = re.compile(rb"[ \t\r\n]*")
_ARRAY = _Layout(between=re.compile(rb"[ \t\r\n]*,[ \t\r\n]*"), others=elements_between)
_DOCUMENTS = _Layout(between=_NOTHING, others=words_between)


class JsonReader:
    """The records of one JSON file, each as one line: line ends between values become spaces.

    Raw line ends inside of strings are not valid JSON; they stay, for the check to refuse.
    """

    def __init__(self, source: OpenSource, *, block_bytes: int = BLOCK_BYTES) -> None:
        self._source = source
        self._block_bytes = block_bytes
        self._layout = _DOCUMENTS
        self._has_left = False  # whether an element stands in front of the text to be read
        self._is_closed = False
        self._line = 1  # the line that the text to be read starts in
        self._records = 0

    def chunks(self) -> Iterator[JsonRecords]:
        """Give the records in order, a few MiB at a time.

        Raises:
            BadFileError: the file cannot be read, a record is too long, or it cannot be told where
                records start and end.
        """
        text, eof = self._opening()
        while True:
            try:
                used, spans = self._read(text, eof=eof)
                values = self._values(text, spans)
            except JsonFaultError as error:
                raise self._bad_file(error.reason, text, error.at) from error
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

    def _opening(self) -> tuple[bytes, bool]:
        """Read up to the first record, and tell whether that was all."""
        eof, text = False, b""
        while not eof and not text:
            block = self._source.read(self._block_bytes)
            eof = len(block) < self._block_bytes
            text = block.lstrip(BLANKS)
            self._line += block.count(b"\n", 0, len(block) - len(text))
        if text.startswith(b"["):
            self._layout = _ARRAY
            text = text[1:]
        return text, eof

    def _read(self, text: bytes, *, eof: bool) -> tuple[int, Spans]:
        """Find the whole records of a text, and how much of the text they take up."""
        if self._is_closed:
            self._check_rest(text, 0)
            return len(text), []
        found = structure_of(text)
        spans = list(zip(found.starts, found.ends, strict=True))
        stop = found.closed_at
        if found.open_at is not None and found.deepest > _DEEPEST:
            raise JsonFaultError("the record that starts here is nested too deeply", found.open_at)
        if stop is not None:
            self._check_closing(text, stop)
        elif eof:
            self._check_end(text, found)
            stop = len(text)
        spans = self._with_others(text, spans, stop)
        if stop is None:
            stop = spans[-1][1] if spans else 0
        elif found.closed_at is not None:
            self._is_closed = True
            self._check_rest(text, stop + 1)
            stop = len(text)
        self._has_left = self._has_left or bool(spans)
        return stop, spans

    def _check_closing(self, text: bytes, at: int) -> None:
        if self._layout is _DOCUMENTS or text[at : at + 1] != b"]":
            raise JsonFaultError("a bracket closes what was not opened", at)

    def _check_end(self, text: bytes, found: Structure) -> None:
        if found.open_at is not None:
            raise JsonFaultError("the record that starts here has no end", found.open_at)
        if self._layout is _ARRAY:
            raise JsonFaultError("the array has no end", len(text))

    def _check_rest(self, text: bytes, start: int) -> None:
        rest = text[start:].lstrip(BLANKS)
        if rest:
            raise JsonFaultError("something follows the end of the array", len(text) - len(rest))

    def _with_others(self, text: bytes, spans: Spans, stop: int | None) -> Spans:
        """Check what is around the records up to `stop`, and add what is no object or array."""
        layout, has_left = self._layout, self._has_left
        first = layout.between if has_left else _NOTHING
        between = {text[end:start] for (_, end), (start, _) in pairwise(spans)}
        is_clean = all(map(layout.between.fullmatch, between))
        if spans:
            is_clean = is_clean and bool(first.fullmatch(text, 0, spans[0][0]))
        if stop is not None:
            last = spans[-1][1] if spans else 0
            is_clean = is_clean and bool(_NOTHING.fullmatch(text, last, stop))
        if is_clean:
            return spans
        others: Spans = []
        start = 0
        for span in spans:
            gap = Gap(start=start, stop=span[0], has_left=has_left, has_right=True)
            others += layout.others(text, gap)
            start, has_left = span[1], True
        if stop is not None:
            gap = Gap(start=start, stop=stop, has_left=has_left, has_right=False)
            others += layout.others(text, gap)
        return sorted([*spans, *others])

    def _values(self, text: bytes, spans: Spans) -> list[bytes]:
        """Cut out the records and make each one line."""
        limit = self._source.limits.max_record_bytes
        for start, end in spans if len(text) > limit else ():
            if end - start > limit:
                raise self._source.too_long("a record", line=self._line_of(text, start))
        values = [text[start:end] for start, end in spans]
        joined = b",".join(values)
        if not _are_valid(joined, len(values)):
            return [
                _translated(value) if _are_valid(value, 1) else _followed(text, span)
                for value, span in zip(values, spans, strict=True)
            ]
        return [_translated(value) for value in values] if _has_breaks(joined) else values

    def _chunk(self, text: bytes, spans: Spans, values: list[bytes]) -> JsonRecords:
        first, line = self._records + 1, self._line
        self._records += len(values)
        return JsonRecords(
            lines=values,
            places=LazyNumbers(len(values), lambda: _lines_of(text, spans, line)),
            numbers=range(first, first + len(values)),
        )

    def _bad_file(self, reason: str, text: bytes, at: int) -> BadFileError:
        return self._source.bad_file(reason, line=self._line_of(text, at))

    def _line_of(self, text: bytes, at: int) -> int:
        return self._line + text.count(b"\n", 0, at)


def _are_valid(joined: bytes, count: int) -> bool:
    """Tell whether these are so many JSON values with commas between them."""
    try:
        return len(_decode_values(b"[%b]" % joined)) == count
    except _NOT_VALID:
        return False


def _has_breaks(text: bytes) -> bool:
    return b"\n" in text or b"\r" in text


def _translated(value: bytes) -> bytes:
    """Make valid JSON one line: it has line ends between its values only."""
    return value.translate(_ONE_LINE) if _has_breaks(value) else value


def _followed(text: bytes, span: tuple[int, int]) -> bytes:
    """Cut out a record that is not valid, if it is certain that it ends where it seems to."""
    value = text[slice(*span)]
    if value[:1] in (b"{", b"["):
        check_bounds(text, *span)
    return in_one_line(value)


def _lines_of(text: bytes, spans: Spans, first_line: int) -> Sequence[int]:
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    starts = [start for start, _ in spans]
    lines: list[int] = (np.searchsorted(ends, starts) + first_line).tolist()
    return lines
