"""Schema of a stream's records: ordered, nullable columns whose types are only ever widened.

`RecordSchema` holds `Column`s; `widen` computes the type that holds two others. `changes_between`
describes schema versions, and `schema_of` reads a declared JSON Schema. Widening is commutative and
associative, so the result does not depend on the order of files or tasks.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

from batch_pipeline.model.errors import ConfigurationError, InvalidValueError, require
from batch_pipeline.model.filter import is_storable

MAX_PRECISION = 38  # digits that every parquet reader supports
_INTEGER_DIGITS = 19  # of the largest 64-bit integer
_DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")


class ColumnType(StrEnum):
    """Types of columns.

    `unknown` has had only nulls so far, `any` holds mixed types. An `integer` fits 64 bits, a
    `number` is a double, a `timestamp` is an instant, a `local_timestamp` has no zone;
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
_TEXT_KEYWORDS = {  # JSON Schema keywords besides the type
    ColumnType.BINARY: {"contentEncoding": "base64"},
    ColumnType.DATE: {"format": "date"},
    ColumnType.TIME: {"format": "time"},
    ColumnType.TIMESTAMP: {"format": "date-time"},
    ColumnType.LOCAL_TIMESTAMP: {"format": "date-time"},
}


def name_fault(name: str) -> str | None:
    """Return why a name cannot be a column name, None if it can.

    The inventory stores names as JSONB, and targets use them as column names.
    """
    if "\0" in name:
        return "a name with a NUL cannot be stored in PostgreSQL"
    if not is_storable(name):
        return "a name with an unpaired surrogate cannot be stored in PostgreSQL"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Named, nullable column. Decimals have a precision and a scale.

    Raises:
        InvalidValueError: precision or scale is out of range, or set for another type.
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
        """Return the type as text, for people and the inventory, such as `decimal(12,2)`."""
        if self.type is ColumnType.DECIMAL:
            return f"decimal({self.precision},{self.scale})"
        return self.type.value

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the column, as Singer's SCHEMA message writes it."""
        if self.type is ColumnType.ANY:
            return {}
        if self.type is ColumnType.DECIMAL and self.scale:
            return {"type": ["null", "number"], "multipleOf": float(f"1e-{self.scale}")}
        kind = "integer" if self.type is ColumnType.DECIMAL else self.type.value
        if self.type in _WRITTEN_AS_TEXT or self.type is ColumnType.UNKNOWN:
            kind = "string"
        return {"type": ["null", kind], **_TEXT_KEYWORDS.get(self.type, {})}

    @classmethod
    def from_text(cls, name: str, text: str) -> "Column":
        """Build a column from its name and `type_text`."""
        match = _DECIMAL.fullmatch(text)
        if match is None:
            return cls(name=name, type=ColumnType(text))
        precision, scale = int(match[1]), int(match[2])
        return cls(name=name, type=ColumnType.DECIMAL, precision=precision, scale=scale)


