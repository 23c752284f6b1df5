"""Postgres types of loaded columns, and their values in the binary COPY format.

`type_for`, `can_hold`, `wider_type` and `conversion` choose and widen the types of columns.
`pieces_of` converts an Arrow array to fields of a type and `rows_of` joins the fields to rows.
Values are never rounded or truncated: a value that a type cannot hold exactly is an error.
"""

import base64
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from batch_pipeline.encode import arrow_types
from batch_pipeline.encode.arrow_types import JSON_TYPES
from batch_pipeline.model.schema import Column, ColumnType

_INTEGER_DIGITS = 19
_NUMERIC_WITH_PRECISION = re.compile(r"numeric\((\d+),(\d+)\)")


class PgType(StrEnum):
    """Postgres types by their names in `format_type`."""

    BOOLEAN = "boolean"
    BIGINT = "bigint"
    NUMERIC = "numeric"
    DOUBLE = "double precision"
    TEXT = "text"
    BYTEA = "bytea"
    DATE = "date"
    TIME = "time without time zone"
    TIMESTAMPTZ = "timestamp with time zone"
    TIMESTAMP = "timestamp without time zone"
    JSONB = "jsonb"


_PG_TYPES = {
    ColumnType.BOOLEAN: PgType.BOOLEAN,
    ColumnType.INTEGER: PgType.BIGINT,
    ColumnType.DECIMAL: PgType.NUMERIC,
    ColumnType.NUMBER: PgType.DOUBLE,
    ColumnType.STRING: PgType.TEXT,
    ColumnType.BINARY: PgType.BYTEA,
    ColumnType.DATE: PgType.DATE,
    ColumnType.TIME: PgType.TIME,
    ColumnType.TIMESTAMP: PgType.TIMESTAMPTZ,
    ColumnType.LOCAL_TIMESTAMP: PgType.TIMESTAMP,
    ColumnType.OBJECT: PgType.JSONB,
    ColumnType.ARRAY: PgType.JSONB,
    ColumnType.ANY: PgType.JSONB,
}
_INTEGER_HOLDERS = frozenset({PgType.BIGINT, PgType.NUMERIC, PgType.DOUBLE})
_NUMBERS = _INTEGER_HOLDERS | {PgType.BOOLEAN}
_AS_TEXT = {
    PgType.BYTEA: r"replace(encode({0}, 'base64'), E'\n', '')",
    PgType.DATE: "to_char({0}, 'YYYY-MM-DD')",
    PgType.TIME: "to_char(date '2000-01-01' + {0}, 'HH24:MI:SS.US')",
    PgType.TIMESTAMPTZ: "to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
    PgType.TIMESTAMP: "to_char({0}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US')",
}


def type_for(column: Column) -> PgType:
    """Return the type of a new column. Columns with only nulls have no type yet."""
    return _PG_TYPES[column.type]


def known_type(name: str) -> PgType | None:
    """Return the type that the server calls `name`, None if the loader cannot write it."""
    if name == "character varying":
        return PgType.TEXT
    if _NUMERIC_WITH_PRECISION.fullmatch(name):
        return PgType.NUMERIC
    return PgType(name) if name in set(PgType) else None


def can_hold(name: str, column: Column) -> bool:
    """Return whether a table column of the named type can hold the values of a column.

    Double precision is accepted for integers; each value is checked when it is written.
    """
    kind = known_type(name)
    match = _NUMERIC_WITH_PRECISION.fullmatch(name)
    if match is not None:
        return _fits_numeric(int(match[1]), int(match[2]), column)
    if kind is None or kind is _PG_TYPES[column.type] or kind is PgType.JSONB:
        return kind is not None
    match column.type:
        case ColumnType.OBJECT | ColumnType.ARRAY | ColumnType.ANY:
            return False
        case ColumnType.INTEGER:
            return kind in _INTEGER_HOLDERS or kind is PgType.TEXT
        case ColumnType.NUMBER:
            return kind in {PgType.NUMERIC, PgType.TEXT}
        case _:
            return kind is PgType.TEXT


def wider_type(kind: PgType, column: Column) -> PgType:
    """Return the narrowest type that holds the values of both a type and a column."""
    needed = _PG_TYPES[column.type]
    if kind in _INTEGER_HOLDERS and needed in _INTEGER_HOLDERS:
        return PgType.NUMERIC
    return PgType.JSONB if needed is PgType.JSONB else PgType.TEXT


def conversion(kind: PgType, wider: PgType) -> str:
    """Return the SQL expression, with `{0}` for the column, that converts to a wider type."""
    text = _AS_TEXT.get(kind, "{0}::text")
    if wider is PgType.JSONB:
        return "to_jsonb({0})" if kind in _NUMBERS else f"to_jsonb({text})"
    return f"{text}::numeric" if wider is PgType.NUMERIC else text


def _fits_numeric(precision: int, scale: int, column: Column) -> bool:
    if column.type is ColumnType.INTEGER:
        return precision - scale >= _INTEGER_DIGITS
    whole = column.precision - column.scale
    return (
        column.type is ColumnType.DECIMAL and scale >= column.scale and precision - scale >= whole
    )


