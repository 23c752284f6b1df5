"""Finds the values of JSON lines that all have the same keys in the same order, without parsing.

Proves by the bytes of a whole block that each line is one object of names, strings and other short
values; what these say, and whether their columns hold it, is not known here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batch_pipeline.spark.text_lines import TextLines

Octets = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_QUOTE, _COLON, _COMMA, _OPEN, _CLOSE, _BLANK = b'":,{} '
_PIECE_BYTES = 96 * 2**10  # stays in the cache while it is looked at
_WORD = 8


@dataclass(frozen=True, slots=True)
class FlatLines:
    """Where the values are in the bytes of a block: one row a line, one column a key.

    `keys` are the keys in their order, as they are written. Where `quoted`, a value is a JSON
    string without escapes, its quotes are outside of `starts` and `stops`. All other values are
    texts of any form without quotes, JSON or not.
    """

    keys: Sequence[bytes]
    starts: Places
    stops: Places
    quoted: Mask


def flat_lines(lines: TextLines) -> FlatLines | None:
    """Find the values of all lines; None where there may be another way to read them.

    So it is with escapes, with text in nested values, with keys that differ, with blanks other than
    one behind each colon and one behind each comma, and with bytes that no JSON string may hold.
    UTF-8 is not checked.
    """
    size_bytes, count = lines.size_bytes, len(lines)
    if lines.text.find(b"\\", 0, size_bytes) >= 0:
        return None
    octets = np.frombuffer(lines.text, np.uint8, size_bytes)
    quotes, controls = _looked_through(octets)
    if controls != count or len(quotes) % 2:
        return None
    # Without escapes, quotes open and close in turn.
    opening, closing = quotes[0::2], quotes[1::2]
    at = np.flatnonzero(octets[closing + 1] == _COLON)
    if not len(at) or len(at) % count:
        return None
    strings = np.diff(at, append=len(closing))  # a key and what is quoted between it and the next
    first, last = opening[at].reshape(count, -1), closing[at].reshape(count, -1)
    behind_colons, behind_commas = _blanks(octets, last + 2), _blanks(octets, first[:, 1:] - 1)
    if behind_colons is None or behind_commas is None:
        return None
    starts = last + 2 + behind_colons
    stops = np.column_stack([first[:, 1:] - 1 - behind_commas, lines.ends - 2])
    quoted = (strings == 2).reshape(count, -1)
    if not (
        int(strings.max()) <= 2
        and _are_separated(octets, lines, first, stops)
        and _are_quoted(octets, starts, stops, quoted)
        and _are_alike(lines.text, first, last)
    ):
        return None
    bounds = zip(first[0].tolist(), last[0].tolist(), strict=True)
    keys = [lines.text[start + 1 : stop] for start, stop in bounds]
    return FlatLines(keys, starts + quoted, stops - quoted, quoted)


def _looked_through(octets: Octets) -> tuple[Places, int]:
    """Find the quotes, and count the bytes that no string may hold."""
    found = []
    controls = 0
    for start in range(0, len(octets), _PIECE_BYTES):
        piece = octets[start : start + _PIECE_BYTES]
        found.append(np.flatnonzero(piece == _QUOTE) + start)
        controls += int(np.count_nonzero(piece < _BLANK))
    return np.concatenate(found), controls


def _blanks(octets: Octets, places: Places) -> int | None:
    """Tell whether a blank is at all of the places (1) or at none (0)."""
    count = int(np.count_nonzero(octets[places] == _BLANK))
    return int(count > 0) if count in (0, places.size) else None


def _are_separated(octets: Octets, lines: TextLines, first: Places, stops: Places) -> bool:
    """Tell whether each key stands behind the brace of its line or behind a comma."""
    begins = np.append(0, lines.ends[:-1])
    return bool(
        (first[:, 0] == begins + 1).all()
        and (octets[begins] == _OPEN).all()
        and (octets[stops[:, -1]] == _CLOSE).all()
        and (octets[stops[:, :-1]] == _COMMA).all()
    )


def _are_quoted(octets: Octets, starts: Places, stops: Places, quoted: Mask) -> bool:
    """Tell whether no value is empty, and both quotes of a string are its first and last byte."""
    return bool(
        (stops > starts + quoted).all()
        and ((octets[starts] == _QUOTE) == quoted).all()
        and ((octets[stops - 1] == _QUOTE) == quoted).all()
    )


def _are_alike(text: bytes, first: Places, last: Places) -> bool:
    """Tell whether the lines have the keys of the first one."""
    lengths = last - first
    if not (lengths == lengths[0]).all():
        return False
    if int(last[-1, -1]) + _WORD > len(text):
        text += bytes(_WORD)
    words = np.ndarray(len(text) - _WORD + 1, "<u8", text, strides=(1,))
    left = lengths[0]
    while len(left):
        surplus = np.maximum(_WORD - left, 0).astype(np.uint64)
        found = words[first] << surplus * np.uint64(8)
        if not (found == found[0]).all():
            return False
        longer = left > _WORD
        first, left = first[:, longer] + _WORD, left[longer] - _WORD
    return True
