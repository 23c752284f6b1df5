"""Which types of Postgres hold the values of a column, and how these are written as each of them.

What is written is exact; a value that a type cannot hold is told, never rounded.
"""

import base64
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.postgres import copy_fields
from batch_pipeline.postgres.copy_fields import Pieces
from batch_pipeline.postgres.type_names import PgType

JSON_TYPES = frozenset({ColumnType.OBJECT, ColumnType.ARRAY, ColumnType.ANY})
_INTEGER_DIGITS = 19
_ARROW_TYPES = {
    ColumnType.UNKNOWN: pa.null(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.INTEGER: pa.int64(),
    ColumnType.NUMBER: pa.float64(),
    ColumnType.STRING: pa.string(),
    ColumnType.BINARY: pa.binary(),
    ColumnType.DATE: pa.date32(),
    ColumnType.TIME: pa.time64("us"),
    ColumnType.TIMESTAMP: pa.timestamp("us", "UTC"),
    ColumnType.LOCAL_TIMESTAMP: pa.timestamp("us"),
    ColumnType.OBJECT: pa.string(),
    ColumnType.ARRAY: pa.string(),
    ColumnType.ANY: pa.string(),
}
_WRITERS: dict[PgType, Callable[[Any], Pieces]] = {
    PgType.BIGINT: copy_fields.integers,
    PgType.DOUBLE: copy_fields.doubles,
    PgType.BOOLEAN: copy_fields.booleans,
    PgType.DATE: copy_fields.dates,
    PgType.TIME: copy_fields.times,
    PgType.TIMESTAMPTZ: copy_fields.timestamps,
    PgType.TIMESTAMP: copy_fields.timestamps,
    PgType.BYTEA: copy_fields.texts,
}


class UnfitCellError(ValueError):
    """A value does not fit its column; `row` counts from 0 in the batch of rows."""

    def __init__(self, row: int, column: str, problem: str) -> None:
        super().__init__(f"row {row}, column {column}: {problem}")
        self.row = row
        self.column = column
        self.problem = problem


def arrow_type_of(column: Column) -> pa.DataType:
    """Give the Arrow type of a column in part files; objects, arrays, mixtures are JSON text."""
    if column.type is ColumnType.DECIMAL:
        return pa.decimal128(column.precision, column.scale)
    return _ARROW_TYPES[column.type]


def pieces_of(array: pa.Array, column: Column, kind: PgType) -> Pieces:
    """Write the values of a column, which have its Arrow type, as fields of a Postgres type.

    Raises:
        UnfitCellError: the type cannot hold one of them exactly.
    """
    if kind is PgType.NUMERIC:
        return _numerics(array)
    if kind is PgType.TEXT:
        return copy_fields.texts(_text(array))
    if kind is PgType.JSONB:
        return copy_fields.jsonb(array if column.type in JSON_TYPES else _json(array))
    if kind is PgType.DOUBLE and at.is_integer(array.type):
        array = _doubles(array, column)
    return _WRITERS[kind](array)


def _numerics(array: pa.Array) -> Pieces:
    if at.is_floating(array.type):
        return copy_fields.numerics_of_doubles(array)
    if at.is_integer(array.type):
        array = array.cast(pa.decimal128(_INTEGER_DIGITS, 0))
    return copy_fields.numerics(array)


def _doubles(array: pa.Int64Array, column: Column) -> pa.DoubleArray:
    doubles = array.cast(pa.float64(), safe=False)
    values = pc.fill_null(array, 0).to_numpy()
    rounded = pc.fill_null(doubles, 0.0).to_numpy()
    # 2^63 itself is no integer of 64 bits, so it is compared before it is turned back.
    is_beyond = rounded >= 2.0**63
    differs = is_beyond | (np.where(is_beyond, 0, rounded).astype(np.int64) != values)
    if differs.any():
        row = int(differs.argmax())
        problem = f"double precision cannot hold {values[row]} exactly"
        raise UnfitCellError(row, column.name, problem)
    return doubles


def _text(array: pa.Array) -> pa.StringArray:
    """Write values as the text that they have in JSON lines, without quotes."""
    kind = array.type
    if at.is_string(kind):
        return array
    if at.is_timestamp(kind):
        text = pc.replace_substring(array.cast(pa.timestamp("us")).cast(pa.string()), " ", "T")
        return text if kind.tz is None else pc.binary_join_element_wise(text, "Z", "")
    if at.is_decimal(kind):
        return _each(array, _decimal_text)
    if at.is_binary(kind):
        return _each(array, _base64)
    return array.cast(pa.string())


def _json(array: pa.Array) -> pa.StringArray:
    """Write values as JSON."""
    kind = array.type
    if at.is_integer(kind) or at.is_floating(kind) or at.is_boolean(kind) or at.is_decimal(kind):
        return _text(array)
    return _each(_text(array), _quoted)


def _each(array: pa.Array, write: Callable[[Any], str]) -> pa.StringArray:
    texts = [None if value is None else write(value) for value in array.to_pylist()]
    return pa.array(texts, pa.string())


def _decimal_text(value: Decimal) -> str:
    return f"{value:f}"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _quoted(value: str) -> str:
    return msgspec.json.encode(value).decode()
