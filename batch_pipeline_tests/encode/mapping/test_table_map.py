"""Mapping tables: types, text cells, filtered and failed rows."""

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from batch_pipeline.encode.chunks import Table
from batch_pipeline.model.record_rules import OnNonfinite, RecordMapping
from batch_pipeline_tests.encode.mapping.mapping_factories import FLAT, mapped_table, mapping, table


@pytest.mark.parametrize(
    ("columns", "kept", "line", "reason"),
    [
        (
            {"a": ['{"b":1}', '{"c":2}', None, '{"b":4}'], "a__b": [1, 2, 3, None]},
            {"a__b": [2, 3, 4], "a__c": [2, None, None]},
            11,
            "flattening produces two properties 'a__b'",
        ),
        (
            {"a": ['{"b":1}', '{"c":2}'], "a__b": ["{}", '{"d":3}']},
            {"a__c": [2], "a__b__d": [3]},
            11,
            "flattening produces two properties 'a__b'",
        ),
        (
            {"a": ['{"b":1}', '{"x\\u0000y":2}', '{"b":3}']},
            {"a__b": [1, 3]},
            12,
            "flattening produces 'a__x\\x00y': a name with a NUL cannot be stored in PostgreSQL",
        ),
    ],
)
def test_flattened_row_without_unique_valid_names_is_quarantined(
    columns: dict[str, list[Any]], kept: dict[str, list[Any]], line: int, reason: str
) -> None:
    arrays = {name: pa.array(cells) for name, cells in columns.items()}
    json = frozenset(name for name, cells in columns.items() if isinstance(cells[0], str))
    result = mapped_table(FLAT, table(arrays, json=json))
    assert result.batch.to_pydict() == kept
    assert [(bad.line, bad.reason) for bad in result.bad] == [(line, reason)]


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"a": None, "n": "number", "object": "self"},  # `object` is a string in some rows
        {"n": "object", "__else__": None},
        {"number": "object", "object": "number"},
        {"object__x": "number"},  # also the name of a flattened property
        {"n": "missing"},
    ],
)
def test_flattening_by_column_equals_flattening_by_row(rules: dict[str, Any]) -> None:
    columns = {
        "number": pa.array([1, None, 3, 4]),
        "object": pa.array(['{"x":1,"y":{"z":2}}', None, '"text"', '{"x":null}']),
        "nested": pa.array([{"x": [1], "y": "t"}, None, {"x": [], "y": None}, {"x": None}]),
        "a": pa.array(["A", "B", None, ""]),
    }
    original = table(columns, json=frozenset({"object"}))

    def flattened(**options: str) -> Table:
        maps = {"orders": rules | options}
        record_mapping = RecordMapping(
            stream_maps=maps, flattening_enabled=True, flattening_max_depth=1
        )
        return mapped_table(record_mapping, original)

    by_column, by_row = flattened(), flattened(__filter__="1 == 1")  # a filter reads each row
    assert by_column.batch.to_pylist() == by_row.batch.to_pylist()
    assert by_column.filtered == by_row.filtered
    assert [(bad.line, bad.reason) for bad in by_column.bad] == [
        (bad.line, bad.reason) for bad in by_row.bad
    ]


def test_expressions_read_typed_columns_as_json_and_keep_them_typed() -> None:
    columns = {
        "id": pa.array([1, 2]),
        "at": pa.array(
            [datetime(2026, 1, 31, 12, 30, tzinfo=UTC), None], pa.timestamp("us", "UTC")
        ),
        "price": pa.array([Decimal("1.10"), None]),
        "ratio": pa.array([0.1, None]),
        "nested": pa.array(['{"a":1.50}', None]),
    }
    record_mapping = mapping(
        day="at[:10] if at else None",
        twice="price * 2 if price else 0",
        ratio_text="str(ratio)",
        inner="nested.a if nested else 'none'",
        number="id",
    )
    result = mapped_table(record_mapping, table(columns, json=frozenset({"nested"})))
    assert result.batch.schema.names == [*columns, "day", "twice", "ratio_text", "inner", "number"]
    for name, array in columns.items():
        assert result.batch.column(name).equals(array)
    assert result.batch.column("number").equals(columns["id"])
    assert result.json == {"nested", "inner"}
    assert result.batch.select(["day", "twice", "ratio_text", "inner"]).to_pydict() == {
        "day": ["2026-01-31", None],
        "twice": [2.2, 0.0],
        "ratio_text": ["0.1", "None"],
        "inner": ["1.50", '"none"'],
    }


def test_renamed_text_cells_are_text_cells() -> None:
    columns = {"a": pa.array(["1", None]), "b": pa.array(["x", "y"])}
    record_mapping = mapping(c="a", a=None, d="'k'")
    result = mapped_table(record_mapping, table(columns, text=frozenset(columns)))
    assert (set(result.text), set(result.json)) == ({"b", "c"}, set())
    assert result.batch.to_pydict() == {"b": ["x", "y"], "c": ["1", None], "d": ["k", "k"]}