Pieces = list[pa.BinaryArray | pa.BinaryScalar]

NULL = pa.scalar(b"\xff\xff\xff\xff", pa.binary())
_EMPTY = pa.scalar(b"", pa.binary())
_JSONB_VERSION = pa.scalar(b"\x01", pa.binary())
_DAYS_TO_2000 = 10_957
_MICROSECONDS_TO_2000 = 946_684_800_000_000
_FIXED_WIDTH: dict[PgType, tuple[type[np.generic], int, str]] = {  # in Arrow, origin, in COPY
    PgType.BIGINT: (np.int64, 0, ">i8"),
    PgType.DOUBLE: (np.float64, 0, ">f8"),
    PgType.BOOLEAN: (np.uint8, 0, "u1"),
    PgType.DATE: (np.int32, _DAYS_TO_2000, ">i4"),
    PgType.TIME: (np.int64, 0, ">i8"),
    PgType.TIMESTAMPTZ: (np.int64, _MICROSECONDS_TO_2000, ">i8"),
    PgType.TIMESTAMP: (np.int64, _MICROSECONDS_TO_2000, ">i8"),
}
# A numeric stores four decimal digits in two bytes.
_DIGIT_VALUES = np.array([1000, 100, 10, 1], np.int16)
_NEGATIVE_SIGN = 0x4000
_SPECIAL_SIGNS = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}


class IncompatibleValueError(ValueError):
    """A value that its column cannot hold; `row` counts from 0 in the Arrow batch."""

    def __init__(self, row: int, column: str, problem: str) -> None:
        super().__init__(f"row {row}, column {column}: {problem}")
        self.row = row
        self.column = column
        self.problem = problem


def arrow_type_of(column: Column) -> pa.DataType:
    """Return the Arrow type of a column's blocks; a column without a known type holds nulls."""
    if column.type is ColumnType.UNKNOWN:
        return pa.null()
    return arrow_types.arrow_type_of(column)


def pieces_of(array: pa.Array, column: Column, kind: PgType) -> Pieces:
    """Return the values of a column, in its Arrow type, as fields of a Postgres type.

    Raises:
        IncompatibleValueError: the type cannot hold a value exactly.
    """
    match kind:
        case PgType.NUMERIC:
            return _numerics(array)
        case PgType.TEXT:
            return _texts(_text(array))
        case PgType.BYTEA:
            return _texts(array)
        case PgType.JSONB:
            return _jsonb(array if column.type in JSON_TYPES else _json(array))
        case PgType.BOOLEAN:
            array = array.cast(pa.uint8())
        case PgType.DOUBLE if at.is_integer(array.type):
            array = _doubles(array, column)
    stored, origin, sent = _FIXED_WIDTH[kind]
    numbers = _numbers(array, stored)
    return _fixed_width(array, (numbers - origin if origin else numbers).astype(sent))


def rows_of(pieces: Sequence[pa.BinaryArray | pa.BinaryScalar]) -> memoryview:
    """Return the bytes of all rows; a row is the concatenation of its pieces."""
    rows = pc.binary_join_element_wise(*pieces, _EMPTY)
    offsets = np.frombuffer(rows.buffers()[1], np.int32)
    return memoryview(rows.buffers()[2])[: int(offsets[len(rows)])]


def _numerics(array: pa.Array) -> Pieces:
    if at.is_floating(array.type):
        # The shortest digits that round-trip, and NaN and infinities.
        values = (
            None if value is None else _numeric_bytes(Decimal(repr(value)))
            for value in array.to_pylist()
        )
        return _texts(pa.array(values, pa.binary()))
    if at.is_integer(array.type):
        array = array.cast(pa.decimal128(_INTEGER_DIGITS, 0))
    return _decimal_numerics(array)


def _doubles(array: pa.Int64Array, column: Column) -> pa.DoubleArray:
    doubles = array.cast(pa.float64(), safe=False)
    values = pc.fill_null(array, 0).to_numpy()
    rounded = pc.fill_null(doubles, 0.0).to_numpy()
    # 2^63 does not fit a 64-bit integer, so it is compared before the conversion back.
    is_beyond = rounded >= 2.0**63
    differs = is_beyond | (np.where(is_beyond, 0, rounded).astype(np.int64) != values)
    if differs.any():
        row = int(differs.argmax())
        problem = f"double precision cannot hold {values[row]} exactly"
        raise IncompatibleValueError(row, column.name, problem)
    return doubles


def _text(array: pa.Array) -> pa.StringArray:
    """Return values as their text in JSON lines, without quotes."""
    kind = array.type
    if at.is_string(kind):
        return array
    if at.is_timestamp(kind):
        text = pc.replace_substring(array.cast(pa.timestamp("us")).cast(pa.string()), " ", "T")
        return text if kind.tz is None else pc.binary_join_element_wise(text, "Z", "")
    if at.is_decimal(kind):
        return _map_texts(array, "{:f}".format)
    if at.is_binary(kind):
        return _map_texts(array, lambda value: base64.b64encode(value).decode())
    return array.cast(pa.string())


