"""Brings the values of any Arrow array into the type of their column; what does not fit is told.

Nothing is cut, rounded or replaced. Nested values are not looked into here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.spark.arrow_types import arrow_type_of, exact_cast, is_uuid, plain_type

_DAY_US = 86_400 * 10**6
_RANGES = {  # the years 1 to 9999, which ISO 8601 text has digits for
    ColumnType.DATE: (-719_162, 2_932_896),
    ColumnType.TIME: (0, _DAY_US - 1),
    ColumnType.TIMESTAMP: (-719_162 * _DAY_US, 2_932_897 * _DAY_US - 1),
    ColumnType.LOCAL_TIMESTAMP: (-719_162 * _DAY_US, 2_932_897 * _DAY_US - 1),
}
_REASONS = {
    ColumnType.STRING: "is not UTF-8",
    ColumnType.DECIMAL: "has more digits than its type",
    ColumnType.DATE: "is not a whole day of the years 1 to 9999",
    ColumnType.TIME: "is not a time of day in whole microseconds",
    ColumnType.TIMESTAMP: "is not in whole microseconds or not in the years 1 to 9999",
    ColumnType.LOCAL_TIMESTAMP: "is not in whole microseconds or not in the years 1 to 9999",
}
_UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


class MisfitError(ValueError):
    """A value that its column cannot hold; `shown` is the value as far as text can show it."""

    def __init__(self, reason: str, shown: str) -> None:
        super().__init__(reason)
        self.shown = shown


@dataclass(frozen=True, slots=True)
class Fitted:
    """Values of a column's type, null where `misfits`, by position, says what is wrong."""

    array: pa.Array
    misfits: dict[int, MisfitError] = field(default_factory=dict)


def fitted(array: pa.Array, column: Column) -> Fitted:
    """Bring the values of an array that is not nested into the type of the column."""
    array = flattened(array)
    convert = _converter(array.type, column)
    try:
        return Fitted(convert(array))
    except pa.ArrowInvalid:
        wrong = _wrong_ones(array, convert)
    reason = _REASONS.get(column.type, "does not fit its type")
    misfits = {index: MisfitError(reason, _shown(array[index : index + 1])) for index in wrong}
    kept = pa.array(
        [None if index in misfits else index for index in range(len(array))], pa.int64()
    )
    return Fitted(convert(array.take(kept)), misfits)


def flattened(array: pa.Array) -> pa.Array:
    """Take values out of dictionaries, runs and extension types, UUIDs excepted."""
    while array.type != plain_type(array.type):
        if at.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif at.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        else:
            array = array.storage
    return array


def _converter(arrow_type: pa.DataType, column: Column) -> Callable[[pa.Array], pa.Array]:
    """Make what raises ArrowInvalid for values that do not fit."""
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
        if column.type in _RANGES and values.null_count < len(values):
            _check_range(values, column.type)
        return values

    return convert


def _check_range(values: pa.Array, kind: ColumnType) -> None:
    numbers = values.view(pa.int32() if kind is ColumnType.DATE else pa.int64())
    lowest, highest = _RANGES[kind]
    found = pc.min_max(numbers).as_py()
    if found["min"] < lowest or found["max"] > highest:
        raise pa.ArrowInvalid("out of range")


def _wrong_ones(array: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> list[int]:
    """Find the values that cannot be converted, half by half: they are few."""
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
    """Write durations as ISO 8601 does, in seconds with all their digits."""
    digits = _UNITS[array.type.unit]
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