def widen(left: Column, right: Column, *, text_source: bool) -> Column:
    """Return the narrowest column, with the name of the left one, that holds the values of both.

    The operation is commutative and associative. Cells of a text source (csv) without a common type
    remain text. Text would change the values of a typed source (jsonl), so their column becomes
    `any`; so does a column that mixes objects or arrays with other values.
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
    """Combine two observations of a column from the same pass over its values.

    Works like `widen`, but a decimal takes precedence over integers and numbers: the next pass,
    with that decimal in the schema, counts the digits of each value and widens the decimal as
    needed.
    """
    types = {left.type, right.type}
    if ColumnType.DECIMAL in types and len(types) == 2 and types < _NUMERIC:
        return left if left.type is ColumnType.DECIMAL else replace(right, name=left.name)
    return widen(left, right, text_source=text_source)


def needed(
    known: Column | None, seen: Column, *, wide: bool = False, text_source: bool = False
) -> Column:
    """Return the column that a schema needs for its known type and the observed type.

    `wide` states that integers were observed that a double cannot hold. A column that would become
    a number then becomes a decimal, whose digits the next pass counts; a column that already is a
    number becomes mixed.
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
    """Columns of a stream in order of first appearance, with unique names.

    Raises:
        InvalidValueError: a name occurs twice.
    """

    columns: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise InvalidValueError("column", name, "a unique name")
            seen.add(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the column names in order."""
        return tuple(column.name for column in self.columns)

    def by_name(self) -> dict[str, Column]:
        """Return the columns by name, in order."""
        return {column.name: column for column in self.columns}

    def widened(self, seen: Iterable[Column], *, text_source: bool) -> "RecordSchema":
        """Return the schema that also holds `seen`: widen known columns, append new ones."""
        columns = self.by_name()
        for column in seen:
            known = columns.get(column.name)
            columns[column.name] = needed(known, column, text_source=text_source)
        return RecordSchema(tuple(columns.values()))

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a record, as Singer's SCHEMA message writes it."""
        properties = {column.name: column.json_schema() for column in self.columns}
        return {"type": "object", "properties": properties}

    def to_json(self) -> list[list[str]]:
        """Return the columns as `[name, type]` pairs, the form stored in the inventory."""
        return [[column.name, column.type_text] for column in self.columns]

    @classmethod
    def from_json(cls, pairs: Iterable[tuple[str, str] | list[str]]) -> "RecordSchema":
        """Read the form that `to_json` returns."""
        return cls(tuple(Column.from_text(name, text) for name, text in pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Required column, and the first record that does not fit the schema's column.

    `line` is the line at which that record starts, or its number in a file without lines; None if
    the column is known from the file's own schema. `seen` is the type of the value.
    """

    column: Column
    item_id: int
    location: str
    line: int | None
    seen: str = ""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """Change of a column by a schema version; types are text, `before` is None for a new column."""

    name: str
    before: str | None
    after: str
    item_id: int | None = None
    location: str | None = None
    line: int | None = None

    @property
    def sentence(self) -> str:
        """Return the change in words."""
        if self.before is None:
            text = f"added `{self.name}` ({self.after})"
        else:
            text = f"`{self.name}` from {self.before} to {self.after}"
        if self.location is None:
            return text
        line = "" if self.line is None else f", line {self.line}"
        return f"{text}, first in {self.location}{line}"

    def to_json(self) -> dict[str, Any]:
        """Return the change in the form stored in the inventory."""
        change = asdict(self)
        return {"column": change.pop("name"), **change}


def changes_between(
    before: RecordSchema, after: RecordSchema, because: Sequence[Misfit] = ()
) -> tuple[SchemaChange, ...]:
    """Return the changes from a version to a wider one, with the records that caused them."""
    known = before.by_name()
    places = {
        misfit.column.name: (misfit.item_id, misfit.location, misfit.line) for misfit in because
    }
    changes = []
    for column in after.columns:
        old = known.get(column.name)
        if old != column:
            was = None if old is None else old.type_text
            place = places.get(column.name, ())
            changes.append(SchemaChange(column.name, was, column.type_text, *place))
    return tuple(changes)


def with_declared(
    stream: str, known: RecordSchema, earlier: RecordSchema | None, declared: RecordSchema
) -> RecordSchema:
    """Return the known schema, extended by the declared columns.

    Columns that are no longer declared remain. A type that records have widened beyond its
    declaration remains. `earlier` is the declaration that the last version was made from.

    Raises:
        ConfigurationError: a column is declared narrower than before, or neither the declared nor
            the known type can hold the values of both.
    """
    columns, declared_before = known.by_name(), (earlier or RecordSchema()).by_name()
    for column in declared.columns:
        was, present = declared_before.get(column.name), columns.get(column.name)
        if was is not None and widen(was, column, text_source=False) != column:
            raise _schema_declaration(
                stream, column.name, column.type_text, f"was declared {was.type_text} before"
            )
        if present is None:
            continue
        both = widen(present, column, text_source=False)
        if both not in (present, column):
            known_as = f"is {present.type_text} in the published files"
            raise _schema_declaration(stream, column.name, column.type_text, known_as)
    return known.widened(declared.columns, text_source=False)


def _schema_declaration(stream: str, column: str, declared: str, known: str) -> ConfigurationError:
    return ConfigurationError(
        f"{stream}: column {column} is declared {declared}, but {known}, "
        f"and types are only ever widened. Nothing was changed. Declare a type that holds "
        f"both, or start a new stream."
    )


_FORMATS = {
    "date-time": ColumnType.TIMESTAMP,
    "date-time-local": ColumnType.LOCAL_TIMESTAMP,
    "date": ColumnType.DATE,
    "time": ColumnType.TIME,
}
_TYPES = ("boolean", "integer", "number", "string", "object", "array")
_CHOICES = ("anyOf", "oneOf")
_ELSEWHERE = ("$ref", "allOf", "not", "if")  # not evaluated; the resulting type would be unknown


def schema_of(declared: Any) -> RecordSchema:
    """Return the columns that a JSON Schema of a record declares, in its order.

    All columns are nullable; `required` is ignored. A property with several types, or with none, is
    of type `any`; objects and arrays become JSON columns. A number with `multipleOf: 0.01` is a
    decimal(38,2). `singer.decimal` and formats other than times are text.

    Raises:
        InvalidValueError: it is not the schema of a record, or a property cannot be a column.
    """
    properties = declared.get("properties") if isinstance(declared, Mapping) else None
    if not isinstance(properties, Mapping):
        raise InvalidValueError("schema.file", declared, "a JSON Schema with `properties`")
    kinds = declared.get("type", "object")
    listed = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(listed, list) or "object" not in listed:
        raise InvalidValueError("schema.file: type", kinds, "object")
    try:
        return RecordSchema(tuple(_column(name, shape) for name, shape in properties.items()))
    except RecursionError as error:
        expected = "alternatives that are nested less deeply"
        raise InvalidValueError("schema.file", "a JSON Schema", expected) from error


def nested_kind(declared: Any) -> ColumnType | None:
    """Return `object` or `array` if a property is declared as such, else None."""
    try:
        kinds = _kinds("property", _chosen("property", declared))
    except (AttributeError, InvalidValueError):
        return None
    if kinds == {"object"}:
        return ColumnType.OBJECT
    return ColumnType.ARRAY if kinds == {"array"} else None


def properties_of(declared: Any) -> dict[str, Any]:
    """Return the declared properties of an object property, empty for other properties."""
    if nested_kind(declared) is not ColumnType.OBJECT:
        return {}
    nested = _chosen("property", declared).get("properties")
    return dict(nested) if isinstance(nested, Mapping) else {}


def _column(name: str, declared: Any) -> Column:
    where = f"schema.file: property {name}"
    fault = name_fault(name)
    require(fault is None, "schema.file: properties", name, f"another name: {fault}")
    require(isinstance(declared, Mapping), where, declared, "a JSON Schema")
    shape = _chosen(where, declared)
    for key in _ELSEWHERE:
        if key in shape:
            raise InvalidValueError(where, f"{key}: {shape[key]}", "its type, without references")
    kinds = _kinds(where, shape)
    if len(kinds) != 1:
        is_numeric = kinds == {"integer", "number"}
        kind = ColumnType.NUMBER if is_numeric else ColumnType.ANY
        return Column(name=name, type=kind)
    kind = ColumnType(kinds.pop())
    if kind is ColumnType.NUMBER and "multipleOf" in shape:
        return _decimal(where, name, shape["multipleOf"])
    if kind is not ColumnType.STRING:
        return Column(name=name, type=kind)
    if shape.get("contentEncoding") == "base64":
        return Column(name=name, type=ColumnType.BINARY)
    return Column(name=name, type=_FORMATS.get(str(shape.get("format")), ColumnType.STRING))


def _chosen(where: str, shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the only non-null alternative, or a shape with the types of all alternatives."""
    for key in _CHOICES:
        choices = shape.get(key)
        if choices is None:
            continue
        fits = isinstance(choices, list) and all(isinstance(one, Mapping) for one in choices)
        require(fits, f"{where}: {key}", choices, "a list of JSON Schemas")
        others = [choice for choice in choices if choice.get("type") not in ("null", ["null"])]
        rest = {name: value for name, value in shape.items() if name not in (key, "type")}
        if len(others) == 1:
            return _chosen(where, {**rest, **others[0]})
        # Catalogs declare times as [format date-time, any text]; such values need not be times.
        kinds = [_chosen(where, other) for other in others]
        types = sorted({kind for alternative in kinds for kind in _kinds(where, alternative)})
        return {**rest, "type": types}
    return shape


def _kinds(where: str, shape: Mapping[str, Any]) -> set[str]:
    declared = shape.get("type", [])
    kinds = [declared] if isinstance(declared, str) else declared
    known = ("null", *_TYPES)
    if not isinstance(kinds, list) or not all(kind in known for kind in kinds):
        expected = f"one or more of {', '.join(_TYPES)}, null"
        raise InvalidValueError(f"{where}: type", declared, expected)
    return set(kinds) - {"null"}


def _decimal(where: str, name: str, step: Any) -> Column:
    expected = "1, 0.1, 0.01 or another power of ten, not beyond 38 digits"
    try:
        sign, digits, exponent = Decimal(str(step)).normalize().as_tuple()
    except InvalidOperation as error:
        raise InvalidValueError(f"{where}: multipleOf", step, expected) from error
    is_power = not sign and digits == (1,) and isinstance(exponent, int)
    if isinstance(step, bool) or not is_power or not -MAX_PRECISION <= int(exponent) <= 0:
        raise InvalidValueError(f"{where}: multipleOf", step, expected)
    scale = -int(exponent)
    return Column(name=name, type=ColumnType.DECIMAL, precision=MAX_PRECISION, scale=scale)
