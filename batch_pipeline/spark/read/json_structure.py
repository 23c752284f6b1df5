"""Finds objects and arrays in JSON text by their brackets: vectorised, no value is taken apart.

Exact for valid JSON. Of text that is not, nothing is promised but that no byte is passed over.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_BRACKET_BITS, _BRACKETS = 0b1101_1001, 0b0101_1001  # shared by [ ] { }, and by Y y _ and delete
_SIDE_BITS, _SIDE_OF_OPENING = 0b110, 0b010

_IS_BRACKET = np.isin(np.arange(256), list(b"[]{}"))

Octets = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The outermost objects and arrays of a text, `starts[i]:ends[i]`.

    `open_at` is where one starts that does not end in the text; `closed_at` is where a bracket
    closes what was opened in front of the text, behind which nothing was looked at. None: there is
    no such thing. `deepest` is how many levels they are nested.
    """

    starts: list[int]
    ends: list[int]
    open_at: int | None
    closed_at: int | None
    deepest: int = 0


def structure_of(text: bytes) -> Structure:
    """Find the structure of a text that starts outside of strings, maybe cut anywhere behind."""
    octets = np.frombuffer(text, np.uint8)
    at = np.flatnonzero((octets & _BRACKET_BITS) == _BRACKETS)
    at = at[_IS_BRACKET[octets[at]]]
    if len(at) == 0:
        return Structure(starts=[], ends=[], open_at=None, closed_at=None)
    at = at[_are_outside(_quotes(octets), at)]
    steps = np.where((octets[at] & _SIDE_BITS) == _SIDE_OF_OPENING, 1, -1)
    depths = np.cumsum(steps)
    closing = np.flatnonzero(depths < 0)
    closed_at = int(at[closing[0]]) if len(closing) else None
    if closed_at is not None:
        at, steps, depths = at[: closing[0]], steps[: closing[0]], depths[: closing[0]]
    starts = at[(depths == 1) & (steps == 1)].tolist()
    ends = (at[(depths == 0) & (steps == -1)] + 1).tolist()
    open_at = starts.pop() if len(starts) > len(ends) else None
    deepest = int(depths.max(initial=0))
    return Structure(
        starts=starts, ends=ends, open_at=open_at, closed_at=closed_at, deepest=deepest
    )


def _quotes(octets: Octets) -> npt.NDArray[np.bool_]:
    """Mark the quotes that start or end a string."""
    quotes: npt.NDArray[Any] = octets == _QUOTE
    at = np.flatnonzero(octets == _BACKSLASH)
    if len(at):
        # In a row of backslashes each second one is escaped by the one in front of it.
        order = np.arange(len(at))
        is_first = np.ones(len(at), np.bool_)
        is_first[1:] = np.diff(at) > 1
        firsts = np.maximum.accumulate(np.where(is_first, order, 0))
        escaped = at[(order - firsts) % 2 == 0] + 1
        quotes[escaped[escaped < len(octets)]] = False
    return quotes


def _are_outside(quotes: npt.NDArray[np.bool_], at: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Tell which places are outside of strings: those with an even number of quotes in front."""
    bounds = np.concatenate(([0], at))
    odd = np.bitwise_xor.reduceat(quotes.view(np.uint8), bounds)[:-1]
    outside: npt.NDArray[np.bool_] = np.bitwise_xor.accumulate(odd) == 0
    return outside
