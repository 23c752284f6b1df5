"""Structured filters: parsing, rejected values, round trips."""

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.filter import AllOf, AnyOf, Condition, Filter, Operator, parse_filter

KIND_IS_A = {"column": "kind", "operator": "=", "value": "a"}
NOT_DELETED = {"column": "deleted", "operator": "is null"}

scalars = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.integers(),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
)
columns = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=5
)
comparisons = st.sampled_from([Operator.EQUAL, Operator.NOT_EQUAL, Operator.LESS, Operator.GREATER])
conditions = st.one_of(
    st.builds(Condition, columns, comparisons, scalars),
    st.builds(
        Condition,
        columns,
        st.sampled_from([Operator.IN, Operator.NOT_IN]),
        st.lists(scalars, min_size=1, max_size=3).map(tuple),
    ),
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
    assert parse_filter([NOT_DELETED, {"any": [KIND_IS_A, NOT_DELETED]}]).columns == (
        "deleted",
        "kind",
    )


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
        ([{"column": "kind", "operator": "=", "value": None}], "where[0].value"),
        ([{"column": "kind", "operator": "=", "value": ["a"]}], "where[0].value"),
        ([{"column": "kind", "operator": "=", "value": float("nan")}], "where[0].value"),
        ([{"column": "kind", "operator": "=", "value": "a\0"}], "where[0].value"),
        ([{"column": "kind", "operator": "in", "value": "a"}], "where[0].value"),
        ([{"column": "kind", "operator": "in", "value": []}], "where[0].value"),
        ([{"column": "kind", "operator": "not in", "value": ["a", None]}], "where[0].value"),
        ([{"column": "kind", "operator": "like", "value": 7}], "where[0].value"),
        ([{"column": "kind", "operator": "is null", "value": None}], "where[0].value"),
        ([{"column": "kind", "operator": "is null", "value": True}], "where[0].value"),
        ([{"column": "", "operator": "is null"}], "where[0].column"),
        ([{"column": 7, "operator": "is null"}], "where[0].column"),
        ([KIND_IS_A | {"sql": "1 = 1"}], "where[0].sql"),
    ],
)
def test_parse_filter_rejects_other_values_and_names_the_key(value: object, key: str) -> None:
    with pytest.raises(InvalidValueError) as raised:
        parse_filter(value)
    assert raised.value.name == key


def test_parse_filter_rejects_deep_nesting() -> None:
    value: object = KIND_IS_A
    for _ in range(10_000):
        value = {"all": [value]}
    with pytest.raises(InvalidValueError, match="16 levels"):
        parse_filter(value)


@pytest.mark.parametrize(
    ("operator", "value"), [(Operator.EQUAL, None), (Operator.IN, "a"), (Operator.IS_NULL, 1)]
)
def test_condition_constructor_validates(operator: Operator, value: str | int | None) -> None:
    with pytest.raises(InvalidValueError):
        Condition("kind", operator, value)


@pytest.mark.parametrize("ending", ["", r"\\", r"\\\\"])
def test_like_pattern_may_end_with_escaped_backslashes(ending: str) -> None:
    assert Condition("kind", Operator.LIKE, f"a%{ending}").value == f"a%{ending}"


@pytest.mark.parametrize("ending", ["\\", r"\\" + "\\"])
def test_like_pattern_that_ends_with_escape_character_is_rejected(ending: str) -> None:
    with pytest.raises(InvalidValueError, match="does not end in a single backslash"):
        Condition("kind", Operator.LIKE, f"a%{ending}")
