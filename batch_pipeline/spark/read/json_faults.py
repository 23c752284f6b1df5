"""Looks closely at JSON text that is not valid: whether its records can still be told apart.

The slow half of the JSON reader: used for the blocks in which something is wrong.
"""

import re
from dataclasses import dataclass

BLANKS = b" \t\r\n"

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_STRINGS = re.compile(_STRING, re.DOTALL)
_UP_TO_COMMA = re.compile(rb'(?:[^",]++|' + _STRING + rb")*+", re.DOTALL)
_BLANK = re.compile(rb"[ \t\r\n]*+")
_WORD = re.compile(rb'[^ \t\r\n",]++|' + _STRING, re.DOTALL)
_MISPLACED = re.compile(rb'[^[{,:\s]\s*""|""\s*[^,:}\]\s]')
_BRACKETS = re.compile(rb"[][{}]")
_BREAKS = re.compile(_STRING + rb"|[\r\n]", re.DOTALL)


class JsonFaultError(Exception):
    """Where records start and end cannot be told; `at` is the place in the text looked at."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """What stands between two objects or arrays, `text[start:stop]`.

    `has_left` and `has_right` tell whether there is one at its left and one at its right.
    """

    start: int
    stop: int
    has_left: bool
    has_right: bool


def elements_between(text: bytes, gap: Gap) -> list[tuple[int, int]]:
    """Find the other elements of an array in a gap: texts between commas that are no brackets.

    Raises:
        JsonFaultError: there is a comma too much, or one is missing.
    """
    found: list[tuple[int, int]] = []
    start, is_first = gap.start, True
    while True:
        match = _UP_TO_COMMA.match(text, start, gap.stop)
        stop = match.end() if match else start
        is_last = stop == gap.stop
        if not is_last and text[stop : stop + 1] != b",":
            raise JsonFaultError("a quote is not closed", stop)
        first, last = _without_blanks(text, start, stop)
        values = (first < last) + (is_first and gap.has_left) + (is_last and gap.has_right)
        if values > 1:
            raise JsonFaultError("a comma is missing between two elements", first)
        if values == 0 and not (is_first and is_last):
            raise JsonFaultError("a comma has no element on one side", stop if is_first else start)
        if first < last:
            _check_quotes(text, first, last)
            found.append((first, last))
        if is_last:
            return found
        start, is_first = stop + 1, False


def words_between(text: bytes, gap: Gap) -> list[tuple[int, int]]:
    """Find the other documents in a gap: words and strings, none of which is an object.

    Raises:
        JsonFaultError: there is a comma, or a quote is not closed.
    """
    found: list[tuple[int, int]] = []
    start = gap.start
    while True:
        blank = _BLANK.match(text, start, gap.stop)
        start = blank.end() if blank else start
        if start == gap.stop:
            return found
        match = _WORD.match(text, start, gap.stop)
        if match is None:
            is_comma = text[start : start + 1] == b","
            reason = "a comma stands between documents" if is_comma else "a quote is not closed"
            raise JsonFaultError(reason, start)
        found.append(match.span())
        start = match.end()


def check_bounds(text: bytes, start: int, stop: int) -> None:
    """Check that an object or array that is not valid at least ends where it should.

    A forgotten quote or bracket may have drawn the next records into it, or the last ones of its
    own values out.

    Raises:
        JsonFaultError: its quotes or brackets do not match.
    """
    bare = _STRINGS.sub(b'""', text[start:stop])
    rest = bare.replace(b'""', b"")
    if b'"' in rest or b"\\" in rest or _MISPLACED.search(bare):
        raise JsonFaultError("its quotes do not match: where it ends cannot be told", start)
    expected: list[bytes] = []
    for bracket in _BRACKETS.findall(bare):
        if bracket in b"[{":
            expected.append(b"]" if bracket == b"[" else b"}")
        elif not expected or expected.pop() != bracket:
            raise JsonFaultError("its brackets do not match: where it ends cannot be told", start)


def in_one_line(text: bytes) -> bytes:
    """Replace line ends outside of strings, of text that is not valid, by spaces."""
    return _BREAKS.sub(lambda match: b" " if match[0] in (b"\r", b"\n") else match[0], text)


def _check_quotes(text: bytes, start: int, stop: int) -> None:
    if b'"' in text[start:stop] and not _STRINGS.fullmatch(text, start, stop):
        raise JsonFaultError("a quote is at a wrong place", start)


def _without_blanks(text: bytes, start: int, stop: int) -> tuple[int, int]:
    part = text[start:stop]
    first = stop - len(part.lstrip(BLANKS))
    return first, max(first, start + len(part.rstrip(BLANKS)))
