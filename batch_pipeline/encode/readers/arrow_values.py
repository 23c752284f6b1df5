"""Convert the values of Arrow arrays, of any type, into the types of their columns.

A value is converted exactly or not at all: nothing is truncated, rounded or replaced. If a value
does not fit, only its record is set aside, with the reason.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from batch_pipeline.encode.arrow_types import (
    JSON_TYPES,
    ArrowTypeUnknownError,
    arrow_type_of,
    check_range,
    column_of,
    exact_cast,
    is_uuid,
    plain_type,
)
from batch_pipeline.encode.chunks import Table, set_rows_aside
from batch_pipeline.encode.errors import too_many_columns
from batch_pipeline.encode.json_values import NonfiniteError, json_text
from batch_pipeline.model.record_rules import OnNonfinite, ReadLimits
from batch_pipeline.model.schema import Column, ColumnType, name_fault

_REASONS = {
    ColumnType.STRING: "is not UTF-8",
    ColumnType.DECIMAL: "has more digits than its type",
    ColumnType.DATE: "is not a whole day of the years 1 to 9999",
    ColumnType.TIME: "is not a time of day in whole microseconds",
    ColumnType.TIMESTAMP: "is not in whole microseconds or not in the years 1 to 9999",
    ColumnType.LOCAL_TIMESTAMP: "is not in whole microseconds or not in the years 1 to 9999",
}
_UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


class ConversionError(ValueError):
    """A value that its column cannot hold; `shown` is the value as text, as far as possible."""

    def __init__(self, reason: str, shown: str) -> None:
        super().__init__(reason)
        self.shown = shown


@dataclass(frozen=True, slots=True)
class ConvertedArray:
    """Values of a column's type, null at the positions that `errors` explains."""

    array: pa.Array
    errors: dict[int, ConversionError] = field(default_factory=dict)


def convert_array(array: pa.Array, column: Column) -> ConvertedArray:
    """Convert an array that is not nested into the type of the column."""
    array = unwrap_array(array)
    convert = _converter(array.type, column)
    try:
        return ConvertedArray(convert(array))
    except pa.ArrowInvalid:
        wrong = _find_unconvertible(array, convert)
    reason = _REASONS.get(column.type, "does not fit its type")
    errors = {index: ConversionError(reason, _shown(array[index : index + 1])) for index in wrong}
    kept = pa.array([None if index in errors else index for index in range(len(array))], pa.int64())
    return ConvertedArray(convert(array.take(kept)), errors)


def unwrap_array(array: pa.Array) -> pa.Array:
    """Decode dictionaries, runs and extension types, except UUIDs."""
    while array.type != plain_type(array.type):
        if at.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif at.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        else:
            array = array.storage
    return array


def _converter(arrow_type: pa.DataType, column: Column) -> Callable[[pa.Array], pa.Array]:
    """Return a function that raises `ArrowInvalid` for values that do not fit."""
    if at.is_null(arrow_type):
        return lambda array: array
    if at.is_duration(arrow_type):
        return lambda array: pa.array(_durations(array), pa.string())
    if is_uuid(arrow_type):
        return lambda array: pa.array(
            [None if value is None else str(value) for value in array.to_pylist()], pa.string()
        )
    target = arrow_type_of(column)

    def convert(array: pa.Array) -> pa.Array:
        values = array if array.type == target else exact_cast(array, target)
        values.validate(full=True)
        check_range(values, column.type)
        return values

    return convert


