"""Reads a declared JSON Schema of records, as Singer catalogs write it, into columns.

Only types and formats: rules about values, such as `minLength`, are left to Singer targets.
"""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.schema import (
    MAX_PRECISION,
    Column,
    ColumnType,
    RecordSchema,
    name_fault,
)

_FORMATS = {
    "date-time": ColumnType.TIMESTAMP,
    "date-time-local": ColumnType.LOCAL_TIMESTAMP,
    "date": ColumnType.DATE,
    "time": ColumnType.TIME,
}
_TYPES = {
    "boolean": ColumnType.BOOLEAN,
    "integer": ColumnType.INTEGER,
    "number": ColumnType.NUMBER,
    "string": ColumnType.STRING,
    "object": ColumnType.OBJECT,
    "array": ColumnType.ARRAY,
}
_CHOICES = ("anyOf", "oneOf")
_ELSEWHERE = ("$ref", "allOf", "not", "if")  # would have to be worked out, and may say anything


def schema_of(declared: Any) -> RecordSchema:
    """Give the columns that a JSON Schema of a record declares, in its order.

    All columns may be null, whatever is `required`. A property with several types, or with none, is
    of any type; objects and arrays are columns of JSON. A number with `multipleOf: 0.01` is a
    decimal(38,2). `singer.decimal` is text and stays text, as do formats that are not of times.

    Raises:
        InvalidValueError: it is no schema of a record, or a property is no column.
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
    """Return whether a property is declared as objects or as arrays; None for all else."""
    try:
        kinds = _kinds("property", _chosen("property", declared))
    except (AttributeError, InvalidValueError):
        return None
    if kinds == {"object"}:
        return ColumnType.OBJECT
    return ColumnType.ARRAY if kinds == {"array"} else None


def properties_of(declared: Any) -> dict[str, Any]:
    """Return the properties that are declared of a property of objects, if it is one."""
    if nested_kind(declared) is not ColumnType.OBJECT:
        return {}
    found = _chosen("property", declared).get("properties")
    return dict(found) if isinstance(found, Mapping) else {}


def _column(name: str, declared: Any) -> Column:
    where = f"property {name}"
    if fault := name_fault(name):
        raise InvalidValueError("schema.file: properties", name, f"another name: {fault}")
    if not isinstance(declared, Mapping):
        raise InvalidValueError(where, declared, "a JSON Schema")
    shape = _chosen(where, declared)
    for key in _ELSEWHERE:
        if key in shape:
            raise InvalidValueError(where, f"{key}: {shape[key]}", "its type, without references")
    kinds = _kinds(where, shape)
    if len(kinds) != 1:
        is_numeric = kinds == {"integer", "number"}
        kind = ColumnType.NUMBER if is_numeric else ColumnType.ANY
        return Column(name=name, type=kind)
    kind = _TYPES[kinds.pop()]
    if kind is ColumnType.NUMBER and "multipleOf" in shape:
        return _decimal(where, name, shape["multipleOf"])
    if kind is not ColumnType.STRING:
        return Column(name=name, type=kind)
    if shape.get("contentEncoding") == "base64":
        return Column(name=name, type=ColumnType.BINARY)
    return Column(name=name, type=_FORMATS.get(str(shape.get("format")), ColumnType.STRING))


def _chosen(where: str, shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the one alternative that is not null; a mixture of several has no type of its own."""
    for key in _CHOICES:
        choices = shape.get(key)
        if choices is None:
            continue
        if not isinstance(choices, list) or not all(isinstance(one, Mapping) for one in choices):
            raise InvalidValueError(f"{where}: {key}", choices, "a list of JSON Schemas")
        others = [choice for choice in choices if choice.get("type") not in ("null", ["null"])]
        rest = {name: value for name, value in shape.items() if name not in (key, "type")}
        if len(others) == 1:
            return _chosen(where, {**rest, **others[0]})
        # Catalogs write a time as [format date-time, any text]: the times may not be ones then.
        kinds = [_chosen(where, other) for other in others]
        types = sorted({kind for one in kinds for kind in _kinds(where, one)})
        return {**rest, "type": types}
    return shape


def _kinds(where: str, shape: Mapping[str, Any]) -> set[str]:
    given = shape.get("type", [])
    kinds = [given] if isinstance(given, str) else given
    known = ("null", *_TYPES)
    if not isinstance(kinds, list) or not all(kind in known for kind in kinds):
        expected = f"one or more of {', '.join(_TYPES)}, null"
        raise InvalidValueError(f"{where}: type", given, expected)
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
