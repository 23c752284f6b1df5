"""Values of one column, as JSON has them, as an Arrow array of the column's type.

Which values a record has is known elsewhere. Nothing is rounded or cut: what is no value of the
type is an error.
"""

import binascii
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.domain.schema import MAX_PRECISION, Column, ColumnType
from batch_pipeline.postgres.cells import JSON_TYPES, arrow_type_of

SAID_IN_TEXT = frozenset(
    {
        ColumnType.BINARY,
        ColumnType.DATE,
        ColumnType.TIME,
        ColumnType.TIMESTAMP,
        ColumnType.LOCAL_TIMESTAMP,
    }
)
KEPT_AS_TEXT = JSON_TYPES | {ColumnType.DECIMAL}  # of the JSON, with all its digits
UNREADABLE = (ValueError, OverflowError, RecursionError)  # those of Arrow and msgspec are such
_PLAIN: dict[ColumnType, Any] = {
    ColumnType.BOOLEAN: bool | None,
    ColumnType.INTEGER: int | None,
    ColumnType.NUMBER: float | None,
    ColumnType.UNKNOWN: None,
}
_ZEROS = r"(\.[0-9]{6})0+"  # behind the microseconds
_ANY_DAY = "1970-01-01T"
_NULL = b"null"
_TOO_LONG = re.compile("[0-9]{39}")  # of which Arrow's cast makes any number

Raws = Sequence[bytes | msgspec.Raw | None]


def python_type(column: Column) -> Any:
    """Give the Python type by which msgspec reads values of a column that are not kept as text."""
    return _PLAIN.get(column.type, str | None)


def of_raws(raws: Raws, column: Column) -> pa.Array:
    """Read the JSON text of values; None is null.

    Raises:
        ValueError: one is no value of the column, or one of the other errors in `UNREADABLE`.
    """
    if column.type in KEPT_AS_TEXT:
        texts = (None if raw is None else bytes(raw) for raw in raws)
        plain = [None if text is None or text == _NULL else text.decode() for text in texts]
        if column.type is ColumnType.DECIMAL:
            _check_digits(filter(None, plain), column)
        return pa.array(plain, pa.string()).cast(arrow_type_of(column))
    text = b"[" + b",".join(_NULL if raw is None else bytes(raw) for raw in raws) + b"]"
    kind: Any = list.__class_getitem__(python_type(column))
    return of_values(msgspec.json.decode(text, type=kind), column)


def _check_digits(texts: Iterable[str], column: Column) -> None:
    """Refuse what Arrow's cast would let overflow, in silence, into any number."""
    most = MAX_PRECISION - column.scale  # before the point
    for text in texts:
        if len(text) > most or "e" in text or "E" in text:
            try:
                number = Decimal(text)
            except InvalidOperation:
                raise ValueError("a value is no number") from None
            if _TOO_LONG.search(text) or (number and number.adjusted() >= most):
                raise ValueError("a number has more digits than a decimal")


def of_values(values: Sequence[Any], column: Column) -> pa.Array:
    """Make an array of values that msgspec has read.

    Raises:
        ValueError: one is no value of the column, or one of the other errors in `UNREADABLE`.
    """
    if column.type in SAID_IN_TEXT:
        return said(pa.array(values, pa.string()), column)
    return pa.array(values, arrow_type_of(column))


def said(texts: pa.StringArray, column: Column) -> pa.Array:
    """Read what texts say: ISO 8601 with at most microseconds, or base64.

    Raises:
        ValueError: one says no value of the column.
    """
    kind = arrow_type_of(column)
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    match column.type:
        case ColumnType.BINARY:
            octets = (
                None if text is None else binascii.a2b_base64(text, strict_mode=True)
                for text in texts.to_pylist()
            )
            return pa.array(octets, kind)
        case ColumnType.DATE:
            return texts.cast(kind)
        case ColumnType.TIME:
            days = pc.binary_join_element_wise(_ANY_DAY, texts, "")
            return _instants(days, pa.timestamp("us")).cast(kind)
        case _:
            return _instants(texts, kind)


def _instants(texts: pa.StringArray, kind: pa.DataType) -> pa.TimestampArray:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return pc.replace_substring_regex(texts, _ZEROS, r"\1").cast(kind)
