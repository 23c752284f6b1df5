"""Reads texts as values of a column's type, a whole column at a time; what does not fit is told.

Nothing is rounded or cut: a text either says a value that the type holds exactly, or does not fit.
"""

import base64
import binascii
from decimal import Decimal, localcontext
from typing import assert_never

import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.domain.schema import MAX_PRECISION, Column, ColumnType
from batch_pipeline.spark.arrow_types import arrow_type_of, exact_cast
from batch_pipeline.spark.check.cell_numbers import NUMBER, doubles_in
from batch_pipeline.spark.check.digits import Digits
from batch_pipeline.spark.check.number_text import decimal_of

TEXT_FORMS = frozenset(
    {
        ColumnType.BINARY,
        ColumnType.DATE,
        ColumnType.TIME,
        ColumnType.TIMESTAMP,
        ColumnType.LOCAL_TIMESTAMP,
    }
)
# Of "2026-01-31T10:00Z" and the like: what is shorter has no time of day.
_SHORTEST = {
    ColumnType.DATE: 10,
    ColumnType.TIME: 8,
    ColumnType.TIMESTAMP: 17,
    ColumnType.LOCAL_TIMESTAMP: 16,
}
_ANY_DAY = "1970-01-01T"
_FIRST, _LAST = "0001-01-01", "9999-12-31"  # days that all readers know
# Arrow's cast makes 0 of some numbers that are nearly 0, and any number of too many digits.
_FAR = r"[eE]|\.[0-9]{38}|[0-9]{39}"
_ZEROS = r"(\.[0-9]{6})0+"  # behind the microseconds


class UnfitTextError(ValueError):
    """A text says no value of the type."""


def fits_text(text: str, column: Column) -> bool:
    """Tell whether a text says a value of the column."""
    return not read_texts(pa.array([text], pa.string()), column)[1]


def read_texts(texts: pa.StringArray, column: Column) -> tuple[pa.Array, list[int]]:
    """Give the values that texts say, null where they do not fit, and the positions of those.

    Booleans are `true` and `false`, numbers as in JSON, binary is base64, dates and times are ISO
    8601 with at most microseconds; an instant has a zone, a local time has none.
    """
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), arrow_type_of(column)), []
    try:
        return _all_of(texts, column), []
    except (UnfitTextError, pa.ArrowInvalid):
        if len(texts) == 1:
            return pa.nulls(1, arrow_type_of(column)), [0]
    half = len(texts) // 2
    left, unfit = read_texts(texts.slice(0, half), column)
    right, more = read_texts(texts.slice(half), column)
    return pa.concat_arrays([left, right]), unfit + [half + position for position in more]


def _all_of(texts: pa.StringArray, column: Column) -> pa.Array:
    match column.type:
        case ColumnType.STRING | ColumnType.ANY | ColumnType.OBJECT | ColumnType.ARRAY:
            return texts
        case ColumnType.UNKNOWN:
            raise UnfitTextError
        case ColumnType.BOOLEAN | ColumnType.BINARY:
            return _booleans(texts) if column.type is ColumnType.BOOLEAN else _binaries(texts)
        case ColumnType.INTEGER | ColumnType.DECIMAL | ColumnType.NUMBER:
            return _numbers(texts, column)
        case ColumnType.DATE | ColumnType.TIME | ColumnType.TIMESTAMP | ColumnType.LOCAL_TIMESTAMP:
            return _times(texts, column)
        case _:
            assert_never(column.type)


def _booleans(texts: pa.StringArray) -> pa.BooleanArray:
    _require(pc.is_in(texts, pa.array(["true", "false"]), skip_nulls=True), texts)
    return pc.equal(texts, "true")


def _binaries(texts: pa.StringArray) -> pa.BinaryArray:
    return pa.array([_bytes(text) for text in texts.to_pylist()], pa.binary())


def _numbers(texts: pa.StringArray, column: Column) -> pa.Array:
    if column.type is ColumnType.NUMBER:
        return _doubles(texts)
    if not Digits(texts).are_integers():
        if column.type is ColumnType.INTEGER:
            raise UnfitTextError
        _require(pc.match_substring_regex(texts, NUMBER), texts)
    if column.type is ColumnType.DECIMAL:
        return decimals_of(texts, column)
    return pc.cast(texts, arrow_type_of(column))


def decimals_of(texts: pa.StringArray, column: Column) -> pa.Array:
    """Read texts, all of them numbers as in JSON, as decimals of a column.

    Raises:
        UnfitTextError: one does not fit.
        ArrowInvalid: one does not fit.
    """
    kind = arrow_type_of(column)
    if not pc.any(pc.match_substring_regex(texts, _FAR)).as_py():
        return exact_cast(texts, kind)
    with localcontext(prec=2 * MAX_PRECISION):
        return pa.array([_decimal(text, column) for text in texts.to_pylist()], kind)


def _decimal(text: str | None, column: Column) -> Decimal | None:
    if text is None:
        return None
    needed = decimal_of(column.name, text)
    whole = column.precision - column.scale
    is_decimal = needed.type is ColumnType.DECIMAL
    if not is_decimal or needed.scale > column.scale or needed.precision - needed.scale > whole:
        raise UnfitTextError
    return Decimal(text).quantize(Decimal((0, (1,), -column.scale)))


def _require(fitting: pa.BooleanArray, texts: pa.StringArray) -> None:
    if pc.sum(fitting).as_py() != len(texts) - texts.null_count:
        raise UnfitTextError


def _doubles(texts: pa.StringArray) -> pa.DoubleArray:
    found = doubles_in(texts)
    if found is None or len(found.inexact):
        raise UnfitTextError
    return found.values


def _bytes(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        octets = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnfitTextError from error
    if base64.b64encode(octets).decode() != text:
        raise UnfitTextError
    return octets


def _times(texts: pa.StringArray, column: Column) -> pa.Array:
    if pc.min(pc.binary_length(texts)).as_py() < _SHORTEST[column.type]:
        raise UnfitTextError
    if column.type is ColumnType.TIME:
        days = pc.binary_join_element_wise(_ANY_DAY, texts, "")
        return _cast_times(days, pa.timestamp("us")).cast(pa.time64("us"))
    if column.type is ColumnType.DATE:
        values = pc.cast(texts, pa.date32())
    else:
        values = _cast_times(texts, arrow_type_of(column))
    bounds = pc.min_max(values if column.type is ColumnType.DATE else _days(values))
    first, last = (pa.scalar(day).cast(pa.date32()) for day in (_FIRST, _LAST))
    if pc.less(bounds["min"], first).as_py() or pc.greater(bounds["max"], last).as_py():
        raise UnfitTextError
    return values


def _days(values: pa.TimestampArray) -> pa.Array:
    return values.cast(pa.timestamp("us")).cast(pa.date32(), safe=False)


def _cast_times(texts: pa.StringArray, kind: pa.DataType) -> pa.TimestampArray:
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid:
        return pc.cast(pc.replace_substring_regex(texts, _ZEROS, r"\1"), kind)
