"""Reads text cells as doubles, if the doubles are just the numbers that were written.

Whole columns at a time, by a round trip: a double written as short as reads back the same has the
digits of the text. What columns become of it is not known here.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.spark.check.digits import Digits
from batch_pipeline.spark.check.number_text import DOUBLE_EXACT, doubles_of

NUMBER = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"
_MANY = 128  # cells, from which on the fastest way pays off


@dataclass(frozen=True, slots=True)
class DoubleCells:
    """The nearest doubles, null where cells are, and the positions of those that are not exact."""

    values: pa.DoubleArray
    inexact: npt.NDArray[np.int64]


def doubles_in(cells: pa.StringArray) -> DoubleCells | None:
    """Read cells that are all written as JSON writes numbers; None where one is not.

    Integers beyond 2^53 count as inexact, for a double holds but some of them.
    """
    try:
        values = pc.cast(cells, pa.float64())
    except pa.ArrowInvalid:
        return None
    positions = np.arange(len(cells))
    if cells.null_count:
        positions = np.flatnonzero(cells.is_valid().to_numpy(zero_copy_only=False))
    if len(cells) >= _MANY:
        positions = positions[~Digits(cells).are_short_decimals()]
    if len(positions):
        positions = positions[~_come_back(values, cells, positions)]
    if not len(positions):
        return DoubleCells(values, positions)
    rest = cells.take(pa.array(positions))
    if not pc.all(pc.match_substring_regex(rest, NUMBER)).as_py():
        return None
    _, inexact = doubles_of(rest.cast(pa.binary()).to_pylist())
    return DoubleCells(values, positions[np.array(inexact, np.int64)])


def _come_back(
    values: pa.DoubleArray, cells: pa.StringArray, positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Tell of which cells the doubles are written just like that."""
    if len(positions) < len(cells):
        values, cells = values.take(pa.array(positions)), cells.take(pa.array(positions))
    written = pc.cast(values, pa.string())
    same: npt.NDArray[np.bool_] = np.abs(values.to_numpy()) <= DOUBLE_EXACT
    if not written.equals(cells):
        same &= pc.equal(written, cells).to_numpy(zero_copy_only=False)
    return same
