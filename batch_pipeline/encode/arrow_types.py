"""Mapping between column types and Arrow types, in both directions.

Readers and writers convert the values.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from batch_pipeline.model.schema import MAX_PRECISION, Column, ColumnType

_ARROW_TYPES = {
    ColumnType.UNKNOWN: pa.string(),
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
_KINDS = (
    (at.is_null, ColumnType.UNKNOWN),
    (at.is_boolean, ColumnType.BOOLEAN),
    (at.is_integer, ColumnType.INTEGER),
    (at.is_floating, ColumnType.NUMBER),
    (at.is_string, ColumnType.STRING),
    (at.is_large_string, ColumnType.STRING),
    (at.is_string_view, ColumnType.STRING),
    (at.is_duration, ColumnType.STRING),
    (at.is_binary, ColumnType.BINARY),
    (at.is_large_binary, ColumnType.BINARY),
    (at.is_binary_view, ColumnType.BINARY),
    (at.is_fixed_size_binary, ColumnType.BINARY),
    (at.is_date, ColumnType.DATE),
    (at.is_time, ColumnType.TIME),
    (at.is_struct, ColumnType.OBJECT),
    (at.is_list, ColumnType.ARRAY),
    (at.is_large_list, ColumnType.ARRAY),
    (at.is_fixed_size_list, ColumnType.ARRAY),
    (at.is_list_view, ColumnType.ARRAY),
    (at.is_large_list_view, ColumnType.ARRAY),
)
_DAY_US = 86_400 * 10**6
_RANGES = {  # the years 1 to 9999, which ISO 8601 text can represent
    ColumnType.DATE: (-719_162, 2_932_896),
    ColumnType.TIME: (0, _DAY_US - 1),
    ColumnType.TIMESTAMP: (-719_162 * _DAY_US, 2_932_897 * _DAY_US - 1),
    ColumnType.LOCAL_TIMESTAMP: (-719_162 * _DAY_US, 2_932_897 * _DAY_US - 1),
}
OPENING_BRACKETS = {ColumnType.OBJECT: "{", ColumnType.ARRAY: "["}  # of all values of a type
JSON_TYPES = frozenset({ColumnType.OBJECT, ColumnType.ARRAY, ColumnType.ANY})


class ArrowTypeUnknownError(TypeError):
    """An Arrow type that no column type can hold; the text names the column and the reason."""


def arrow_type_of(column: Column) -> pa.DataType:
    """Return the Arrow type of a column; objects, arrays and mixtures are JSON text."""
    if column.type is ColumnType.DECIMAL:
        return pa.decimal128(column.precision, column.scale)
    return _ARROW_TYPES[column.type]


def exact_cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values, or text of numbers without exponents, of at most 38 digits.

    Arrow's own cast to a decimal overflows without an error if the digits before the point and the
    scale of the type add up to more than 38: 99999999999999999999999999999 became
    62657656.327783134786937801511322779648. A cast to 76 digits cannot overflow.

    Raises:
        ArrowInvalid: a value does not fit.
    """
    if at.is_decimal(kind) and (at.is_decimal(array.type) or at.is_string(array.type)):
        array = array.cast(pa.decimal256(2 * MAX_PRECISION, kind.scale))
    return array.cast(kind)


def check_range(values: pa.Array, kind: ColumnType) -> None:
    """Check that all values of a type can be written as ISO 8601 text, if it is one of times.

    Raises:
        ArrowInvalid: a value is outside of the years 1 to 9999, or is no time of day.
    """
    if kind in _RANGES and values.null_count < len(values):
        lowest, highest = _RANGES[kind]
        bounds = pc.min_max(values.view(pa.int32() if kind is ColumnType.DATE else pa.int64()))
        if bounds["min"].as_py() < lowest or bounds["max"].as_py() > highest:
            raise pa.ArrowInvalid("out of range")


def text_offsets(column: pa.StringArray) -> npt.NDArray[np.int32]:
    """Return the start of each text in the array's bytes, followed by the end of the last text."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1]


def arrow_schema_of(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the columns, in order, as an Arrow schema."""
    return pa.schema([(column.name, arrow_type_of(column)) for column in columns])


def empty_batch(rows: int) -> pa.RecordBatch:
    """Return a batch without columns, which still counts its rows."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def column_of(name: str, arrow_type: pa.DataType) -> Column:
    """Return the narrowest column that holds all values of an Arrow type.

    Unsigned 64-bit integers become decimals, decimals of more than 38 digits become `any` (JSON
    text), durations and UUIDs become text. A map becomes an object if its keys are text, else an
    array of pairs.

    Raises:
        ArrowTypeUnknownError: no column holds the type, as for unions and intervals of months.
    """
    plain = plain_type(arrow_type)
    if at.is_decimal(plain):
        return _decimal(name, plain.precision, plain.scale)
    if at.is_uint64(plain):
        return _decimal(name, 20, 0)
    kind = _kind(plain)
    if kind is None:
        reason = f"column {name!r} has the type {arrow_type}, which is not supported"
        raise ArrowTypeUnknownError(reason)
    return Column(name=name, type=kind)


def plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the value type of dictionary, run-end encoded and extension types, except UUIDs."""
    while True:
        if at.is_dictionary(arrow_type) or at.is_run_end_encoded(arrow_type):
            arrow_type = arrow_type.value_type
        elif isinstance(arrow_type, pa.BaseExtensionType) and not is_uuid(arrow_type):
            arrow_type = arrow_type.storage_type
        else:
            return arrow_type


def is_uuid(arrow_type: pa.DataType) -> bool:
    """Return whether values are UUIDs, 16 bytes that are written as text."""
    return isinstance(arrow_type, pa.UuidType)


def _kind(plain: pa.DataType) -> ColumnType | None:
    if is_uuid(plain):
        return ColumnType.STRING
    if at.is_timestamp(plain):
        return ColumnType.LOCAL_TIMESTAMP if plain.tz is None else ColumnType.TIMESTAMP
    if at.is_map(plain):
        has_text_keys = _kind(plain_type(plain.key_type)) is ColumnType.STRING
        return ColumnType.OBJECT if has_text_keys else ColumnType.ARRAY
    return next((kind for matches, kind in _KINDS if matches(plain)), None)


def _decimal(name: str, precision: int, scale: int) -> Column:
    whole, scale = max(precision - scale, 0), max(scale, 0)
    if whole + scale > MAX_PRECISION:
        return Column(name=name, type=ColumnType.ANY)
    return Column(name=name, type=ColumnType.DECIMAL, precision=whole + scale, scale=scale)
