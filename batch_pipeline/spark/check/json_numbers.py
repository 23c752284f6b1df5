"""Proves of a block of JSON text that its numbers are the doubles that they are read as.

By the bytes of the whole block, without parsing; texts that look like numbers only cost time.
"""

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.spark.check.digits import EXACT_DIGITS
from batch_pipeline.spark.check.number_text import is_exact

_MINUS, _POINT, _ZERO, _SMALL_E = b"-.0e"
_FOUR = int.from_bytes(b"\1\1\1\1", "little")
_EXPONENT = re.compile(rb"[eE][+-]?[0-9]+")
_SMALL_EXPONENT = re.compile(rb"[eE]-[0-9]+[ \t\r\n,}\]]")
_MOST = 500  # that may be looked at one by one
_MOST_BYTES = 2**31 - 1  # of one Arrow array of texts

Octets = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


def holds_only_exact(text: bytes | memoryview) -> bool:
    """Tell whether all JSON numbers in a text with a point or an exponent are their doubles.

    False where that was not proven. Numbers of at most 15 digits are, unless the exponent is under
    -99; longer ones are when the double, written as short as possible, has the same digits.
    """
    octets = np.frombuffer(text, np.uint8)
    if _has_small_exponent(octets):
        return False
    starts, stops = _long_runs(octets)
    if not len(starts):
        return True
    if starts[0] == 0 or stops[-1] == len(octets) or len(octets) > _MOST_BYTES:
        return False
    starts, stops = _of_numbers(octets, starts, stops)
    with_exponent = (octets[stops] | ord(" ")) == _SMALL_E
    if with_exponent.any():
        if not _are_exact_with_exponents(octets, starts[with_exponent], stops[with_exponent]):
            return False
        starts, stops = starts[~with_exponent], stops[~with_exponent]
    return _are_exact(octets, starts, stops)


def _long_runs(octets: Octets) -> tuple[Places, Places]:
    """Find the runs of digits and points in which there are more than 15 significant digits."""
    digits = octets - _POINT < 12  # slashes are among them, which does no harm
    whole = len(octets) // 4 * 4
    # Among 15 bytes in a row there are three groups of four that start at a multiple of four.
    fours = digits[:whole].view(np.uint32) == _FOUR
    found = np.flatnonzero(fours[:-2] & fours[1:-1] & fours[2:])
    if not len(found):
        return found, found
    first = np.flatnonzero(np.diff(found, prepend=-2) != 1)
    starts = found[first] * 4
    stops = found[np.append(first[1:], len(found)) - 1] * 4 + 12
    last = len(octets) - 1
    for _ in range(3):
        starts = starts - (digits[np.maximum(starts - 1, 0)] & (starts > 0))
        stops = stops + (digits[np.minimum(stops, last)] & (stops <= last))
    fraction = (octets[starts] == _ZERO) & (octets[starts + 1] == _POINT)
    long = stops - starts - 2 * fraction > EXACT_DIGITS
    return starts[long], stops[long]


def _of_numbers(octets: Octets, starts: Places, stops: Places) -> tuple[Places, Places]:
    """Leave out the runs that cannot be a JSON number, or its digits in front of an exponent."""
    kept = _BEFORE[octets[starts - 1]] & _BEHIND[octets[stops]]
    return starts[kept], stops[kept]


def _are_exact_with_exponents(octets: Octets, starts: Places, stops: Places) -> bool:
    if len(starts) > _MOST:
        return False
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        exponent = _EXPONENT.match(octets.data, stop)
        if exponent is not None:
            text = octets[start : exponent.end()].tobytes()
            if not _is_exact(str(text, "ascii")):
                return False
    return True


def _are_exact(octets: Octets, starts: Places, stops: Places) -> bool:
    count = len(starts)
    if not count:
        return True
    # A text for each run and one for what is between it and the next one.
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = starts, stops
    between = pa.StringArray.from_buffers(2 * count - 1, pa.py_buffer(bounds), pa.py_buffer(octets))
    texts = between.take(pa.array(np.arange(0, 2 * count - 1, 2)))
    try:
        again = pc.cast(pc.cast(texts, pa.float64()), pa.string())
    except pa.ArrowInvalid:  # more than one point: in a text
        return False
    if again.equals(texts):
        return True
    rest = texts.filter(pc.and_(pc.not_equal(texts, again), pc.match_substring(texts, ".")))
    return len(rest) <= _MOST and all(map(_is_exact, rest.to_pylist()))


def _is_exact(text: str) -> bool:
    try:
        return is_exact(text)
    except ValueError:  # not a number
        return False


def _has_small_exponent(octets: Octets) -> bool:
    letters = (octets[1:-5] | ord(" ")) == _SMALL_E
    at = np.flatnonzero(letters & (octets[2:-4] == _MINUS)) + 1
    if not len(at):
        return False
    is_digit = [(octets[at + step] - ord("0")) < 10 for step in (-1, 2, 3, 4)]
    at = at[np.logical_and.reduce(is_digit)]
    # In a UUID and the like more letters or a dash follow.
    fourth, fifth = octets[at + 5], octets[np.minimum(at + 6, len(octets) - 1)]
    is_last = _DIGITS[fourth] & (_ENDS | _DIGITS)[fifth]
    at = at[_ENDS[fourth] | is_last]
    return any(_SMALL_EXPONENT.match(octets.data, place) for place in at.tolist())


def _set_of(octets: bytes) -> npt.NDArray[np.bool_]:
    found = np.zeros(256, np.bool_)
    found[list(octets)] = True
    return found


_BEFORE = _set_of(b":,[ \t\r\n-")
_BEHIND = _set_of(b",}] \t\r\neE")
_ENDS = _set_of(b",}] \t\r\n")
_DIGITS = _set_of(b"0123456789")