def _find_unconvertible(array: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> list[int]:
    """Return the positions of values that cannot be converted, by bisection, as they are rare."""
    wrong: list[int] = []
    spans = [(0, len(array))]
    while spans:
        start, stop = spans.pop()
        try:
            convert(array[start:stop])
        except pa.ArrowInvalid:
            if stop - start == 1:
                wrong.append(start)
            else:
                middle = (start + stop) // 2
                spans += [(middle, stop), (start, middle)]
    return wrong


def _durations(array: pa.Array) -> list[str | None]:
    """Return durations as ISO 8601 text, in seconds with all their digits."""
    digits = _UNIT_DIGITS[array.type.unit]
    return [
        None if count is None else f"{'-' * (count < 0)}PT{Decimal(abs(count)).scaleb(-digits):f}S"
        for count in array.cast(pa.int64()).to_pylist()
    ]


def _shown(single: pa.Array) -> str:
    value: Any
    if at.is_temporal(single.type):
        value = single.cast(pa.int32() if single.type.bit_width == 32 else pa.int64())[0].as_py()
        return f"{value} {getattr(single.type, 'unit', 'days')} since the start of its count"
    if at.is_string(single.type) or at.is_large_string(single.type):
        return bytes(single.cast(pa.large_binary())[0].as_py()).decode(errors="replace")
    return str(single[0])


def to_json_array(values: Iterable[Any], on_nonfinite: OnNonfinite) -> ConvertedArray:
    """Return each value as compact JSON text; None stays null, and an error is that of its row."""
    texts: list[bytes | None] = []
    errors: dict[int, ConversionError] = {}
    for index, value in enumerate(values):
        text = None
        try:
            text = None if value is None else json_text(value, on_nonfinite)
        except ConversionError as error:
            errors[index] = error
        except NonfiniteError as error:
            errors[index] = ConversionError(str(error), str(value))
        except UnicodeEncodeError:
            errors[index] = ConversionError("holds text that is not UTF-8", ascii(value))
        except RecursionError:
            errors[index] = ConversionError("is nested too deeply", "")
        texts.append(text)
    return ConvertedArray(pa.array(texts, pa.binary()).cast(pa.string()), errors)


def to_python_values(array: pa.Array) -> list[Any]:
    """Return the values as Python objects, with an error for each value that does not fit.

    A map becomes an object if its keys are text, else an array of `[key, value]`.
    """
    array = unwrap_array(array)
    if at.is_struct(array.type):
        return _objects(array)
    if at.is_map(array.type):
        return _maps(array)
    if at.is_nested(array.type):
        return _lists(array)
    return _leaves(array)


def check_nested_type(name: str, arrow_type: pa.DataType) -> None:
    """Raise for types whose values cannot all be converted.

    Raises:
        ArrowTypeUnknownError: a nested type has no column type, or an object has a duplicate name.
    """
    plain = plain_type(arrow_type)
    column_of(name, plain)
    if at.is_map(plain):
        children = [plain.key_field, plain.item_field]
    else:
        children = [plain.field(index) for index in range(plain.num_fields)]
    names = [child.name for child in children]
    if at.is_struct(plain) and len(set(names)) < len(names):
        raise ArrowTypeUnknownError(f"column {name!r} holds objects with a duplicate name: {plain}")
    for child in children:
        check_nested_type(f"{name}.{child.name}", child.type)


def _objects(array: pa.StructArray) -> list[Any]:
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    columns = [to_python_values(child) for child in array.flatten()]
    rows = zip(*columns, strict=True) if columns else ((),) * len(array)
    objects: list[Any] = [dict(zip(names, row, strict=True)) for row in rows]
    return _with_nulls(array, objects)


def _lists(array: pa.Array) -> list[Any]:
    """Return the values of any Arrow list type, including views, fixed-size and large lists."""
    values = to_python_values(array.flatten())
    lengths = pc.list_value_length(array).fill_null(0).to_pylist()
    return _with_nulls(array, _slices(values, accumulate(lengths, initial=0)))


def _maps(array: pa.MapArray) -> list[Any]:
    bounds = array.offsets.to_pylist()
    # `keys` and `items` are those of the whole column, also if `array` is a row of it.
    used = slice(bounds[0], bounds[-1])
    keys, items = to_python_values(array.keys[used]), to_python_values(array.items[used])
    pairs = _slices(list(zip(keys, items, strict=True)), (bound - bounds[0] for bound in bounds))
    if column_of("", array.type).type is ColumnType.ARRAY:
        return _with_nulls(array, pairs)
    return _with_nulls(array, [_object(pair) for pair in pairs])


def _slices(values: list[Any], bounds: Iterable[int]) -> list[list[Any]]:
    return [values[start:stop] for start, stop in pairwise(bounds)]


def _object(pairs: list[tuple[Any, Any]]) -> Any:
    for key, _ in pairs:
        if isinstance(key, ConversionError):
            return key
    values = dict(pairs)
    if len(values) < len(pairs):
        return ConversionError("holds a map with a duplicate key", str(pairs))
    return values


def _leaves(array: pa.Array) -> list[Any]:
    column = column_of("", array.type)
    if column.type is ColumnType.ANY:  # decimals that Arrow has no shorter type for
        return list(array.to_pylist())
    converted = convert_array(array, column)
    values: list[Any] = converted.array.to_pylist()
    for index, error in converted.errors.items():
        values[index] = error
    return values


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    valid = array.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


RowError = tuple[str, ConversionError]  # the column, and why its value does not fit
RowErrors = Mapping[int, RowError]  # by row


def check_column_names(names: Collection[str], limits: ReadLimits) -> None:
    """Raise if a column cannot have its name, or if there are no columns or too many.

    Raises:
        ArrowTypeUnknownError: the message says which and why.
    """
    if len(names) > limits.max_columns:
        raise ArrowTypeUnknownError(too_many_columns(len(names), limits.max_columns))
    if not names:
        raise ArrowTypeUnknownError("has no columns")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ArrowTypeUnknownError(f"column {name!r} is duplicated")
        if fault := name_fault(name):
            raise ArrowTypeUnknownError(f"column {name!r}: {fault}")
        seen.add(name)


def columns_from_schema(schema: pa.Schema, limits: ReadLimits) -> tuple[Column, ...]:
    """Return the columns that hold the values of a file.

    Raises:
        ArrowTypeUnknownError: a column is not supported; the message says which and why.
    """
    check_column_names(schema.names, limits)
    fields = list(zip(schema.names, schema.types, strict=True))
    for name, arrow_type in fields:
        check_nested_type(name, arrow_type)
    return tuple(column_of(name, arrow_type) for name, arrow_type in fields)


def convert_batch(
    batch: pa.RecordBatch,
    columns: Sequence[Column],
    on_nonfinite: OnNonfinite,
    first_number: int,
    known: RowErrors,
) -> Table:
    """Convert a batch to the types of the columns; `first_number` is that of its first row.

    Rows in `known` are set aside with the errors there.
    """
    pairs = zip(columns, batch.columns, strict=True)
    arrays = [_converted(array, column, on_nonfinite) for column, array in pairs]

    def raw(row: int, error: RowError) -> bytes:
        values = {
            column.name: to_python_values(array[row : row + 1])[0]
            for column, array in zip(columns, batch.columns, strict=True)
        }
        return record_text(values | {error[0]: error[1].shown})

    return build_table(columns, arrays, first_number, raw, known)


def build_table(
    columns: Sequence[Column],
    arrays: Sequence[ConvertedArray],
    first_number: int,
    raw: Callable[[int, RowError], bytes],
    known: RowErrors,
) -> Table:
    """Return a table of converted columns, without the rows in which a value did not fit.

    `raw` returns the text of a row for the quarantine; `known` are further errors.
    """
    errors = dict(known)
    for column, converted in zip(columns, arrays, strict=True):
        for row, error in converted.errors.items():
            errors.setdefault(row, (column.name, error))
    names = [column.name for column in columns]
    batch = pa.RecordBatch.from_arrays([converted.array for converted in arrays], names)
    numbers = range(first_number, first_number + batch.num_rows)
    table = Table(
        batch=batch,
        line_numbers=numbers,
        record_numbers=numbers,
        json=frozenset(column.name for column in columns if column.type in JSON_TYPES),
    )
    rows = {
        row: (f"column {name!r} {error}", raw(row, (name, error)))
        for row, (name, error) in errors.items()
    }
    return set_rows_aside(table, rows)


def _converted(array: pa.Array, column: Column, on_nonfinite: OnNonfinite) -> ConvertedArray:
    if column.type in JSON_TYPES:
        return to_json_array(to_python_values(array), on_nonfinite)
    return convert_array(array, column)


def record_text(record: Mapping[str, Any]) -> bytes:
    """Return the JSON text of a row that was set aside, as far as JSON can represent it."""
    shown: dict[str, Any] = {}
    for name, value in record.items():
        shown[name] = value
        try:
            json_text(value, OnNonfinite.STRING)
        except ConversionError as error:
            shown[name] = error.shown
        except UnicodeEncodeError:
            shown[name] = ascii(value)
    return json_text(shown, OnNonfinite.STRING)


_VARIABLE_LENGTH = (at.is_string, at.is_large_string, at.is_binary, at.is_large_binary)


def decoded_bytes(batch: pa.RecordBatch) -> int:
    """Return the size of a batch without dictionaries: a repeated value counts every time."""
    return sum(_bytes_of(column) for column in batch.columns)


def _bytes_of(array: pa.Array) -> int:
    size = int(array.nbytes)
    kind = array.type
    if at.is_dictionary(kind):
        values = array.dictionary
        if any(matches(values.type) for matches in _VARIABLE_LENGTH):
            lengths = pc.take(pc.binary_length(values), array.indices)
            size += pc.sum(lengths, min_count=0).as_py()
    elif at.is_struct(kind):
        size += sum(_bytes_of(part) for part in array.flatten())
    elif at.is_list(kind) or at.is_large_list(kind) or at.is_fixed_size_list(kind):
        size += _bytes_of(array.flatten())
    elif at.is_map(kind):
        size += _bytes_of(array.keys) + _bytes_of(array.items)
    return size
