"""Find where a large uncompressed file can be cut into items: ranges of complete records.

A file is only cut where each range, read by itself, has the records that it has within the file:
JSON lines at line ends, csv at record ends if every quote from the first byte to the last follows
the rules. Every other file stays one item. No record is parsed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from batch_pipeline.encode.readers.csv import read_header
from batch_pipeline.encode.readers.csv_parsers import NEWLINE, find_end_of_records, mask_escaped
from batch_pipeline.encode.readers.decoded_file import DecodedFile, open_source
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import FileRange
from batch_pipeline.model.record_rules import BadFileKind
from batch_pipeline.model.stream import Stream

_BLOCK_BYTES = 2**20
_CHANGED_OR_MISSING = frozenset({BadFileKind.CHANGED, BadFileKind.MISSING})


@dataclass(frozen=True, slots=True)
class CutLimits:
    """The size of a file, and how many bytes a range of it should have at most."""

    size_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCutter:
    """Cuts the files of a stream that are larger than `most_bytes`."""

    stream: Stream
    most_bytes: int

    def is_large(self, file: LandedFile) -> bool:
        """Return whether a file is too large for one item."""
        return (file.size_bytes or 0) > self.most_bytes

    def ranges(self, file: LandedFile) -> Sequence[LandedFile]:
        """Return the ranges of a file in order, each of complete records.

        They have at most `most_bytes`, except where a single record is longer. Returns the file
        itself if it cannot be cut, nothing if it is missing or has changed.
        """
        size = file.size_bytes or 0
        try:
            with open_source(file, self.stream) as source:
                cuts: Sequence[int] = ()
                if source.can_be_cut:
                    limits = CutLimits(size, self.most_bytes)
                    cuts = source.reader.find_cuts(source, self.stream, limits)
        except BadFileError as error:
            # Any other fault is reported when the item is encoded.
            return () if error.kind in _CHANGED_OR_MISSING else (file,)
        if not cuts:
            return (file,)
        pairs = zip([0, *cuts], [*cuts, size], strict=True)
        ranges = [FileRange(start, stop, size) for start, stop in pairs]
        return [replace(file, location=file.location + one.fragment) for one in ranges]


def find_line_cuts(file: BinaryIO, limits: CutLimits) -> list[int]:
    """Return the line ends to cut behind: the last one within the limit, else the next one."""
    cuts: list[int] = []
    start = 0
    while start + limits.max_bytes < limits.size_bytes:
        cut = _last_line_end(file, start, start + limits.max_bytes)
        if cut is None:
            cut = _next_line_end(file, start + limits.max_bytes)
        if cut >= limits.size_bytes:
            break
        cuts.append(cut)
        start = cut
    return cuts


def _last_line_end(file: BinaryIO, start: int, stop: int) -> int | None:
    while stop > start:
        first = max(start, stop - _BLOCK_BYTES)
        file.seek(first)
        index = file.read(stop - first).rfind(NEWLINE)
        if index >= 0:
            return first + index + 1
        stop = first
    return None


def _next_line_end(file: BinaryIO, position: int) -> int:
    file.seek(position)
    while block := file.read(_BLOCK_BYTES):
        index = block.find(NEWLINE)
        if index >= 0:
            return position + index + 1
        position += len(block)
    return position


def find_csv_cuts(source: DecodedFile, stream: Stream, limits: CutLimits) -> list[int]:
    """Read a csv file once and return the record ends to cut behind.

    None at all where a quote breaks the rules: read in one piece, the file may have other records
    than the count of quotes says. Nor where a record does not end. The column names are in the
    first range.

    Raises:
        BadFileError: the header cannot be read.
    """
    options, max_record_bytes = stream.source.csv, stream.read_limits.max_record_bytes
    start, done = 0, source.text_start  # `done` is the end of the last complete record
    _, header_end = read_header(source.file, options, stream.read_limits, source.bad_file)
    first_cut = max(done + 1, header_end)
    file = source.file
    file.seek(done)
    cuts: list[int] = []
    carry = b""
    while (position := done + len(carry)) < limits.size_bytes:
        limit = start + limits.max_bytes
        wanted = min(max(_BLOCK_BYTES, len(carry)), limit - position)
        if wanted <= 0:  # a record longer than a range: read on to its end, but not much further
            wanted = max(min(_BLOCK_BYTES, limits.max_bytes), len(carry))
        block = file.read(min(wanted, limits.size_bytes - position))
        if not block:
            return []  # shorter than it was: it has changed
        carry += block
        is_end = done + len(carry) >= limits.size_bytes
        end = find_end_of_records(mask_escaped(carry, options), options, eof=is_end)
        if end is None or len(carry) - end > max_record_bytes:
            return []
        done, carry = done + end, carry[end:]
        is_reached = done + len(carry) >= limit
        if is_reached and max(start + 1, first_cut) <= done < limits.size_bytes:
            cuts.append(done)
            start = done
    return cuts
