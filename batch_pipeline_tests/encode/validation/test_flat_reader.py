"""Vectorized reading of flat lines: equal to the standard library, or declined."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import TextLines
from batch_pipeline.encode.validation.json_validator import FlatReader
from batch_pipeline.model.record_rules import RESCUED
from batch_pipeline.model.schema import Column, ColumnType

COLUMNS = (
    Column(name="id", type=ColumnType.INTEGER),
    Column(name="a_name_of_many_bytes", type=ColumnType.STRING),
    Column(name="price", type=ColumnType.NUMBER),
    Column(name="paid", type=ColumnType.BOOLEAN),
    Column(name="count", type=ColumnType.INTEGER),
    Column(name="näme", type=ColumnType.STRING),
    Column(name="gone", type=ColumnType.UNKNOWN),
)
LINE = (
    '{"id":1,"a_name_of_many_bytes":"Öl, {1}","price":1.50,"paid":true,"count":-7,"näme":"x",'
    '"gone":null}'
).encode()

records = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**53), 2**53) | st.none(),
        "a_name_of_many_bytes": st.text(max_size=6) | st.none(),
        "price": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9) | st.none(),
        "paid": st.booleans() | st.none(),
        "count": st.integers(-(2**53), 2**53),
        "näme": st.text(alphabet='aß"\\,:{}\n ', max_size=4),
        "gone": st.none(),
    }
)


def compact(value: Any) -> str:
    """Return JSON without blanks and with as few escapes as possible."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read(*lines: bytes, columns: tuple[Column, ...] = COLUMNS, wide: str = "") -> list[Any] | None:
    text = b"".join(line + b"\n" for line in lines)
    arrays = FlatReader(columns, frozenset(wide.split())).read(TextLines.of(text, len(text)))
    if arrays is None:
        return None
    for array in arrays:
        array.validate(full=True)
    return [array.to_pylist() for array in arrays]


def with_value(name: str, text: str) -> bytes:
    """Return the line with another value, given as JSON text."""
    values = {key: compact(value) for key, value in json.loads(LINE).items()}
    values[name] = text
    return ("{" + ",".join(f'"{key}":{value}' for key, value in values.items()) + "}").encode()