def _json(array: pa.Array) -> pa.StringArray:
    """Return values as JSON text."""
    kind = array.type
    if at.is_integer(kind) or at.is_floating(kind) or at.is_boolean(kind) or at.is_decimal(kind):
        return _text(array)
    return _map_texts(_text(array), lambda value: msgspec.json.encode(value).decode())


def _map_texts(array: pa.Array, write: Callable[[Any], str]) -> pa.StringArray:
    texts = [None if value is None else write(value) for value in array.to_pylist()]
    return pa.array(texts, pa.string())


def _texts(array: pa.StringArray | pa.BinaryArray) -> Pieces:
    """Write text or bytea."""
    if array.null_count:
        lengths = pc.fill_null(pc.binary_length(array), -1).to_numpy()
        array = pc.fill_null(array, b"" if at.is_binary(array.type) else "")
    else:
        lengths = np.diff(arrow_types.text_offsets(array))
    return [_equal_slices(lengths.astype(">i4"), 4), array.view(pa.binary())]


def _jsonb(array: pa.StringArray) -> Pieces:
    """Write jsonb, from JSON text."""
    lengths = (pc.fill_null(pc.binary_length(array), 0).to_numpy() + 1).astype(">i4")
    pieces: Pieces = [_equal_slices(lengths, 4), _JSONB_VERSION, array.view(pa.binary())]
    if not array.null_count:
        return pieces
    pieces[2] = pc.fill_null(pieces[2], b"")
    whole = pc.binary_join_element_wise(*pieces, _EMPTY)
    return [pc.if_else(array.is_valid(), whole, NULL)]


def _decimal_numerics(array: pa.Decimal128Array) -> Pieces:
    """Write numeric: decimal digits in groups of four on either side of the point."""
    precision, scale = array.type.precision, array.type.scale
    groups_after_point = -(-scale // 4)
    groups_before_point = -(-(precision - scale) // 4)
    groups = groups_before_point + groups_after_point
    # Read the same 16 bytes as integers, whose text has neither a point nor an exponent.
    buffers = array.buffers()
    kind = pa.decimal128(38, 0)
    whole = pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset)
    digits = pc.fill_null(whole.cast(pa.string()), "0")
    is_negative = pc.starts_with(digits, "-").to_numpy(zero_copy_only=False)
    digits = pc.utf8_ltrim(digits, "-")
    digits = pc.binary_join_element_wise(digits, "0" * (groups_after_point * 4 - scale), "")
    digits = pc.ascii_lpad(digits, groups * 4, "0")
    octets = np.frombuffer(digits.buffers()[2], np.uint8, len(array) * groups * 4)
    values = (octets.reshape(len(array), groups, 4) - ord("0")).astype(np.int16) @ _DIGIT_VALUES
    fields = np.empty((len(array), 4 + groups), np.int16)
    fields[:, 0] = groups
    fields[:, 1] = groups_before_point - 1
    fields[:, 2] = np.where(is_negative, _NEGATIVE_SIGN, 0)
    fields[:, 3] = scale
    fields[:, 4:] = values
    return _fixed_width(array, fields.astype(">i2"))


def _numeric_bytes(value: Decimal) -> bytes:
    """Return the binary form of a numeric."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        special = _SPECIAL_SIGNS[str(value)]
        return b"\0\0\0\0" + special.to_bytes(2) + b"\0\0"
    scale = max(-exponent, 0)
    text = "".join(map(str, digits)) + "0" * max(exponent, 0) + "0" * (-scale % 4)
    text = "0" * (-len(text) % 4) + text
    groups = [int(text[start : start + 4]) for start in range(0, len(text), 4)]
    weight = len(groups) - 1 - -(-scale // 4)
    parts = [len(groups), weight, _NEGATIVE_SIGN if sign else 0, scale, *groups]
    return b"".join(part.to_bytes(2, signed=part < 0) for part in parts)


def _numbers(array: pa.Array, kind: type[np.generic]) -> npt.NDArray[Any]:
    """Return the values of a primitive array; values of nulls are undefined."""
    width = np.dtype(kind).itemsize
    octets = array.buffers()[1]
    if octets is None:
        return np.zeros(len(array), kind)
    return np.frombuffer(octets, kind, len(array), array.offset * width)


def _fixed_width(array: pa.Array, values: npt.NDArray[np.generic]) -> Pieces:
    count = len(array)
    octets = values.view(np.uint8).reshape(count, -1)
    width = octets.shape[1]
    fields = np.empty((count, 4 + width), np.uint8)
    fields[:, :4] = np.frombuffer(width.to_bytes(4), np.uint8)
    fields[:, 4:] = octets
    whole = _equal_slices(fields, 4 + width)
    return [pc.if_else(array.is_valid(), whole, NULL) if array.null_count else whole]


def _equal_slices(octets: npt.NDArray[np.generic], width: int) -> pa.BinaryArray:
    count = len(octets)
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(octets))]
    )
