"""Reads csv records one by one, by the strict rules, and says what is wrong with the bad ones.

The slow half of the csv reader: used for the blocks that the fast half refuses.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from batch_pipeline.domain.stream import CsvOptions
from batch_pipeline.spark.chunks import BadText
from batch_pipeline.spark.read.csv_bounds import count_lines, hide_escaped, special_bytes

Cells = list[bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvRecord:
    """A well-quoted record; an empty cell without quotes is None, one with quotes is empty."""

    line: int
    raw: bytes
    cells: Cells


class CsvScanner:
    """The records of one block, which starts at a record; blank lines are skipped.

    `consumed` tells how many bytes the records given so far took up, `line` the number of the line
    after them, `size_bytes` how long the last one was without its line end. Unless `eof`, a record
    that may go on behind the block is left unread.
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
        hidden = hide_escaped(data, options)
        self._texts = self._lines = hidden.splitlines(keepends=True)
        self._has_escapes = hidden is not data
        if self._has_escapes:  # `_lines` tell where what ends, `_texts` are what stands there
            ends = list(accumulate(map(len, self._lines)))
            starts = [0, *ends]
            self._texts = [data[a:b] for a, b in zip(starts, ends, strict=False)]
            self._escaped = _Escapes(options)
        if self._lines and not eof and not self._lines[-1].endswith(b"\n"):
            self._lines.pop()

    def __iter__(self) -> Iterator[CsvRecord | BadText]:
        index = 0
        while index < len(self._lines):
            line = self._lines[index]
            body = line.rstrip(b"\r\n")
            used = 1
            found: list[CsvRecord | BadText] = []
            if self._quote in line:
                scanned = self._quoted(index)
                if scanned is None:
                    return
                used, found = scanned
            elif body:
                cells: Cells = [cell or None for cell in body.split(self._delimiter)]
                raw = self._texts[index][: len(body)]
                if self._has_escapes:
                    cells = self._unescaped(raw, cells)
                found = [CsvRecord(line=self.line, raw=raw, cells=cells)]
            taken = sum(map(len, self._lines[index : index + used]))
            last = self._lines[index + used - 1]
            self.size_bytes = taken - len(last) + len(last.rstrip(b"\r\n"))
            self.consumed += taken
            self.line += self._lines_of(index, used)
            index += used
            yield from found

    def _quoted(self, first: int) -> tuple[int, list[CsvRecord | BadText]] | None:
        """Read a record with quotes: the number of its lines and what it is, None if it goes on."""
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
        """Find the end of a cell without quotes, and tell whether it is the last."""
        end = text.find(self._delimiter, position)
        return (len(text.rstrip(b"\r\n")), True) if end < 0 else (end, False)

    def _cell(self, text: bytes) -> bytes | None:
        """Give the value of a cell from its text."""
        quote = self._quote
        if not text.startswith(quote):
            if self._has_escapes:
                text = self._escaped.plain(text)
            return text or None
        if self._has_escapes:
            return self._escaped.quoted(text[1:-1])
        return text[1:-1].replace(quote * 2, quote)

    def _unescaped(self, raw: bytes, hidden: Cells) -> Cells:
        """Take the escapes out of a record without quotes; `hidden` shows where its cells end."""
        cells: Cells = []
        start = 0
        for cell in hidden:
            end = start + len(cell or b"")
            cells.append(self._escaped.plain(raw[start:end]) or None)
            start = end + 1
        return cells

    def _lines_of(self, first: int, used: int) -> int:
        if not self._has_escapes:
            return used
        text = b"".join(self._texts[first : first + used])
        return count_lines(text) + (not text.endswith((b"\r", b"\n")))

    def _broken(self, first: int, used: int, reason: str) -> list[CsvRecord | BadText]:
        # Where the quote should have ended nobody knows: no line of the span is taken for a record,
        # and each counts as a bad one, so that a limit on bad records sees how much is lost.
        bad: list[CsvRecord | BadText] = []
        for offset in range(used):
            line = self.line + self._lines_of(first, offset) if offset else self.line
            size = len(self._lines[first + offset].rstrip(b"\r\n"))
            raw = self._texts[first + offset][:size]
            told = reason if offset == 0 else f"stands behind an open quote of line {self.line}"
            if raw:
                bad.append(BadText(line=line, reason=told, raw=raw))
        return bad


class _Escapes:
    """Takes escapes and doubled quotes out of cells."""

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