def read_by_json(line: bytes) -> list[Any]:
    """Read a line with the standard library, numbers exactly, in the order of the columns."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(pairs) == len(dict(pairs)), f"a duplicate key in {line!r}"
        return dict(pairs)

    record = json.loads(line.decode(), object_pairs_hook=unique, parse_float=Decimal)
    assert isinstance(record, dict)
    assert record.keys() == {column.name for column in COLUMNS}
    return [record[column.name] for column in COLUMNS]


def assert_same(rows: list[Any], columns: list[list[Any]]) -> None:
    """Compare with the rows of the standard library, types included."""
    kinds = (int, str, float, bool, int, str, type(None))
    for row, read_row in zip(rows, zip(*columns, strict=True), strict=True):
        for wanted, value, kind in zip(row, read_row, kinds, strict=True):
            if wanted is None:
                assert value is None
                continue
            assert type(value) is kind
            assert not isinstance(wanted, bool) or kind is bool
            exact = Decimal(repr(value)) if kind is float else value
            assert exact == wanted


def test_flat_reader_reads_lines_with_all_columns() -> None:
    reversed_line = compact(dict(reversed(json.loads(LINE).items()))).encode()
    empty = compact(dict.fromkeys(json.loads(reversed_line))).encode()

    assert read(reversed_line, empty) == [
        [1, None],
        ["Öl, {1}", None],
        [1.5, None],
        [True, None],
        [-7, None],
        ["x", None],
        [None, None],
    ]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (", ", ":"), (",", ": ")])
def test_flat_reader_reads_regular_blanks(separators: tuple[str, str]) -> None:
    """Many writers put a blank after each comma, each colon or both."""
    line = json.dumps(json.loads(LINE), ensure_ascii=False, separators=separators).encode()

    assert read(line, line) == read(LINE, LINE) is not None


def test_flat_reader_returns_nulls_for_optional_column() -> None:
    number = Column(name="id", type=ColumnType.INTEGER)
    rescued, text = (Column(name=name, type=ColumnType.STRING) for name in (RESCUED, "x"))
    lines = b'{"id":1}', b'{"id":2}'
    assert read(*lines, columns=(number, rescued)) == [[1, 2], [None, None]]
    assert read(*lines, columns=(number, text)) is None


def test_flat_reader_reads_wide_integers_only_in_wide_columns() -> None:
    columns = (Column(name="id", type=ColumnType.INTEGER),)

    assert read(b'{"id":9007199254740993}', columns=columns, wide="id") == [[2**53 + 1]]
    assert read(b'{"id":9007199254740993}', columns=columns) is None


def test_flat_reader_keeps_sign_of_zero_doubles_only() -> None:
    columns = (Column(name="n", type=ColumnType.NUMBER),)

    assert str(read(b'{"n":-0}', b'{"n":-0.0}', columns=columns)) == "[[0.0, -0.0]]"


def test_flat_reader_reads_dates_as_their_column_type() -> None:
    columns = (Column(name="at", type=ColumnType.DATE),)

    assert str(read(b'{"at":"2026-01-31"}', columns=columns)) == "[[datetime.date(2026, 1, 31)]]"
    assert read(b'{"at":"2026-02-31"}', columns=columns) is None
    assert read(b'{"at":20260131}', columns=columns) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("id", "1.0"),
        ("id", "9223372036854775808"),
        ("id", "9007199254740993"),
        ("id", '"1"'),
        ("id", "true"),
        ("id", "nul"),
        ("id", ""),
        ("price", "0.12345678901234567890"),
        ("price", "1e400"),
        ("price", "-Infinity"),
        ("price", "9007199254740993"),
        ("paid", "True"),
        ("näme", "none"),
        ("näme", '"a" "b"'),
        ("näme", '"a":"b"'),
        ("näme", r'"\ud800"'),
        ("näme", '"a\tb"'),
        ("näme", '""",'),
        ("näme", '{"x":"a"}'),
        ("gone", "0"),
        ("gone", 'null,"id":1'),
        ("gone", 'null,"more":1'),
    ],
)
def test_flat_reader_with_value_that_may_not_fit_returns_none(name: str, text: str) -> None:
    assert read(LINE, with_value(name, text), LINE) is None


@pytest.mark.parametrize(
    "line",
    [
        LINE.replace(b'"a_name_of_many_bytes"', b'"a_name_of_many_bytez"'),
        LINE.replace(b'"id":1,', b""),
        LINE.replace(b'"id":1,', b'"id":1,"id":1,'),
        LINE.replace(b'"id":1,', b'"id": 1,'),
        LINE.replace(b":", b":  "),
        LINE.replace(b"}", b"}}"),
        LINE.replace(b'{"id"', b'{{"id"'),
        LINE.replace("Ö".encode(), b"\xd6"),
        LINE.replace(b'"id":1,', b"")[:-1] + b',"id":1}',
        b"{}",
        b"null",
    ],
)
def test_flat_reader_with_line_of_another_layout_returns_none(line: bytes) -> None:
    assert read(LINE, line, LINE) is None


@given(st.lists(records, min_size=1, max_size=4))
def test_flat_reader_of_any_records_is_exact_or_none(written: list[dict[str, Any]]) -> None:
    """Only blocks with escapes are declined."""
    names = [column.name for column in COLUMNS]
    lines = [compact({n: record[n] for n in names}).encode() for record in written]
    columns = read(*lines)
    if columns is not None:
        assert_same([read_by_json(line) for line in lines], columns)
        return
    assert any(b"\\" in line or b"\x7f" in line for line in lines)


@given(
    st.integers(0, 3 * len(LINE)),
    st.integers(0, 3),
    st.sampled_from([b"", *(bytes([one]) for one in b'"\\,:{}[] 0-.eEnN1\n\r\t\xff\x00')]),
    st.booleans(),
)
@example(0, 1, b"", False)
def test_flat_reader_of_damaged_lines_equals_standard_library_or_is_none(
    at: int, removed: int, added: bytes, has_blanks: bool
) -> None:
    line = json.dumps(json.loads(LINE), ensure_ascii=False).encode() if has_blanks else LINE
    text = b"\n".join([line, line, line])
    lines = (text[:at] + added + text[at + removed :]).split(b"\n")
    columns = read(*lines)
    if columns is not None:
        assert_same([read_by_json(line) for line in lines], columns)
