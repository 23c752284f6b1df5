"""Declared JSON Schemas: which columns they say, and what cannot be said."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema, schema_of


def column_of(shape: Any) -> str:
    """Return the type of the column that a property declares."""
    [column] = schema_of({"properties": {"a": shape}}).columns
    return column.type_text


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({"type": "integer"}, "integer"),
        ({"type": ["null", "boolean"]}, "boolean"),
        ({"type": ["number", "null"]}, "number"),
        ({"type": ["integer", "number"]}, "number"),
        ({"type": "number", "multipleOf": 0.01}, "decimal(38,2)"),
        ({"type": "number", "multipleOf": 1e-05}, "decimal(38,5)"),
        ({"type": "number", "multipleOf": 1}, "decimal(38,0)"),
        ({"type": "integer", "multipleOf": 5}, "integer"),
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "date-time-local"}, "local_timestamp"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "time"}, "time"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"type": "string", "format": "singer.decimal"}, "string"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"type": "object", "properties": {"x": {"$ref": "#/y"}}}, "object"),
        ({"type": ["null", "array"], "items": {"type": "string"}}, "array"),
        ({"type": ["string", "integer"]}, "any"),
        ({}, "any"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "integer"),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": ["null"]}]}, "date"),
        ({"oneOf": [{"type": "string", "format": "date-time"}, {"type": "string"}]}, "string"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "any"),
    ],
)
def test_schema_of_a_property_gives_its_column(shape: Any, expected: str) -> None:
    """Singer's ways to say a type, each nullable or not."""
    assert column_of(shape) == expected


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("integer", "property a is 'integer'; expected a JSON Schema."),
        ({"type": "int"}, "property a: type is 'int'; expected one or more of boolean, integer"),
        ({"type": 5}, "property a: type is 5; expected one or more of"),
        ({"type": [{}]}, r"property a: type is \[\{\}\]; expected one or more of"),
        ({"$ref": "#/x"}, "property a is '\\$ref: #/x'; expected its type, without references."),
        ({"type": "number", "multipleOf": 0.05}, "property a: multipleOf is 0.05; expected 1, 0.1"),
        ({"type": "number", "multipleOf": "x"}, "property a: multipleOf is 'x'"),
        ({"type": "number", "multipleOf": 1e-39}, "property a: multipleOf is 1e-39"),
        ({"type": "number", "multipleOf": 10}, "property a: multipleOf is 10"),
        ({"anyOf": "integer"}, "property a: anyOf is 'integer'; expected a list of JSON Schemas"),
    ],
)
def test_schema_of_a_property_that_is_no_column_names_it(shape: Any, message: str) -> None:
    """The operator reads which property, and what would be understood."""
    with pytest.raises(InvalidValueError, match=message):
        column_of(shape)


@pytest.mark.parametrize("name", ["a\0", "\ud800"])
def test_schema_of_a_property_whose_name_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match="expected another name: a name with"):
        schema_of({"properties": {name: {"type": "string"}}})


@pytest.mark.parametrize("declared", [None, [], {"type": "object"}, {"properties": []}])
def test_schema_of_what_has_no_properties_is_refused(declared: Any) -> None:
    """A record has columns, and they are in `properties`."""
    with pytest.raises(InvalidValueError, match="a JSON Schema with `properties`"):
        schema_of(declared)


@pytest.mark.parametrize(("kind", "shown"), [("array", "'array'"), (None, "None"), (5, "5")])
def test_schema_of_something_else_than_objects_is_refused(kind: object, shown: str) -> None:
    """A record is an object."""
    with pytest.raises(InvalidValueError, match=f"type is {shown}; expected object"):
        schema_of({"type": kind, "properties": {}})


def test_schema_of_alternatives_without_end_is_refused() -> None:
    """No stack is deep enough for all that can be written."""
    shape: dict[str, Any] = {"type": "string"}
    for _ in range(5_000):
        shape = {"anyOf": [shape, {"type": "null"}]}
    with pytest.raises(InvalidValueError, match="alternatives that are nested less deeply"):
        schema_of({"properties": {"a": shape}})


def test_schema_of_text_with_a_format_that_is_none_is_text() -> None:
    """Formats that nobody knows change nothing, whatever they are."""
    assert column_of({"type": "string", "format": ["date"]}) == "string"


SAID = set(ColumnType) - {
    ColumnType.UNKNOWN,  # said as text
    ColumnType.LOCAL_TIMESTAMP,  # JSON Schema has one format for both times
    ColumnType.DECIMAL,  # the precision has no word
}
names = st.text(max_size=3).filter(lambda name: "\0" not in name)
columns = st.builds(Column, name=names, type=st.sampled_from(sorted(SAID)))


@given(st.lists(columns, max_size=5, unique_by=lambda column: column.name))
def test_schema_of_what_a_schema_says_of_itself_is_that_schema(found: list[Column]) -> None:
    """What is emitted for a target can be declared."""
    schema = RecordSchema(tuple(found))
    assert schema_of(schema.json_schema()) == schema


def test_schema_of_a_decimal_keeps_its_scale() -> None:
    """JSON Schema has no word for the precision: it is as wide as can be."""
    column = Column(name="a", type=ColumnType.DECIMAL, precision=12, scale=2)
    assert column_of(column.json_schema()) == "decimal(38,2)"