def test_filtered_and_failed_rows_do_not_renumber_others() -> None:
    columns = {"a": pa.array(["1", "2", "x", "3", None])}
    record_mapping = mapping(__filter__="a != '1'", b="int(a)")
    result = mapped_table(record_mapping, table(columns, text=frozenset({"a"}), filtered=1))
    assert (result.batch.to_pydict(), result.filtered) == ({"a": ["2", "3"], "b": [2, 3]}, 2)
    assert (list(result.line_numbers), list(result.record_numbers)) == ([12, 14], [2, 4])
    assert [(bad.line, bad.raw) for bad in result.bad] == [(13, b""), (15, b"")]


def test_row_with_two_failing_expressions_names_the_first() -> None:
    columns = {"a": pa.array(["x"]), "b": pa.array([1.5])}
    record_mapping = mapping(a="self", c="int(a)", d="float(a)")
    (bad,) = mapped_table(record_mapping, table(columns, text=frozenset({"a"}))).bad
    assert bad.reason.startswith('stream map of "c": ValueError')


def test_row_with_failing_filter_is_quarantined_as_json() -> None:
    columns = {"a": pa.array(["x"]), "b": pa.array([1.5])}
    given = table(columns, text=frozenset({"a"}))
    (bad,) = mapped_table(mapping(__filter__="int(a) > 1"), given).bad
    assert bad.reason.startswith("filter of the stream map: ValueError")
    assert bad.raw == b'{"a":"x","b":1.5}'


def test_selection_of_no_columns_keeps_record_count() -> None:
    columns = {"a": pa.array([1, 2])}
    result = mapped_table(mapping(("b",)), table(columns))
    assert (result.good, result.batch.num_columns, result.filtered) == (2, 0, 0)
    result = mapped_table(mapping(("b",), c="1 + 1"), table(columns))
    assert result.batch.to_pydict() == {"c": [2, 2]}


def test_filter_of_all_rows_leaves_no_columns() -> None:
    result = mapped_table(mapping(__filter__="a > 2", d="a"), table({"a": pa.array([1, 2])}))
    assert (result.good, result.batch.num_columns, result.filtered) == (0, 0, 2)


def test_computed_one_character_texts_are_not_copies() -> None:
    """Python interns such strings, so identity does not show that a value is a copy."""
    columns = {"a": pa.array(["1", "1"]), "b": pa.array(["x", "y"])}
    record_mapping = mapping(c="'1'", d="a[0]", e="str(a)")
    result = mapped_table(record_mapping, table(columns, text=frozenset(columns)))
    assert set(result.text) == {"a", "b"}
    assert result.batch.select(["c", "d", "e"]).to_pydict() == {name: ["1", "1"] for name in "cde"}


def test_invalid_values_not_read_by_an_expression_are_kept() -> None:
    columns = {"a": pa.array([1, 2]), "b": pa.array([math.nan, 1.0]), "c": pa.array(["{", "1"])}
    record_mapping = mapping(d="record['a'] + _.get('a', 0)", e="b", b=None)
    result = mapped_table(record_mapping, table(columns, json=frozenset({"c"})))
    assert (result.batch.schema.names, result.bad) == (["a", "c", "d", "e"], ())
    assert result.batch.column("c").to_pylist() == ["{", "1"]
    assert result.batch.column("d").to_pylist() == [2, 4]
    assert result.json == {"c"}


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (OnNonfinite.NULL, ["None", "None"], 0),
        (OnNonfinite.STRING, ["NaN", "None"], 0),
        (OnNonfinite.QUARANTINE, ["None"], 1),
    ],
)
def test_nan_read_by_an_expression_follows_rule(
    rule: OnNonfinite, good: list[str], bad: int
) -> None:
    columns = {"a": pa.array([math.nan, None], pa.float64())}
    result = mapped_table(mapping(b="str(a)"), table(columns), on_nonfinite=rule)
    assert result.batch.column("b").to_pylist() == good
    assert len(result.bad) == bad


@pytest.mark.parametrize(
    ("expression", "kind", "cells"),
    [
        ("name == 'x'", pa.bool_(), [True, False]),
        ("number * 2", pa.int64(), [2, 4]),
        ("number / 2", pa.float64(), [0.5, 1.0]),
        ("number * 2 ** 62", pa.string(), ["4611686018427387904", "9223372036854775808"]),
        ("0.5 if name else 10 ** 400", pa.string(), ["0.5", "1" + "0" * 400]),
        ("name or number", pa.string(), ['"x"', "2"]),
        ("None", pa.string(), [None, None]),
    ],
)
def test_computed_column_has_common_type_of_its_values(
    expression: str, kind: pa.DataType, cells: list[Any]
) -> None:
    columns = {"name": pa.array(["x", None]), "number": pa.array([1, 2])}
    result = mapped_table(mapping(a=expression), table(columns))
    assert result.batch.column("a").type == kind
    assert result.batch.column("a").to_pylist() == cells
    assert ("a" in result.json) is (kind == pa.string())
