"""Record schemas: widening only, in a stable order, as JSON Schema."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema, joined, needed, widen

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
    lambda found: RecordSchema(tuple(found))
)


def column(text: str) -> Column:
    """Make a column of a type."""
    return Column.from_text("a", text)


@pytest.mark.parametrize("both", [widen, joined])
@given(columns, columns, columns, st.booleans())
def test_widen_does_not_depend_on_order(
    both: Callable[..., Column], one: Column, two: Column, three: Column, text_source: bool
) -> None:
    """Expect the same type whichever value is seen first: files and tasks end in any order."""
    one, two, three = (replace(found, name="a") for found in (one, two, three))

    def wide(left: Column, right: Column) -> Column:
        return both(left, right, text_source=text_source)

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
def test_widen_two_types_gives_the_narrowest_that_holds_both(
    left: str, right: str, text: str, typed: str
) -> None:
    pair = column(left), column(right)
    assert widen(*pair, text_source=True) == column(text)
    assert widen(*pair, text_source=False) == column(typed)


@pytest.mark.parametrize("numeric", ["integer", "number"])
def test_joined_with_a_decimal_leaves_the_digits_for_the_next_look(numeric: str) -> None:
    """Expect the decimal: its neighbours are counted when the schema says decimal."""
    pair = column(numeric), column("decimal(20,20)")
    assert joined(*pair, text_source=False) == column("decimal(20,20)")


@pytest.mark.parametrize(
    ("known", "seen", "expected"),
    [
        (None, "number", "decimal(19,0)"),
        ("integer", "number", "decimal(19,0)"),
        ("number", "integer", "any"),
        ("integer", "integer", "integer"),
        ("string", "integer", "any"),
    ],
)
def test_needed_with_wide_integers_never_gives_a_number(
    known: str | None, seen: str, expected: str
) -> None:
    before = None if known is None else column(known)
    assert needed(before, column(seen), wide=True) == column(expected)


@given(schemas, st.lists(columns, max_size=6), st.booleans())
def test_widened_schema_holds_what_it_held(
    schema: RecordSchema, seen: list[Column], text_source: bool
) -> None:
    wider = schema.widened(seen, text_source=text_source)
    assert wider.names[: len(schema.names)] == schema.names
    assert set(wider.names) == {*schema.names, *(column.name for column in seen)}
    assert wider.widened(seen, text_source=text_source) == wider


@given(schemas)
def test_schema_survives_json(schema: RecordSchema) -> None:
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


def test_schema_with_a_name_twice_is_refused() -> None:
    twice = Column(name="id", type=ColumnType.INTEGER)
    with pytest.raises(InvalidValueError, match="'id'"):
        RecordSchema((twice, twice))


def test_schema_with_names_that_differ_in_case_is_accepted() -> None:
    schema = RecordSchema(
        (Column(name="id", type=ColumnType.INTEGER), Column(name="ID", type=ColumnType.STRING))
    )
    assert schema.names == ("id", "ID")
