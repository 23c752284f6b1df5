"""Record schemas: widening only, in a stable order, as JSON Schema."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema, widen

types = st.sampled_from(ColumnType)
columns = st.builds(Column, name=st.sampled_from("abcdef"), type=types)
schemas = st.lists(columns, max_size=6, unique_by=lambda column: column.name).map(
    lambda found: RecordSchema(tuple(found))
)


@given(types, types, types, st.booleans())
def test_widen_does_not_depend_on_order(
    one: ColumnType, two: ColumnType, three: ColumnType, text_source: bool
) -> None:
    """Expect the same type whichever value is seen first: files arrive in any order.

    A text source never has a column of any type, for its mixtures are text.
    """
    if text_source and ColumnType.ANY in {one, two, three}:
        return

    def wide(left: ColumnType, right: ColumnType) -> ColumnType:
        return widen(left, right, text_source=text_source)

    assert wide(one, two) == wide(two, one)
    assert wide(wide(one, two), three) == wide(one, wide(two, three))
    assert wide(one, one) == one


@pytest.mark.parametrize(
    ("left", "right", "text", "typed"),
    [
        ("integer", "number", "number", "number"),
        ("unknown", "integer", "integer", "integer"),
        ("integer", "string", "string", "any"),
        ("boolean", "integer", "string", "any"),
        ("object", "array", "string", "any"),
    ],
)
def test_widen_two_types_gives_the_narrowest_that_holds_both(
    left: str, right: str, text: str, typed: str
) -> None:
    """Expect mixtures to become text for cells of text and anything for typed values."""
    pair = ColumnType(left), ColumnType(right)
    assert widen(*pair, text_source=True) == text
    assert widen(*pair, text_source=False) == typed


@given(schemas, st.lists(columns, max_size=6), st.booleans())
def test_widened_schema_holds_what_it_held(
    schema: RecordSchema, seen: list[Column], text_source: bool
) -> None:
    """Expect old columns first and in order, all seen ones there, and nothing to change twice."""
    wider = schema.widened(seen, text_source=text_source)
    assert wider.names[: len(schema.names)] == schema.names
    assert set(wider.names) == {*schema.names, *(column.name for column in seen)}
    assert wider.widened(seen, text_source=text_source) == wider


@given(schemas)
def test_schema_survives_json(schema: RecordSchema) -> None:
    """Expect the form of the inventory to lose neither order nor types."""
    assert RecordSchema.from_json(schema.to_json()) == schema


def test_json_schema_of_each_type_allows_null() -> None:
    """Expect Singer's way to write nullable columns."""
    schema = RecordSchema(tuple(Column(name=kind.value, type=kind) for kind in ColumnType))
    assert schema.json_schema() == {
        "type": "object",
        "properties": {
            "unknown": {"type": ["null", "string"]},
            "boolean": {"type": ["null", "boolean"]},
            "integer": {"type": ["null", "integer"]},
            "number": {"type": ["null", "number"]},
            "string": {"type": ["null", "string"]},
            "object": {"type": ["null", "object"]},
            "array": {"type": ["null", "array"]},
            "any": {},
        },
    }
    assert list(schema.json_schema()["properties"]) == [kind.value for kind in ColumnType]


def test_schema_with_a_name_twice_is_refused() -> None:
    """Expect the name to be told."""
    twice = Column(name="id", type=ColumnType.INTEGER)
    with pytest.raises(InvalidValueError, match="'id'"):
        RecordSchema((twice, twice))


def test_schema_with_names_that_differ_in_case_is_accepted() -> None:
    """Expect JSON's own idea of equal names."""
    schema = RecordSchema(
        (Column(name="id", type=ColumnType.INTEGER), Column(name="ID", type=ColumnType.STRING))
    )
    assert schema.names == ("id", "ID")
