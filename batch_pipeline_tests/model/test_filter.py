"""Structured filters: parsing, rejected values, round trips."""

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.filter import AllOf, AnyOf, Condition, Filter, Operator, parse_filter

KIND_IS_A = {"column": "kind", "operator": "=", "value": "a"}
NOT_DELETED = {"column": "deleted", "operator": "is null"}

characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.text(characters) | st.integers() | st.booleans() | finite
columns = st.text(characters, min_size=1, max_size=5)
lists = st.lists(scalars, min_size=1, max_size=3).map(tuple)
comparisons = st.sampled_from([Operator.EQUAL, Operator.NOT_EQUAL, Operator.LESS, Operator.GREATER])
conditions = st.one_of(
    st.builds(Condition, columns, comparisons, scalars),
    st.builds(Condition, columns, st.sampled_from([Operator.IN, Operator.NOT_IN]), lists),
    st.builds(Condition, columns, st.sampled_from([Operator.IS_NULL, Operator.IS_NOT_NULL])),
)
filters: st.SearchStrategy[Filter] = st.recursive(
    conditions,
    lambda parts: (
        st.lists(parts, min_size=1, max_size=3)
        .map(tuple)
        .flatmap(lambda some: st.sampled_from([AllOf(some), AnyOf(some)]))
    ),
    max_leaves=8,
)


def test_parse_filter_combines_list_with_and() -> None:
    assert parse_filter([KIND_IS_A, NOT_DELETED]) == AllOf(
        (Condition("kind", Operator.EQUAL, "a"), Condition("deleted", Operator.IS_NULL))
    )


def test_parse_filter_keeps_nesting_of_any_and_all() -> None:
    parsed = parse_filter({"any": [KIND_IS_A, {"all": [NOT_DELETED, {"any": [KIND_IS_A]}]}]})
    kind, deleted = Condition("kind", Operator.EQUAL, "a"), Condition("deleted", Operator.IS_NULL)
    assert parsed == AnyOf((kind, AllOf((deleted, AnyOf((kind,))))))


def test_parse_filter_converts_times_to_iso_text() -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for value, text in ((noon, "2026-03-01T12:00:00+00:00"), (date(2026, 3, 1), "2026-03-01")):
        parsed = parse_filter({"column": "at", "operator": "<", "value": value})
        assert parsed == Condition("at", Operator.LESS, text)


def test_filter_columns_are_unique_and_ordered() -> None:
    parsed = parse_filter([NOT_DELETED, {"any": [KIND_IS_A, NOT_DELETED]}])
    assert parsed.columns == ("deleted", "kind")


@given(filters)
def test_filter_round_trips_through_json(written: Filter) -> None:
    assert parse_filter(written.to_json()) == written


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("kind = 'a'", "where"),
        (None, "where"),
        ([], "where"),
        ({}, "where.operator"),
        ({"all": []}, "where.all"),
        ({"any": KIND_IS_A}, "where.any"),
        ({"any": [KIND_IS_A], "all": [KIND_IS_A]}, "where.any"),
        ({"any": [KIND_IS_A], "column": "kind"}, "where.any"),
        ([KIND_IS_A, {"any": [NOT_DELETED, 7]}], "where[1].any[1]"),
        ([{"column": "kind", "operator": "==", "value": 1}], "where[0].operator"),
        ([{"column": "kind", "operator": ["="], "value": "a"}], "where[0].operator"),
        ([{"column": "kind", "operator": "="}], "where[0].value"),
        ([{"column": "", "operator": "is null"}], "where[0].column"),
        ([{"column": 7, "operator": "is null"}], "where[0].column"),
        ([KIND_IS_A | {"sql": "1 = 1"}], "where[0].sql"),
    ],
)
def test_parse_filter_rejects_other_values_and_names_the_key(value: object, key: str) -> None:
    with pytest.raises(InvalidValueError) as raised:
        parse_filter(value)
    assert raised.value.name == key


@pytest.mark.parametrize(
    ("operator", "values"),
    [
        ("=", [None, ["a"], float("nan"), "a\0"]),
        ("in", ["a", []]),
        ("not in", [["a", None]]),
        ("like", [7, "a%\\", "a%\\\\\\"]),  # one and three backslashes
        ("is null", [None, True]),
    ],
)
def test_parse_filter_rejects_value_that_does_not_fit_operator(
    operator: str, values: list[object]
) -> None:
    for value in values:
        with pytest.raises(InvalidValueError) as raised:
            parse_filter([{"column": "kind", "operator": operator, "value": value}])
        assert raised.value.name == "where[0].value"
    with pytest.raises(InvalidValueError):
        Condition("kind", Operator.IS_NULL, 1)


def test_parse_filter_rejects_deep_nesting() -> None:
    value: object = KIND_IS_A
    for _ in range(2_000):
        value = {"all": [value]}
    with pytest.raises(InvalidValueError, match="16 levels"):
        parse_filter(value)


@pytest.mark.parametrize("ending", ["", r"\\", r"\\\\"])
def test_like_pattern_may_end_with_escaped_backslashes(ending: str) -> None:
    assert Condition("kind", Operator.LIKE, f"a%{ending}").value == f"a%{ending}"
