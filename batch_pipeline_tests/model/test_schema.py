"""Record schemas: widening, changes between versions, and JSON Schema."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import ConfigurationError, InvalidValueError
from batch_pipeline.model.schema import (
    Column,
    ColumnType,
    Misfit,
    RecordSchema,
    changes_between,
    joined,
    needed,
    schema_of,
    widen,
    with_declared,
)
from batch_pipeline_tests.encode.writers.part_factories import schema

decimals = st.integers(1, 38).flatmap(
    lambda precision: st.builds(
        Column,
        name=st.sampled_from("abcdef"),
        type=st.just(ColumnType.DECIMAL),
        precision=st.just(precision),
        scale=st.integers(0, precision),
    )
)
plain = st.sampled_from(sorted(set(ColumnType) - {ColumnType.DECIMAL}))
columns = decimals | st.builds(Column, name=st.sampled_from("abcdef"), type=plain)
schemas = st.lists(columns, max_size=6, unique_by=lambda column: column.name).map(
    lambda drawn: RecordSchema(tuple(drawn))
)


def column(text: str) -> Column:
    return Column.from_text("a", text)


@given(columns, columns, columns, st.booleans())
def test_widen_does_not_depend_on_order(
    one: Column, two: Column, three: Column, text_source: bool
) -> None:
    """Files and tasks finish in any order."""
    one, two, three = (replace(column, name="a") for column in (one, two, three))
    for function in (widen, joined):
        wide = partial(function, text_source=text_source)
        assert wide(one, two) == wide(two, one)
        assert wide(wide(one, two), three) == wide(one, wide(two, three))
        assert wide(one, one) == one
        assert wide(wide(one, two), two) == wide(one, two)


@pytest.mark.parametrize(
    ("left", "right", "text", "typed"),
    [
        ("integer", "number", "number", "number"),
        ("unknown", "integer", "integer", "integer"),
        ("unknown", "decimal(5,2)", "decimal(5,2)", "decimal(5,2)"),
        ("integer", "string", "string", "any"),
        ("boolean", "integer", "string", "any"),
        ("object", "array", "any", "any"),
        ("object", "string", "any", "any"),
        ("any", "integer", "any", "any"),
        ("date", "timestamp", "string", "string"),
        ("timestamp", "local_timestamp", "string", "string"),
        ("binary", "string", "string", "string"),
        ("date", "integer", "string", "any"),
        ("decimal(5,2)", "decimal(7,1)", "decimal(8,2)", "decimal(8,2)"),
        ("decimal(5,2)", "integer", "decimal(21,2)", "decimal(21,2)"),
        ("decimal(20,20)", "integer", "string", "any"),
        ("decimal(38,0)", "decimal(1,1)", "string", "any"),
        ("decimal(5,2)", "number", "string", "any"),
    ],
)
def test_widen_returns_narrowest_type_that_holds_both(
    left: str, right: str, text: str, typed: str
) -> None:
    pair = column(left), column(right)
    assert widen(*pair, text_source=True) == column(text)
    assert widen(*pair, text_source=False) == column(typed)


def test_decimal_wins_over_integer_and_number_in_same_pass() -> None:
    decimal = column("decimal(20,20)")
    for numeric in (column("integer"), column("number")):
        assert joined(numeric, decimal, text_source=False) == decimal


def test_needed_type_of_wide_integers_is_never_number() -> None:
    integer, number, digits = column("integer"), column("number"), column("decimal(19,0)")
    assert needed(None, number, wide=True) == needed(integer, number, wide=True) == digits
    assert needed(number, integer, wide=True) == column("any")
    assert needed(integer, integer, wide=True) == integer


@given(schemas, st.lists(columns, max_size=6), st.booleans())
def test_widened_schema_keeps_columns_and_is_idempotent(
    schema: RecordSchema, seen: list[Column], text_source: bool
) -> None:
    wider = schema.widened(seen, text_source=text_source)
    assert wider.names[: len(schema.names)] == schema.names
    assert set(wider.names) == {*schema.names, *(column.name for column in seen)}
    assert wider.widened(seen, text_source=text_source) == wider


@given(schemas)
def test_schema_round_trips_through_json(schema: RecordSchema) -> None:
    assert RecordSchema.from_json(schema.to_json()) == schema


def test_json_schema_of_each_type_allows_null() -> None:
    texts = {kind.value: kind.value for kind in ColumnType} | {"decimal": "decimal(12,2)"}
    schema = RecordSchema.from_json(list(texts.items()))
    assert schema.json_schema() == {
        "type": "object",
        "properties": {
            "unknown": {"type": ["null", "string"]},
            "boolean": {"type": ["null", "boolean"]},
            "integer": {"type": ["null", "integer"]},
            "decimal": {"type": ["null", "number"], "multipleOf": 0.01},
            "number": {"type": ["null", "number"]},
            "string": {"type": ["null", "string"]},
            "binary": {"type": ["null", "string"], "contentEncoding": "base64"},
            "date": {"type": ["null", "string"], "format": "date"},
            "time": {"type": ["null", "string"], "format": "time"},
            "timestamp": {"type": ["null", "string"], "format": "date-time"},
            "local_timestamp": {"type": ["null", "string"], "format": "date-time"},
            "object": {"type": ["null", "object"]},
            "array": {"type": ["null", "array"]},
            "any": {},
        },
    }
    assert list(schema.json_schema()["properties"]) == [kind.value for kind in ColumnType]


def test_schema_with_duplicate_name_is_rejected() -> None:
    one = Column(name="id", type=ColumnType.INTEGER)
    assert RecordSchema((one, replace(one, name="ID"))).names == ("id", "ID")
    with pytest.raises(InvalidValueError, match="'id'"):
        RecordSchema((one, one))


LOCATION = "file:///landing/a.csv"


def test_schema_changes_name_the_causing_record() -> None:
    after = schema(id="integer", price="number", discount="number", note="string")
    misfits = [
        Misfit(column=after.columns[1], item_id=7, location=LOCATION, line=3),
        Misfit(column=after.columns[2], item_id=7, location=LOCATION, line=None),
    ]
    changes = changes_between(schema(id="integer", price="integer"), after, misfits)
    assert [change.sentence for change in changes] == [
        f"`price` from integer to number, first in {LOCATION}, line 3",
        f"added `discount` (number), first in {LOCATION}",
        "added `note` (string)",
    ]
    assert changes[0].to_json() == {
        "column": "price",
        "before": "integer",
        "after": "number",
        "item_id": 7,
        "location": LOCATION,
        "line": 3,
    }


@pytest.mark.parametrize(
    ("known", "earlier", "declared", "expected"),
    [
        ({}, None, {"a": "date"}, {"a": "date"}),
        ({"a": "integer"}, None, {"a": "number", "b": "date"}, {"a": "number", "b": "date"}),
        ({"a": "number"}, {"a": "integer"}, {"a": "integer"}, {"a": "number"}),
        ({"a": "integer", "b": "date"}, {"b": "date"}, {}, {"a": "integer", "b": "date"}),
        ({"a": "unknown"}, None, {"a": "timestamp"}, {"a": "timestamp"}),
        ({"a": "decimal(5,2)"}, None, {"a": "decimal(9,4)"}, {"a": "decimal(9,4)"}),
    ],
)
def test_with_declared_holds_known_and_declared_types(
    known: dict[str, str],
    earlier: dict[str, str] | None,
    declared: dict[str, str],
    expected: dict[str, str],
) -> None:
    before = None if earlier is None else schema(**earlier)
    found = with_declared("orders", schema(**known), before, schema(**declared))
    assert found == schema(**expected)


@pytest.mark.parametrize(
    ("known", "earlier", "declared", "message"),
    [
        ("number", "number", "integer", "declared integer, but was declared number before"),
        ("string", None, "integer", "declared integer, but is string in the published files"),
        ("date", None, "timestamp", "declared timestamp, but is date in the published files"),
    ],
)
def test_with_declared_rejects_narrower_or_contradicting_type(
    known: str, earlier: str | None, declared: str, message: str
) -> None:
    before: RecordSchema | None = None if earlier is None else schema(a=earlier)
    with pytest.raises(ConfigurationError, match=message) as caught:
        with_declared("orders", schema(a=known), before, schema(a=declared))
    assert "Declare a type that holds both" in str(caught.value)


def column_of(shape: Any) -> str:
    """Return the type of the column that a property declares."""
    [column] = schema_of({"properties": {"a": shape}}).columns
    return column.type_text


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({"type": ["integer", "number"]}, "number"),
        ({"type": "number", "multipleOf": 0.01}, "decimal(38,2)"),
        ({"type": "number", "multipleOf": 1e-05}, "decimal(38,5)"),
        ({"type": "number", "multipleOf": 1}, "decimal(38,0)"),
        ({"type": "integer", "multipleOf": 5}, "integer"),
        ({"type": "string", "format": "date-time-local"}, "local_timestamp"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"type": "string", "format": ["date"]}, "string"),
        ({"type": "string", "format": "singer.decimal"}, "string"),
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
def test_schema_of_property(shape: Any, expected: str) -> None:
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
def test_schema_of_unsupported_property_is_rejected_with_name(shape: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        column_of(shape)


def nested_alternatives() -> dict[str, Any]:
    shape: dict[str, Any] = {"type": "string"}
    for _ in range(5_000):
        shape = {"anyOf": [shape, {"type": "null"}]}
    return shape


@pytest.mark.parametrize(
    ("schemas", "problem"),
    [
        ([None, [], {"type": "object"}, {"properties": []}], "a JSON Schema with `properties`"),
        ([{"type": "array", "properties": {}}], "type is 'array'; expected object"),
        ([{"type": None, "properties": {}}], "type is None; expected object"),
        ([{"properties": {"a\0": {}}}, {"properties": {"\ud800": {}}}], "another name: a name"),
        ([{"properties": {"a": nested_alternatives()}}], "alternatives that are nested less deep"),
    ],
    ids=["no properties", "array", "null", "names", "depth"],
)
def test_schema_of_something_else_than_a_record_is_rejected(
    schemas: list[Any], problem: str
) -> None:
    for declared in schemas:
        with pytest.raises(InvalidValueError, match=problem):
            schema_of(declared)


DECLARABLE = set(ColumnType) - {
    ColumnType.UNKNOWN,  # written as a string
    ColumnType.LOCAL_TIMESTAMP,  # JSON Schema has one format for both timestamps
    ColumnType.DECIMAL,  # JSON Schema has no keyword for the precision
}
declarable_names = st.text(max_size=3).filter(lambda name: "\0" not in name)
declarable = st.builds(Column, name=declarable_names, type=st.sampled_from(sorted(DECLARABLE)))


@given(st.lists(declarable, max_size=5, unique_by=lambda column: column.name))
def test_json_schema_can_be_declared(drawn: list[Column]) -> None:
    schema = RecordSchema(tuple(drawn))
    assert schema_of(schema.json_schema()) == schema
