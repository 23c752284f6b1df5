"""Tells whether all cells of a column are written as numbers, by its bytes as a whole."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

EXACT_DIGITS = 15  # a double holds every decimal number of so many digits
MAX_INTEGER_DIGITS = 19  # no integer of 64 bits has more; the cast refuses those beyond
_MINUS, _POINT, _ZERO, _NINE = b"-.09"

Mask = npt.NDArray[np.bool_]


class Digits:
    """Tells which cells of a column, those that are null left out, are written as numbers.

    Looks at the column's bytes as a whole: some 50 times faster than a pattern match for each cell.
    """

    def __init__(self, column: pa.StringArray) -> None:
        cells = column.drop_null() if column.null_count else column
        _, offsets, octets = cells.buffers()
        bounds = np.frombuffer(offsets, np.int32)[cells.offset : cells.offset + len(cells) + 1]
        used = np.frombuffer(octets or b"", np.uint8)[bounds[0] : bounds[-1]]
        self._octets = used
        self._starts, self._ends = bounds[:-1] - bounds[0], bounds[1:] - bounds[0]
        self._last = len(used) - 1
        self._are_there: Mask = self._ends > self._starts
        self.longest = 0

    def are_integers(self) -> bool:
        """Match `-?(0|[1-9][0-9]{0,18})`; `longest` is then the number of digits of the longest."""
        if not self._are_there.all() or self._are_strange(_MINUS).any():
            return False
        leading, digits = self._without_sign()
        minuses = np.count_nonzero(self._octets == _MINUS)
        if minuses != int((leading != self._starts).sum()) or not digits.all():
            return False
        self.longest = int(digits.max())
        padded = (self._octets[leading] == _ZERO) & (digits > 1)
        return self.longest <= MAX_INTEGER_DIGITS and not padded.any()

    def are_short_decimals(self) -> Mask:
        """Match, cell by cell, JSON's numbers of at most 15 digits without an exponent.

        A zero that is all there is in front of the point is not counted.
        """
        if self._last < 0:
            return self._are_there
        octets = self._octets
        leading, length = self._without_sign()
        points = np.flatnonzero(octets == _POINT)
        cells = self._cells_at(points)
        counts = np.bincount(cells, minlength=len(length))
        second = octets[np.minimum(leading + 1, self._last)]
        zero_first = (octets[np.minimum(leading, self._last)] == _ZERO) & (length > 1)
        short: Mask = (length > 0) & (counts <= 1) & (length - counts - zero_first <= EXACT_DIGITS)
        short &= ~zero_first | (second == _POINT)
        short[cells[(points == leading[cells]) | (points == self._ends[cells] - 1)]] = False
        strange = self._are_strange(_POINT)
        strange[leading[leading != self._starts] - 1] = False
        if strange.any():
            short[self._cells_at(np.flatnonzero(strange))] = False
        return short

    def _are_strange(self, allowed: int) -> Mask:
        strange: Mask = (self._octets - _ZERO > _NINE - _ZERO) & (self._octets != allowed)
        return strange

    def _cells_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.searchsorted(self._ends, places, side="right")

    def _without_sign(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Give where the cells start behind the sign and how long they are from there."""
        signs = self._octets[np.minimum(self._starts, self._last)] == _MINUS
        leading = self._starts + (signs & self._are_there)
        return leading, self._ends - leading
