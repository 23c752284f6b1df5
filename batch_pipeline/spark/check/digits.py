"""Tells whether all cells of a column are written as numbers, by its bytes as a whole."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

EXACT_DIGITS = 15  # a double holds every decimal number of so many digits
MAX_INTEGER_DIGITS = 19  # no integer of 64 bits has more; the cast refuses those beyond
_MEAN_LENGTH = 12  # from there on cells are hardly ever all short
_MINUS, _POINT, _ZERO = b"-.0"


class Digits:
    """Tells whether all cells of a column that are not null are written as numbers.

    Looks at the column's bytes as a whole: some 50 times faster than a pattern match for each cell.
    """

    def __init__(self, column: pa.StringArray) -> None:
        self._cells = column.drop_null() if column.null_count else column
        _, offsets, octets = self._cells.buffers()
        first, count = self._cells.offset, len(self._cells)
        bounds = np.frombuffer(offsets, np.int32)[first : first + count + 1]
        self._starts, self._ends = bounds[:-1], bounds[1:]
        self._octets = np.frombuffer(octets or b"", np.uint8)
        used = self._octets[bounds[0] : bounds[-1]].tobytes()
        self._strange = used.translate(None, b"0123456789-")
        self._minuses = used.count(b"-")
        self._plain = bool((self._ends > self._starts).all())
        self.longest = 0

    def are_integers(self) -> bool:
        """Match `-?(0|[1-9][0-9]{0,18})`; `longest` is then the number of digits of the longest."""
        if self._strange or not self._plain:
            return False
        leading, digits = self._without_sign()
        if leading is None:
            return False
        self.longest = int(digits.max())
        padded = (self._octets[leading] == _ZERO) & (digits > 1)
        return self.longest <= MAX_INTEGER_DIGITS and not padded.any()

    def are_short_decimals(self) -> bool:
        """Match JSON's numbers of at most 15 digits without an exponent; false also for long cells.

        For those there are better ways to tell.
        """
        if self._strange.translate(None, b".") or not self._plain:
            return False
        leading, digits = self._without_sign()
        if leading is None or int(digits.sum()) > _MEAN_LENGTH * len(digits):
            return False
        points = np.flatnonzero(self._octets == _POINT)
        points = points[(points >= self._starts[0]) & (points < self._ends[-1])]
        cells = np.searchsorted(self._ends, points, side="right")
        if len(points) > 1 and not np.diff(cells).all():
            return False
        if (points == leading[cells]).any() or (points == self._ends[cells] - 1).any():
            return False
        second = self._octets[np.minimum(leading + 1, len(self._octets) - 1)]
        padded = (self._octets[leading] == _ZERO) & (digits > 1) & (second != _POINT)
        digits[cells] -= 1
        return bool((digits <= EXACT_DIGITS).all()) and not bool(padded.any())

    def _without_sign(
        self,
    ) -> tuple[npt.NDArray[np.int32] | None, npt.NDArray[np.int32]]:
        """Give where the cells start behind the sign and how long they are from there."""
        lengths = self._ends - self._starts
        if not self._minuses:
            return self._starts, lengths
        negative = self._octets[self._starts] == _MINUS
        if int(negative.sum()) != self._minuses or (lengths <= negative).any():
            return None, lengths
        return self._starts + negative, lengths - negative
