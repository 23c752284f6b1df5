"""Reads csv records one by one, by the strict rules, and says what is wrong with the bad ones.

The slow half of the csv reader: used for the blocks that the fast half refuses.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from batch_pipeline.domain.stream import CsvOptions

Cells = list[bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadText:
    """Text that is no record: `line` is where it starts, counted from 1; `raw` has no line end."""

    line: int
    reason: str
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvRecord:
    """A well-quoted record; an empty cell without quotes is None, one with quotes is empty."""

    line: int
    raw: bytes
    cells: Cells


class CsvScanner:
    """The records of one block, which starts at a record; blank lines are skipped.

    `consumed` tells how many bytes the records given so far took up, `line` the number of the line
    after them. Unless `eof`, a record that may go on behind the block is left unread.
    """

    def __init__(self, data: bytes, options: CsvOptions, *, first_line: int, eof: bool) -> None:
        self.consumed = 0
        self.line = first_line
        self._eof = eof
        self._delimiter = options.delimiter.encode()
        self._quote = options.quote.encode()
        quote = re.escape(self._quote)
        self._closing = re.compile(
            b"[^%b]*(?:%b%b[^%b]*)*%b(?!%b)" % (quote, quote, quote, quote, quote, quote)
        )
        self._lines = data.splitlines(keepends=True)
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
                found = [CsvRecord(line=self.line, raw=body, cells=cells)]
            self.consumed += sum(map(len, self._lines[index : index + used]))
            self.line += used
            index += used
            yield from found

    def _quoted(self, first: int) -> tuple[int, list[CsvRecord | BadText]] | None:
        """Read a record with quotes: the number of its lines and what it is, None if it goes on."""
        text = bytearray(self._lines[first])
        used, position = 1, 0
        cells: Cells = []
        while True:
            if text[position : position + 1] != self._quote:
                cell, position, last = self._plain_cell(text, position)
                cells.append(cell or None)
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
                value = bytes(text[position + 1 : match.end() - 1])
                cells.append(value.replace(self._quote * 2, self._quote))
                position = match.end()
                behind = bytes(text[position : position + 1])
                last = behind in (b"", b"\r", b"\n")
                if not last and behind != self._delimiter:
                    return used, self._broken(first, used, "text follows a closing quote")
                position += 1
            if last:
                raw = bytes(text).rstrip(b"\r\n")
                return used, [CsvRecord(line=self.line, raw=raw, cells=cells)]

    def _plain_cell(self, text: bytearray, position: int) -> tuple[bytes, int, bool]:
        """Read a cell without quotes: its text, where the next one starts, is it the last."""
        end = text.find(self._delimiter, position)
        if end < 0:
            return bytes(text[position:]).rstrip(b"\r\n"), len(text), True
        return bytes(text[position:end]), end + 1, False

    def _broken(self, first: int, used: int, reason: str) -> list[CsvRecord | BadText]:
        # Where the quote should have ended nobody knows: no line of the span is taken for a record,
        # and each counts as a bad one, so that a limit on bad records sees how much is lost.
        bad: list[CsvRecord | BadText] = []
        for offset in range(used):
            raw = self._lines[first + offset].rstrip(b"\r\n")
            told = reason if offset == 0 else f"stands behind an open quote of line {self.line}"
            if raw:
                bad.append(BadText(line=self.line + offset, reason=told, raw=raw))
        return bad
