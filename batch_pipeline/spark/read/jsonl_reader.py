"""Reads JSON lines as they stand; what is in them is for the check to find out."""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from batch_pipeline.spark.chunks import JsonRecords
from batch_pipeline.spark.read.lazy_numbers import LazyNumbers
from batch_pipeline.spark.read.sources import OpenSource
from batch_pipeline.spark.text_lines import TextLines

_BLOCK_BYTES = 4 * 2**20
_BLANKS = b" \t\r\n"
_RETURN_BETWEEN_RECORDS = re.compile(rb"}\s*\r\s*{")


class JsonlReader:
    """The records of one jsonl file, or of the part of it that the source asks for.

    Lines end with a line feed, blank ones are skipped. Where a part starts behind the start of the
    file, its lines and records are counted from the start of the file, once a number is asked for.
    """

    def __init__(self, source: OpenSource, *, block_bytes: int = _BLOCK_BYTES) -> None:
        self._source = source
        self._block_bytes = block_bytes
        self._lines = 0  # passed so far, of this part
        self._records = 0
        self._before = _Before(source, 0, block_bytes)
        part = source.part
        self._is_from_start = source.range is None and (part is None or part.start == 0)

    def chunks(self) -> Iterator[JsonRecords]:
        """Give the records in order, a few MiB at a time.

        Raises:
            BadFileError: the file cannot be read, or a line is too long.
        """
        carry, left = self._first_bytes()
        eof = left == 0
        while not eof:
            wanted = max(self._block_bytes, len(carry))
            block = self._source.read(wanted)
            eof = is_all = len(block) < wanted
            carry += block
            if left is not None and (stop := carry.find(b"\n", left - 1)) >= 0:
                is_all = is_all and stop + 1 == len(carry)
                carry, eof = carry[: stop + 1], True
            if is_all and self._lines == 0:
                self._refuse_returns(carry)
            end = len(carry) if eof else carry.rfind(b"\n") + 1
            if end:
                chunk = self._block(carry, end) or self._chunk(carry[:end].split(b"\n"))
                carry = carry[end:]
                left = None if left is None else left - end
                if chunk.lines:
                    yield chunk
            if len(carry) > self._source.limits.max_record_bytes:
                raise self._too_long(self._lines)

    def _first_bytes(self) -> tuple[bytes, int | None]:
        """Find the first line: what was read of it, and how far behind its start others may start.

        Without a part there is no such limit.
        """
        part = self._source.part
        if part is None:
            return b"", None
        if part.start >= part.stop:
            return b"", 0
        if part.start == 0:  # a byte order mark belongs to the first line
            return b"", max(part.stop - self._source.text_start, 1)
        start = part.start - 1
        self._source.seek(start)
        end = 0
        while not end and (block := self._source.read(self._block_bytes)):
            end = block.find(b"\n") + 1
            start += end or len(block)
        self._before = _Before(self._source, start, self._block_bytes)
        return block[end:], max(part.stop - start, 0)

    def _block(self, text: bytes, end: int) -> JsonRecords | None:
        """Give the lines up to `end` as they stand, None if some of them must change."""
        if text[end - 1 : end] != b"\n":
            text += b"\n"
            end += 1
        lines = TextLines.of(text, end)
        limit = self._source.limits.max_record_bytes
        if not lines.are_braced() or lines.longest() > limit:
            return None
        places = range(self._lines + 1, self._lines + 1 + len(lines))
        self._lines += len(lines)
        return self._records_of(lines, places)

    def _chunk(self, lines: list[bytes]) -> JsonRecords:
        limit = self._source.limits.max_record_bytes
        if max(map(len, lines)) > limit:
            first = next(index for index, line in enumerate(lines) if len(line) > limit)
            raise self._too_long(self._lines + first)
        records = [line.strip(_BLANKS) for line in lines]
        places: range | list[int] = range(self._lines + 1, self._lines + 1 + len(records))
        if b"" in records:
            places = [place for place, record in zip(places, records, strict=True) if record]
            records = [record for record in records if record]
        self._lines += len(lines) - 1
        return self._records_of(records, places)

    def _records_of(self, lines: Sequence[bytes], places: Sequence[int]) -> JsonRecords:
        numbers = range(self._records + 1, self._records + 1 + len(lines))
        self._records += len(lines)
        return JsonRecords(
            lines=lines, places=self._before.lines(places), numbers=self._before.records(numbers)
        )

    def _refuse_returns(self, rest: bytes) -> None:
        """Refuse a file whose only line, as line feeds have it, are several records.

        `rest` is all that follows the start of the part. A file of one line has no ranges.
        """
        is_one_line = self._is_from_start and b"\n" not in rest[:-1]
        if is_one_line and _RETURN_BETWEEN_RECORDS.search(rest):
            reason = (
                "its lines end with a return alone, and JSON lines end with a line feed; "
                "`source.format: json` reads them"
            )
            raise self._source.bad_file(reason)

    def _too_long(self, lines_before: int) -> Exception:
        [place] = self._before.lines(range(lines_before + 1, lines_before + 2))
        return self._source.too_long("a line", line=place)


class _Before:
    """What of a file is in front of a part; counted when somebody asks for a number."""

    def __init__(self, source: OpenSource, stop: int, block_bytes: int) -> None:
        self._source = source
        self._stop = stop
        self._block_bytes = block_bytes

    def lines(self, numbers: Sequence[int]) -> Sequence[int]:
        """Turn numbers of lines of the part into those of the file."""
        if self._stop == 0:
            return numbers
        return LazyNumbers(len(numbers), lambda: [self._counts[0] + one for one in numbers])

    def records(self, numbers: Sequence[int]) -> Sequence[int]:
        """Turn numbers of records of the part into those of the file, or of the item's range."""
        if self._stop == 0 or self._source.range is not None:
            return numbers
        return LazyNumbers(len(numbers), lambda: [self._counts[1] + one for one in numbers])

    @cached_property
    def _counts(self) -> tuple[int, int]:
        lines = records = 0
        has_text = False  # in the line that the next block goes on with
        with self._source.reopened() as file:
            left = self._stop - file.seek(self._source.text_start)
            while left > 0 and (block := file.read(min(self._block_bytes, left))):
                left -= len(block)
                *whole, rest = [bool(line.strip(_BLANKS)) for line in block.split(b"\n")]
                if whole:
                    lines += len(whole)
                    records += sum(whole) + (has_text and not whole[0])
                    has_text = False
                has_text = has_text or rest
        return lines, records
