"""Which column text cells need, when nothing or something else is known of it."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.domain.schema import Column, ColumnType, joined
from batch_pipeline.spark.check.cell_numbers import NUMBER, doubles_in
from batch_pipeline.spark.check.digits import Digits
from batch_pipeline.spark.check.number_text import DOUBLE_EXACT, decimal_of
from batch_pipeline.spark.check.sights import Sight

_SURE_DIGITS = 18  # every integer of so many fits 64 bits


def cells_sight(name: str, cells: pa.StringArray, known: Column | None) -> Sight:
    """See what cells need that are not all null: an exact kind of number, else text.

    Texts like `007`, `+1` or `1e400` are no numbers. Where the column is a decimal, numbers are
    counted by their digits.
    """
    if known is not None and known.type is ColumnType.DECIMAL:
        return Sight(_decimals(name, cells))
    digits = Digits(cells)
    if digits.are_integers():
        return _integers(name, cells, digits)
    found = doubles_in(cells)
    if found is None:
        return Sight(Column(name=name, type=ColumnType.STRING))
    if not len(found.inexact):
        return Sight(Column(name=name, type=ColumnType.NUMBER))
    return Sight(_decimals(name, cells.take(pa.array(found.inexact))))


def holds_quickly(cells: pa.StringArray, column: Column) -> bool:
    """Tell, where that needs no conversion, that all cells are values of a column."""
    match column.type:
        case ColumnType.STRING | ColumnType.ANY:
            return True
        case ColumnType.INTEGER:
            digits = Digits(cells)
            return digits.are_integers() and digits.longest < len(str(DOUBLE_EXACT))
        case ColumnType.NUMBER:
            return bool(Digits(cells).are_short_decimals().all())
        case _:
            return False


def _integers(name: str, cells: pa.StringArray, digits: Digits) -> Sight:
    if digits.longest > _SURE_DIGITS:
        try:
            values = pc.cast(cells, pa.int64())
        except pa.ArrowInvalid:
            return Sight(_decimals(name, cells))
    else:
        values = pc.cast(cells, pa.int64())
    return Sight(Column(name=name, type=ColumnType.INTEGER), wide=is_wide(values))


def is_wide(values: pa.Int64Array) -> bool:
    """Tell whether there are integers that no double holds."""
    present = values.drop_null() if values.null_count else values
    if not len(present):
        return False
    numbers = present.to_numpy()
    return int(numbers.min()) < -DOUBLE_EXACT or int(numbers.max()) > DOUBLE_EXACT


def _decimals(name: str, cells: pa.StringArray) -> Column:
    present = cells.drop_null()
    if not pc.all(pc.match_substring_regex(present, NUMBER)).as_py():
        return Column(name=name, type=ColumnType.STRING)
    found = Column(name=name, type=ColumnType.UNKNOWN)
    for text in np.unique(present.to_numpy(zero_copy_only=False)).tolist():
        found = joined(found, decimal_of(name, text), text_source=True)
        if found.type is not ColumnType.DECIMAL:
            return Column(name=name, type=ColumnType.STRING)
    return found
