"""The shape of a stream's records: ordered, nullable columns whose types are only ever widened."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from batch_pipeline.domain.errors import InvalidValueError

MAX_PRECISION = 38  # digits of a decimal that every reader of parquet knows
_INTEGER_DIGITS = 19  # of the longest integer of 64 bits
_DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")


class ColumnType(StrEnum):
    """Types of a column.

    `unknown` has held only nulls so far, `any` holds a mixture. An `integer` fits 64 bits, a
    `number` is a double, a `timestamp` is an instant, a `local_timestamp` a time without a zone;
    both have microseconds. In JSON, binary is base64 text, times are ISO 8601 text.
    """

    UNKNOWN = "unknown"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    DECIMAL = "decimal"
    NUMBER = "number"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    LOCAL_TIMESTAMP = "local_timestamp"
    OBJECT = "object"
    ARRAY = "array"
    ANY = "any"


_WRITTEN_AS_TEXT = {
    ColumnType.STRING,
    ColumnType.BINARY,
    ColumnType.DATE,
    ColumnType.TIME,
    ColumnType.TIMESTAMP,
    ColumnType.LOCAL_TIMESTAMP,
}
_NUMERIC = {ColumnType.INTEGER, ColumnType.DECIMAL, ColumnType.NUMBER}
_NESTED = {ColumnType.OBJECT, ColumnType.ARRAY}
_JSON_SCHEMAS: dict[ColumnType, dict[str, Any]] = {
    ColumnType.UNKNOWN: {"type": ["null", "string"]},
    ColumnType.BOOLEAN: {"type": ["null", "boolean"]},
    ColumnType.INTEGER: {"type": ["null", "integer"]},
    ColumnType.NUMBER: {"type": ["null", "number"]},
    ColumnType.STRING: {"type": ["null", "string"]},
    ColumnType.BINARY: {"type": ["null", "string"], "contentEncoding": "base64"},
    ColumnType.DATE: {"type": ["null", "string"], "format": "date"},
    ColumnType.TIME: {"type": ["null", "string"], "format": "time"},
    ColumnType.TIMESTAMP: {"type": ["null", "string"], "format": "date-time"},
    ColumnType.LOCAL_TIMESTAMP: {"type": ["null", "string"], "format": "date-time"},
    ColumnType.OBJECT: {"type": ["null", "object"]},
    ColumnType.ARRAY: {"type": ["null", "array"]},
    ColumnType.ANY: {},
}


def name_fault(name: str) -> str | None:
    """Return why no column can have a name, None if one can.

    The inventory keeps names in JSONB, and targets make them names of columns.
    """
    if "\0" in name:
        return "a name with a NUL cannot be stored in PostgreSQL"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "a name with half of a surrogate pair cannot be stored in PostgreSQL"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A named column; its values may always be null. Decimals have a precision and a scale.

    Raises:
        InvalidValueError: precision and scale are no decimal's, or are given for another type.
    """

    name: str
    type: ColumnType
    precision: int = 0
    scale: int = 0

    def __post_init__(self) -> None:
        if self.type is ColumnType.DECIMAL:
            is_right = 0 <= self.scale <= self.precision and 1 <= self.precision <= MAX_PRECISION
        else:
            is_right = self.precision == self.scale == 0
        if not is_right:
            digits = f"({self.precision},{self.scale})"
            expected = f"decimal(precision up to {MAX_PRECISION}, scale up to precision)"
            raise InvalidValueError(f"type of {self.name}", f"{self.type}{digits}", expected)

    @property
    def type_text(self) -> str:
        """The type as people and the inventory write it, `decimal(12,2)` for a decimal."""
        if self.type is ColumnType.DECIMAL:
            return f"decimal({self.precision},{self.scale})"
        return self.type.value

    def json_schema(self) -> dict[str, Any]:
        """Give the JSON Schema of the column, as Singer's SCHEMA message writes it."""
        if self.type is not ColumnType.DECIMAL:
            return dict(_JSON_SCHEMAS[self.type])
        if self.scale == 0:
            return {"type": ["null", "integer"]}
        return {"type": ["null", "number"], "multipleOf": float(f"1e-{self.scale}")}

    @classmethod
    def from_text(cls, name: str, text: str) -> "Column":
        """Read a column from its name and `type_text`."""
        match = _DECIMAL.fullmatch(text)
        if match is None:
            return cls(name=name, type=ColumnType(text))
        precision, scale = int(match[1]), int(match[2])
        return cls(name=name, type=ColumnType.DECIMAL, precision=precision, scale=scale)


