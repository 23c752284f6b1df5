"""Reads an item that is a range of a file: its records alone, with the lines of the whole file.

The names of csv columns are those at the start of the file. Ranges start and end with records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from batch_pipeline.domain.errors import BadFileError
from batch_pipeline.domain.file_range import FileRange
from batch_pipeline.domain.record_rules import BadFileKind
from batch_pipeline.domain.stream import SourceFormat, Stream
from batch_pipeline.spark.chunks import Chunk
from batch_pipeline.spark.read.csv_bounds import NEWLINE
from batch_pipeline.spark.read.csv_reader import CsvReader
from batch_pipeline.spark.read.csv_slices import Window, count_csv, read_header
from batch_pipeline.spark.read.lazy_numbers import LazyNumbers
from batch_pipeline.spark.read.readers import Reader, open_reader
from batch_pipeline.spark.read.slices import ByteRange
from batch_pipeline.spark.read.sources import OpenSource

_BLOCK_BYTES = 2 * 2**20


def open_range(source: OpenSource, part: FileRange, stream: Stream) -> Reader:
    """Make the reader for a range of a file in one piece; lines of csv are the range's.

    Raises:
        BadFileError: the header of the file cannot be read.
    """
    start = max(part.start, source.text_start)
    bytes_wanted = ByteRange(start, max(part.stop, start))
    options, limits = stream.source.csv, stream.read_limits
    if source.format is not SourceFormat.CSV:
        return open_reader(source, stream)  # keeps to the part by itself
    header: tuple[str, ...] = ()
    if part.start:
        names, stop = read_header(source.file, options, limits, source.bad_file)
        if part.start < stop:
            raise source.bad_file(f"byte {part.start} is in front of the column names")
        header = names.header
    window = Window(source.file, bytes_wanted, source.bad_file)
    return CsvReader(window, options, limits, header=header)


def in_lines_of_file(reader: Reader, source: OpenSource, part: FileRange) -> Reader:
    """Make the reader tell the lines of the whole file where it tells those of the range."""
    if part.start == 0 or source.format is SourceFormat.JSONL:
        return reader
    return _InLinesOfFile(reader, source, ByteRange(source.text_start, part.start))


class _InLinesOfFile:
    """The records of a reader; the lines in front are counted when somebody asks for one."""

    def __init__(self, reader: Reader, source: OpenSource, before: ByteRange) -> None:
        self._reader = reader
        self._source = source
        self._before = before

    def chunks(self) -> Iterator[Chunk]:
        """Give the records in order, a few MiB at a time.

        Raises:
            BadFileError: the file cannot be read to the end of the range.
        """
        try:
            for chunk in self._reader.chunks():
                bad = tuple(replace(one, line=self._lines + one.line) for one in chunk.bad)
                yield replace(chunk, places=self._moved(chunk.places), bad=bad)
        except BadFileError as error:
            if error.line is None:
                raise
            line, kind = self._lines + error.line, BadFileKind(error.kind)
            raise self._source.bad_file(error.reason, line=line, kind=kind) from error

    def _moved(self, places: Sequence[int]) -> Sequence[int]:
        return LazyNumbers(len(places), lambda: [self._lines + place for place in places])

    @cached_property
    def _lines(self) -> int:
        with self._source.reopened() as file:
            if self._source.format is SourceFormat.CSV:
                return count_csv(file, self._before, quote='"').line_ends
            file.seek(self._before.start)
            left, lines = self._before.stop - self._before.start, 0
            while left > 0 and (block := file.read(min(_BLOCK_BYTES, left))):
                left -= len(block)
                lines += int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord(NEWLINE)))
            return lines
