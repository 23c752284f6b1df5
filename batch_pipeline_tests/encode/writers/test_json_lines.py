"""JSON lines of tables: text cells, typed values and JSON text."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.writers.json_lines import json_lines
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline_tests.encode.writers.part_factories import (
    ALL_TYPES,
    JSON_COLUMNS,
    cells,
    schema,
    table,
    typed,
)

texts = st.text(
    alphabet=st.one_of(
        st.sampled_from('\0\b\t\n\f\r\x1f\x7f"\\/\u2028\ufeff😀'),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=8,
)


def lines_of(records: Table, known: RecordSchema) -> list[str]:
    lines = json_lines(records, known, OnNonfinite.QUARANTINE)
    written = b"".join(bytes(piece.text) for piece in lines)
    assert written.endswith(b"\n")
    return written.decode()[:-1].split("\n")


def parsed(records: Table, known: RecordSchema) -> list[dict[str, Any]]:
    """Write a table as JSON lines and read them with the standard library."""
    return [json.loads(line) for line in lines_of(records, known)]


@settings(deadline=None)
@given(rows=st.lists(st.tuples(st.none() | texts, texts), min_size=1, max_size=6), name=texts)
@example(rows=[("\0", '\\"')], name='"\\\n')
def test_json_lines_of_any_text_round_trip(rows: list[tuple[str | None, str]], name: str) -> None:
    first, second = f"1{name}", f"2{name}"
    batch = pa.record_batch(
        [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows])],
        names=[first, second],
    )
    known = RecordSchema.from_json([(first, "string"), (second, "any")])
    expected = [{first: one, second: two} for one, two in rows]

    assert parsed(table(batch, text=True), known) == expected
    assert parsed(table(batch), known) == expected
    assert parsed(table(batch.slice(1), text=True), known) == expected[1:] if rows[1:] else True


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (cells(_rescued_data=[None]), ['{"_rescued_data":null}']),
        (cells(b=["x"]), ['{"_rescued_data":null}']),  # the schema lacks the column
        (cells(a=[None] * 2), ['{"a":null,"_rescued_data":null}'] * 2),
        (table(pa.record_batch({"a": [1]})), ['{"a":1,"_rescued_data":null}']),
        (table(pa.record_batch({"a": ["1"]})), ['{"a":"1","_rescued_data":null}']),
    ],
)
def test_json_lines_have_table_columns_and_rescued_data(
    records: Table, expected: list[str]
) -> None:
    assert lines_of(records, schema(a="any", late="string", _rescued_data="string")) == expected


def test_json_lines_of_no_columns_or_no_records() -> None:
    assert lines_of(cells(a=["x", "y"]), schema(b="string")) == ["{}", "{}"]
    assert list(json_lines(cells(a=[]), schema(a="string"), OnNonfinite.NULL)) == []


def test_json_lines_of_json_text_with_line_ends_are_one_line_each() -> None:
    batch = pa.record_batch({"a": ['{\n"b":\r\n1}', "[]"]})

    written = lines_of(table(batch, json=frozenset({"a"})), schema(a="any"))

    assert written == ['{"a":{ "b":  1}}', '{"a":[]}']


def test_json_lines_have_offsets_of_line_ends() -> None:
    [lines] = json_lines(cells(a=["ö", "x"]), schema(a="string"), OnNonfinite.NULL)

    assert bytes(lines.text) == '{"a":"ö"}\n{"a":"x"}\n'.encode()
    assert list(lines.ends) == [11, 21]


def test_json_lines_with_long_names_are_sliced() -> None:
    name = "n" * 2**20
    ones: list[str | None] = ["1"] * 100
    known = schema(**{name: "integer"})
    lines = list(json_lines(cells(**{name: ones}), known, OnNonfinite.NULL))

    assert len(lines) > 1
    assert sum(len(piece.ends) for piece in lines) == 100


def test_json_lines_of_typed_values() -> None:
    """The offset of a slice matters to texts and timestamps."""
    [first, second] = lines_of(typed(), schema(**ALL_TYPES))
    reordered = typed().batch.take(pa.array([1, 0])).slice(1)

    assert first == (
        '{"empty":null,"flag":true,"count":-9223372036854775808,"price":1234567890.10,'
        '"ratio":0.1,"name":"\\"Zoë\\"","octets":"AP8=","day":"2026-01-31",'
        '"clock":"12:30:00.000001","instant":"2026-01-31T12:00:00.000000Z",'
        '"local":"1970-01-01T00:00:00.000005","nested":{"b":null,"a":1.10},"list":[1,[]],'
        '"mixed":"x"}'
    )
    assert set(json.loads(second).values()) == {None}
    assert lines_of(table(reordered, json=JSON_COLUMNS), schema(**ALL_TYPES)) == [first]


@given(values=st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=1))
@example(values=[-0.0, 1.0, 1e15, 1e16, 5e-324, 1.7976931348623157e308, 999_999_999_999_999.0])
@example(values=[2.0**53, 1e-7, 1e23, 123456789012345680.0])
def test_json_lines_of_doubles_round_trip(values: list[float | None]) -> None:
    read = parsed(table(pa.record_batch({"a": pa.array(values, pa.float64())})), schema(a="number"))

    assert [repr(record["a"]) for record in read] == list(map(repr, values))