def widen(left: Column, right: Column, *, text_source: bool) -> Column:
    """Give the narrowest column, of the left one's name, that holds the values of both.

    Neither order nor grouping matters. Cells of a text source (csv) that fit no common type stay
    what they are, text; values of a typed source (jsonl) would be changed by that, so their column
    becomes `any`, as does one that holds objects or arrays beside something else.
    """
    name, types = left.name, {left.type, right.type}
    if ColumnType.ANY in types:
        return Column(name=name, type=ColumnType.ANY)
    if types <= {ColumnType.DECIMAL, ColumnType.INTEGER} and ColumnType.DECIMAL in types:
        return _common_decimal(left, right, text_source=text_source)
    if len(types) == 1 or right.type is ColumnType.UNKNOWN:
        return left
    if left.type is ColumnType.UNKNOWN:
        return replace(right, name=name)
    if types == {ColumnType.INTEGER, ColumnType.NUMBER}:
        return Column(name=name, type=ColumnType.NUMBER)
    is_text = types <= _WRITTEN_AS_TEXT or (text_source and not types & _NESTED)
    return _mixed(name, is_text=is_text)


def joined(left: Column, right: Column, *, text_source: bool) -> Column:
    """Join what was seen of one column in the same look at its values.

    As `widen`, but a decimal decides over integers and numbers: the next look, with that decimal in
    the schema, counts the digits of each value and widens it to what all of them need.
    """
    types = {left.type, right.type}
    if ColumnType.DECIMAL in types and len(types) == 2 and types < _NUMERIC:
        return left if left.type is ColumnType.DECIMAL else replace(right, name=left.name)
    return widen(left, right, text_source=text_source)


def needed(
    known: Column | None, seen: Column, *, wide: bool = False, text_source: bool = False
) -> Column:
    """Give the column that a schema needs for what it knows and what one look has seen.

    `wide` tells that integers were seen which no double holds: where the column would become a
    number it becomes a decimal, to be counted by the next look; where it is one already, a mixture.
    """
    column = seen if known is None else widen(known, seen, text_source=text_source)
    if not wide or column.type is not ColumnType.NUMBER:
        return column
    if known is not None and known.type is ColumnType.NUMBER:
        return _mixed(column.name, is_text=text_source)
    return Column(name=column.name, type=ColumnType.DECIMAL, precision=_INTEGER_DIGITS)


def _common_decimal(left: Column, right: Column, *, text_source: bool) -> Column:
    whole = max(
        _INTEGER_DIGITS if column.type is ColumnType.INTEGER else column.precision - column.scale
        for column in (left, right)
    )
    scale = max(left.scale, right.scale)
    if whole + scale > MAX_PRECISION:
        return _mixed(left.name, is_text=text_source)
    precision = whole + scale
    return Column(name=left.name, type=ColumnType.DECIMAL, precision=precision, scale=scale)


def _mixed(name: str, *, is_text: bool) -> Column:
    return Column(name=name, type=ColumnType.STRING if is_text else ColumnType.ANY)


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """Columns in order of first appearance; names are unique.

    Raises:
        InvalidValueError: a name is there twice.
    """

    columns: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise InvalidValueError("column", name, "a name that is there once")
            seen.add(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)

    def by_name(self) -> dict[str, Column]:
        """Give the columns by name, in their order."""
        return {column.name: column for column in self.columns}

    def widened(self, seen: Iterable[Column], *, text_source: bool) -> "RecordSchema":
        """Give the schema that also holds `seen`: known columns widen, new ones come last."""
        columns = self.by_name()
        for column in seen:
            known = columns.get(column.name)
            columns[column.name] = (
                column if known is None else widen(known, column, text_source=text_source)
            )
        return RecordSchema(tuple(columns.values()))

    def json_schema(self) -> dict[str, Any]:
        """Give the JSON Schema of a record, as Singer's SCHEMA message writes it."""
        properties = {column.name: column.json_schema() for column in self.columns}
        return {"type": "object", "properties": properties}

    def to_json(self) -> list[list[str]]:
        """Write the columns as `[name, type]` pairs, the form kept in the inventory."""
        return [[column.name, column.type_text] for column in self.columns]

    @classmethod
    def from_json(cls, pairs: Iterable[tuple[str, str] | list[str]]) -> "RecordSchema":
        """Read what `to_json` wrote."""
        return cls(tuple(Column.from_text(name, text) for name, text in pairs))
