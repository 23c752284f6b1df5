"""Keeps track of the columns that a task has seen, and of those that the schema cannot hold."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema, widen

EXACT_DIGITS = 15  # a double holds every decimal number of so many digits
MAX_INTEGER_DIGITS = 18  # every integer of so many digits fits 64 bits

_NUMBER_CELL = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?$"
_NOT_SIGNIFICANT = r"^-?0*\.?0*|\.|[eE].*$"
_LONGEST_NUMBER = 64  # so that no number leaves the range of a double
_MINUS, _POINT, _ZERO = b"-.0"


class Profile:
    """The schema widened by what was seen.

    `wide` are the integer columns with values that a double cannot hold: such a column does not
    become a number when a fraction turns up.
    """

    def __init__(self, schema: RecordSchema) -> None:
        self.types: dict[str, ColumnType] = schema.types()
        self.wide: set[str] = set()
        self._schema = dict(self.types)

    @property
    def fits(self) -> bool:
        """Tell whether the schema holds all that was seen."""
        return self.types == self._schema

    def misfits(self) -> tuple[Column, ...]:
        """Give the columns that the schema lacks or must widen, with the types that they need."""
        return tuple(
            Column(name=name, type=kind)
            for name, kind in self.types.items()
            if self._schema.get(name) is not kind
        )

    def see(self, name: str, seen: ColumnType, *, text: bool, wide: bool = False) -> None:
        """Take in that column `name` held a `seen`; `text` tells that it was a text cell."""
        if wide:
            self.wide.add(name)
        kind = widen(self.types.get(name, ColumnType.UNKNOWN), seen, text_source=text)
        self.types[name] = narrowed(kind, wide=name in self.wide, text_source=text)

    def see_names(self, names: Iterable[str]) -> None:
        """Take in the columns of a header."""
        for name in names:
            self.types.setdefault(name, ColumnType.UNKNOWN)

    def see_cells(self, cells: pa.RecordBatch) -> None:
        """Take in text cells, a string column per name."""
        for name, column in zip(cells.schema.names, cells.columns, strict=True):
            known = self.types.get(name, ColumnType.UNKNOWN)
            if known in (ColumnType.STRING, ColumnType.ANY):
                continue
            if column.null_count == len(column):
                self.see(name, ColumnType.UNKNOWN, text=True)
                continue
            numeric = _Digits(column)
            if known is ColumnType.NUMBER and numeric.are_numbers():
                continue
            if numeric.are_integers():
                wide = numeric.longest > EXACT_DIGITS
                self.see(name, ColumnType.INTEGER, text=True, wide=wide)
            elif numeric.are_numbers():
                self.see(name, ColumnType.NUMBER, text=True)
            else:
                self.see(name, ColumnType.STRING, text=True)


def narrowed(kind: ColumnType, *, wide: bool, text_source: bool) -> ColumnType:
    """Keep a column exact: with integers too long for a double it cannot be a number."""
    if kind is ColumnType.NUMBER and wide:
        return ColumnType.STRING if text_source else ColumnType.ANY
    return kind


class _Digits:
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
        """Match `-?(0|[1-9][0-9]{0,17})`; `longest` is then the number of digits of the longest."""
        if self._strange or not self._plain:
            return False
        leading, digits = self._without_sign()
        if leading is None:
            return False
        self.longest = int(digits.max())
        padded = (self._octets[leading] == _ZERO) & (digits > 1)
        return self.longest <= MAX_INTEGER_DIGITS and not padded.any()

    def are_numbers(self) -> bool:
        """Match JSON's numbers, of at most 15 significant digits and two digits of exponent."""
        if not self._plain or self._strange.translate(None, b".eE+"):
            return False
        if not self._strange.translate(None, b".") and self._are_short_decimals():
            return True
        shaped = pc.match_substring_regex(self._cells, _NUMBER_CELL)
        significant = pc.replace_substring_regex(self._cells, _NOT_SIGNIFICANT, "")
        exact = pc.less_equal(pc.binary_length(significant), EXACT_DIGITS)
        short = pc.less_equal(pc.binary_length(self._cells), _LONGEST_NUMBER)
        return bool(pc.all(pc.and_(shaped, pc.and_(exact, short))).as_py())

    def _are_short_decimals(self) -> bool:
        leading, digits = self._without_sign()
        if leading is None:
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
