"""Blocks of flat lines are validated as if their records were read one by one."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import Table, TextLines
from batch_pipeline.encode.validation.json_validator import FlatReader
from batch_pipeline.model.record_rules import RESCUED
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline_tests.encode.validation.validator_under_test import ValidatorUnderTest, reasons
from batch_pipeline_tests.encode.writers.part_factories import json_records, schema

KNOWN = schema(
    id="integer",
    a_name_of_many_bytes="string",
    price="number",
    paid="boolean",
    näme="string",
    gone="unknown",
    day="date",
)
LINE = (
    '{"id":-7,"a_name_of_many_bytes":"Öl, {1}","price":1.5,"paid":true,"näme":"x","gone":null,'
    '"day":"2026-01-31"}'
).encode()
RECORD = json.loads(LINE)

records = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**53), 2**53) | st.none(),
        "a_name_of_many_bytes": st.text(max_size=6) | st.none(),
        "price": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9) | st.none(),
        "paid": st.booleans() | st.none(),
        "näme": st.text(alphabet='aß"\\,:{}\n ', max_size=4),
        "gone": st.none(),
        "day": st.dates().map(str),
    }
)


def compact(record: Any, comma: str = ",", colon: str = ":") -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(comma, colon)).encode()


def text_lines(*lines: bytes) -> TextLines:
    text = b"".join(line + b"\n" for line in lines)
    return TextLines.of(text, len(text))


def read(*lines: bytes, columns: tuple[Column, ...], wide: str = "") -> list[Any] | None:
    arrays = FlatReader(columns, frozenset(wide.split())).read(text_lines(*lines))
    for array in arrays or []:
        array.validate(full=True)
    return None if arrays is None else [array.to_pylist() for array in arrays]


def outcome(*lines: bytes, is_text: bool) -> tuple[object, ...]:
    """Validate lines, those of a text as a block; `repr` distinguishes 0 from -0.0 and false."""
    subject = ValidatorUnderTest(KNOWN, values=True)
    chunk = json_records(*lines)
    chunk = replace(chunk, lines=text_lines(*lines)) if is_text else chunk
    validated = subject.validator.validate(chunk)
    rows = {}
    if isinstance(validated, Table):
        validated.batch.validate(full=True)
        rows = validated.batch.to_pydict()
    return repr(rows), reasons(validated), subject.misfits(), subject.profile.wide


def assert_same(*lines: bytes) -> None:
    assert outcome(*lines, is_text=True) == outcome(*lines, is_text=False)


@given(
    st.lists(records, min_size=1, max_size=4),
    st.permutations(list(RECORD)),
    st.sampled_from([",", ", "]),
    st.sampled_from([":", ": "]),
)
def test_flat_reader_of_any_records_is_exact_or_none(
    written: list[dict[str, Any]], names: list[str], comma: str, colon: str
) -> None:
    """Only blocks with escapes are declined."""
    lines = [compact({name: record[name] for name in names}, comma, colon) for record in written]

    assert_same(*lines)
    has_escapes = any(b"\\" in line or b"\x7f" in line for line in lines)
    assert has_escapes or read(*lines, columns=KNOWN.columns) is not None


@settings(max_examples=300)
@given(
    st.integers(0, 3 * len(LINE)),
    st.integers(0, 3),
    st.sampled_from([b"", *(bytes([one]) for one in b'"\\,:{}[] 0-.eEnN1\r\t\xff\x00')]),
    st.booleans(),
)
@example(0, 1, b"", False)
def test_damaged_flat_lines_are_read_as_one_by_one(
    at: int, removed: int, added: bytes, has_blanks: bool
) -> None:
    line = compact(RECORD, ", ", ": ") if has_blanks else LINE
    text = b"\n".join([line, line, line])
    assert_same(*(text[:at] + added + text[at + removed :]).split(b"\n"))


@pytest.mark.parametrize(
    ("usual", "unusual"),
    [
        ('"id":-7', '"id":1.0'),
        ('"id":-7', '"id":9007199254740993'),
        ('"id":-7', '"id":"1"'),
        ('"id":-7', '"id":'),
        ('"id":-7', '"id": -7'),
        ('"id":-7', '"id":1,"id":1'),
        ('"id":-7,', ""),
        ("1.5", "0.12345678901234567890"),
        ("1.5", "-0"),
        ("true", "True"),
        ('"x"', r'"\ud800"'),
        ('"x"', '"a\tb"'),
        ('"x"', '"a":"b"'),
        ('"x"', '"a" "b"'),
        ('"x"', '""",'),
        ('"x"', '{"x":"a"}'),
        ("null", "0"),
        ("null", 'null,"more":1'),
        ("01-31", "02-31"),
        ('"2026-01-31"', "20260131"),
        ("_bytes", "_bytez"),
        ('{"id"', '{{"id"'),
        (":", ":  "),
        ("Ö", "\udcd6"),
        (LINE.decode(), "{}"),
    ],
)
def test_flat_lines_with_unusual_one_are_read_as_one_by_one(usual: str, unusual: str) -> None:
    line = LINE.decode().replace(usual, unusual).encode(errors="surrogateescape")
    assert_same(LINE, line, LINE)
    assert_same(line, line)


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
