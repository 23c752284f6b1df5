"""Finds where a large plain file can be cut into items: ranges of bytes of whole records.

Only where each range gives the records that it would give within the file: lines of JSON
lines, records of csv whose quotes follow the rules from the first byte to the last. Everything else
stays in one piece. Nothing is parsed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from batch_pipeline.domain.errors import BadFileError
from batch_pipeline.domain.file_range import FileRange
from batch_pipeline.domain.item import FoundFile
from batch_pipeline.domain.record_rules import BadFileKind
from batch_pipeline.domain.stream import CsvOptions, SourceFormat, Stream
from batch_pipeline.spark.read.csv_bounds import NEWLINE, end_of_records, hide_escaped
from batch_pipeline.spark.read.csv_slices import read_header
from batch_pipeline.spark.read.sources import OpenSource, open_source

_BLOCK_BYTES = 2**20
_GONE = frozenset({BadFileKind.CHANGED, BadFileKind.MISSING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCutter:
    """Cuts the files of a stream that are larger than `most_bytes`."""

    stream: Stream
    most_bytes: int

    def is_large(self, file: FoundFile) -> bool:
        """Tell by its size whether a file should be more than one item."""
        return (file.size_bytes or 0) > self.most_bytes

    def ranges(self, file: FoundFile) -> Sequence[FoundFile]:
        """Give the ranges of a file in order, which start and end with records.

        They hold at most `most_bytes` where no single record is longer. The file itself where it
        cannot be cut; nothing where it is not there any more, or not as it was found.
        """
        size = file.size_bytes or 0
        try:
            with open_source(file, self.stream) as source:
                bounds = [*self._bounds(source, size), size]
        except BadFileError as error:
            # What else is wrong with it, its item will say.
            return () if error.kind in _GONE else (file,)
        if len(bounds) < 2:
            return (file,)
        starts = [0, *bounds[:-1]]
        pieces = [FileRange(*pair, size) for pair in zip(starts, bounds, strict=True)]
        return [replace(file, location=file.location + piece.fragment) for piece in pieces]

    def _bounds(self, source: OpenSource, size: int) -> Sequence[int]:
        """Give the bytes at which ranges but the first one start."""
        spans = _Spans(size, self.most_bytes)
        if not source.has_ranges:
            return ()
        if source.format is not SourceFormat.CSV:
            return _line_bounds(source.file, spans)
        options, limits = self.stream.source.csv, self.stream.read_limits
        _, behind_header = read_header(source.file, options, limits, source.bad_file)
        start = source.text_start
        text = _Text(source.file, start, max(start + 1, behind_header))
        return _csv_bounds(text, spans, options, limits.max_record_bytes)


@dataclass(frozen=True, slots=True)
class _Spans:
    """A file of `size` bytes and how many of them a range should hold at most."""

    size: int
    most: int


def _line_bounds(file: BinaryIO, spans: _Spans) -> list[int]:
    """Find the line ends to cut behind: the last one within reach, else the next one."""
    bounds: list[int] = []
    start = 0
    while start + spans.most < spans.size:
        bound = _line_before(file, start, start + spans.most)
        if bound is None:
            bound = _line_behind(file, start + spans.most)
        if bound >= spans.size:
            break
        bounds.append(bound)
        start = bound
    return bounds


def _line_before(file: BinaryIO, start: int, stop: int) -> int | None:
    while stop > start:
        first = max(start, stop - _BLOCK_BYTES)
        file.seek(first)
        found = file.read(stop - first).rfind(NEWLINE)
        if found >= 0:
            return first + found + 1
        stop = first
    return None


def _line_behind(file: BinaryIO, position: int) -> int:
    file.seek(position)
    while block := file.read(_BLOCK_BYTES):
        found = block.find(NEWLINE)
        if found >= 0:
            return position + found + 1
        position += len(block)
    return position


@dataclass(frozen=True, slots=True)
class _Text:
    """A csv file: the byte behind its mark, and the first one that a second range may start at."""

    file: BinaryIO
    start: int
    first_bound: int


def _csv_bounds(
    text: _Text, spans: _Spans, options: CsvOptions, max_record_bytes: int
) -> list[int]:
    """Read the file once and find the record ends to cut behind; the names are in the first range.

    None at all where a quote stands against the rules: who reads the file in one piece may see
    other records there than the count of quotes tells. Nor where a record does not seem to end.
    """
    text.file.seek(text.start)
    bounds: list[int] = []
    start, done, carry = 0, text.start, b""  # `done` is the end of the last whole record
    while (position := done + len(carry)) < spans.size:
        limit = start + spans.most
        wanted = min(max(_BLOCK_BYTES, len(carry)), limit - position)
        if wanted <= 0:  # a record longer than a range: look for its end, not for far more
            wanted = max(min(_BLOCK_BYTES, spans.most), len(carry))
        block = text.file.read(min(wanted, spans.size - position))
        if not block:
            return []  # shorter than it was: it has changed
        carry += block
        is_end = done + len(carry) >= spans.size
        end = end_of_records(hide_escaped(carry, options), options, eof=is_end)
        if end is None or len(carry) - end > max_record_bytes:
            return []
        done, carry = done + end, carry[end:]
        is_reached = done + len(carry) >= limit
        if is_reached and max(start + 1, text.first_bound) <= done < spans.size:
            bounds.append(done)
            start = done
    return bounds
