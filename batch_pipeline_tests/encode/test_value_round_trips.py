"""Random values of text, parquet and avro files through whole tasks, read by other libraries.

The expectations are those of the table "Values" of `docs/reference/formats.md`. They are computed
from the written text or the Python values alone, never by the code under test.
"""

import io
import math
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from batch_pipeline.model.encoding import Format
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode import json_strategies
from batch_pipeline_tests.encode.landed_files import COMPRESSORS, parquet
from batch_pipeline_tests.encode.task_fixture import (
    TaskFixture,
    encode_with_inferred_schema,
    fields_of,
    lines_of,
    parse_json_exactly,
    quarantining_task,
    rows_of,
)
from batch_pipeline_tests.encode.typed_values import KINDS, Kind, is_json

PROPERTY = settings(  # fewer examples than usual: each one is a whole task
    max_examples=settings().max_examples // 3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
JSON_TYPES = {ColumnType.OBJECT, ColumnType.ARRAY, ColumnType.ANY}
NUMERIC = {ColumnType.INTEGER, ColumnType.DECIMAL, ColumnType.NUMBER}
Records = list[dict[str, str]]
JSON_LAYOUTS: dict[str, Callable[[list[str]], str]] = {
    "lines": "\n".join,
    "lines with returns": lambda texts: "".join(f"{text}\r\n" for text in texts),
    "array": lambda texts: "[\n" + ",\n  ".join(texts) + "\n]\n",
    "documents": "\n\n".join,
    "documents in one line": " ".join,
}


def land_in_two_files(
    task: TaskFixture, texts: list[str], write: Callable[[list[str]], bytes], at: int
) -> None:
    """Land records as two files; the second may have none."""
    task.land(write(texts[: at + 1]))
    if texts[at + 1 :]:
        task.land(write(texts[at + 1 :]))


def has_lone_surrogate(text: str) -> bool:
    """Return whether a JSON text has half of a surrogate pair."""
    return "\\" in text and _has_lone_surrogate(parse_json_exactly(text))


def _has_lone_surrogate(value: Any) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= char <= "\udfff" for char in value)
    return isinstance(value, (list, tuple)) and any(map(_has_lone_surrogate, value))


def is_same_number(value: Any, text: str, column: Column) -> bool:
    """Return whether a value read back is the number that was written."""
    if column.type is ColumnType.INTEGER:
        return type(value) is int and value == Decimal(text)
    if column.type is ColumnType.DECIMAL:
        return isinstance(value, Decimal) and value == Decimal(text)
    is_equal = type(value) is float and Decimal(repr(value)) == Decimal(text)
    is_signed = text.startswith("-") and not text.lstrip("-").isdigit()
    return is_equal and (not is_signed or math.copysign(1, value) < 0)


def is_same_json_value(value: Any, text: str | None, column: Column) -> bool:
    """Return whether a cell of parquet or Arrow equals a JSON value."""
    if text is None or text == "null":
        return value is None
    if column.type in JSON_TYPES:
        return bool(parse_json_exactly(value) == parse_json_exactly(text))
    if column.type in NUMERIC:
        return is_same_number(value, text, column)
    expected = {"true": True, "false": False}.get(text) if text in {"true", "false"} else None
    return bool(value == (parse_json_exactly(text) if expected is None else expected))


@pytest.mark.parametrize("output", Format)
@PROPERTY
@given(
    records=json_strategies.records(),
    layout=st.sampled_from(sorted(JSON_LAYOUTS)),
    blank=st.sampled_from(["", " "]),
    compress=st.sampled_from([bytes, *COMPRESSORS.values()]),
    at=st.integers(0, 5),
)
def test_json_values_round_trip(
    output: Format,
    records: Records,
    layout: str,
    blank: str,
    compress: Callable[[bytes], bytes],
    at: int,
) -> None:
    """JSON lines keep the text; columns hold exact values or JSON text."""
    texts = [json_strategies.text_of(record, blank=blank) for record in records]
    good = [
        number
        for number, text in enumerate(texts)
        if not has_lone_surrogate(text) and not any("\0" in name for name in records[number])
    ]

    def write(some: list[str]) -> bytes:
        return compress(JSON_LAYOUTS[layout](some).encode())

    with TemporaryDirectory() as folder:
        task = quarantining_task(Path(folder), SourceFormat.AUTO, output)
        land_in_two_files(task, texts, write, at)
        report, schema = encode_with_inferred_schema(task)
        assert [item.bad_file for item in report.items] == [None] * len(task.items)
        assert len(report.bad_records) == len(texts) - len(good)
        if output is Format.JSONL:
            assert lines_of(report) == [texts[number].replace("\r", " ") for number in good]
            return
        rows = rows_of(report)
    assert len(rows) == len(good)
    for row, number in zip(rows, good, strict=True):
        for column in schema.columns:
            written = records[number].get(column.name)
            assert is_same_json_value(row[column.name], written, column), (column, written, row)


CSV_CELLS = {
    "integers": json_strategies.INTEGERS,
    "short integers": json_strategies.SHORT_INTEGERS,
    "prices": json_strategies.PRICES,
    "numbers": st.one_of(json_strategies.SHORT_INTEGERS, json_strategies.NUMBERS),
    "odd": st.sampled_from(["007", "+1", " 1", "1.", ".5", "1_000", "NaN", "0x1", "true", "-"]),
    "text": st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8),
    "all": st.one_of(
        json_strategies.INTEGERS, json_strategies.NUMBERS, st.sampled_from(["x", "", "1,5"])
    ),
}
CSV_NAMES = st.sampled_from(["a", "b", "ä", "a b", "a,b", 'q"q', "two\nlines", "007", "{", "[1]"])
Cell = str | None


@st.composite
def csv_tables(draw: st.DrawFn) -> tuple[list[str], list[list[Cell]]]:
    """Draw columns of one kind each; None is an unquoted empty cell, never in the first column."""
    kinds = draw(
        st.dictionaries(CSV_NAMES, st.sampled_from(sorted(CSV_CELLS)), min_size=1, max_size=4)
    )
    cells = [
        st.one_of(CSV_CELLS[kind], st.none()) if number else CSV_CELLS[kind]
        for number, kind in enumerate(kinds.values())
    ]
    return list(kinds), draw(st.lists(st.tuples(*cells).map(list), min_size=1, max_size=8))


def csv_cell(cell: Cell, *, quoted: bool) -> str:
    if cell is None:
        return ""
    if quoted or cell == "" or set(cell) & set(',"\r\n'):
        return '"' + cell.replace('"', '""') + '"'
    return cell


@pytest.mark.parametrize("output", Format)
@PROPERTY
@given(
    table=csv_tables(),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    quoted=st.booleans(),
    compress=st.sampled_from([bytes, *COMPRESSORS.values()]),
    at=st.integers(0, 7),
)
def test_csv_cells_round_trip(
    output: Format,
    table: tuple[list[str], list[list[Cell]]],
    end: str,
    quoted: bool,
    compress: Callable[[bytes], bytes],
    at: int,
) -> None:
    """Numbers keep their digits or exact value; everything else is the cell's text."""
    names, rows = table
    header = ",".join(csv_cell(name, quoted=quoted) for name in names)
    texts = [",".join(csv_cell(cell, quoted=quoted) for cell in row) for row in rows]

    def write(some: list[str]) -> bytes:
        return compress("".join(line + end for line in [header, *some]).encode())

    with TemporaryDirectory() as folder:
        task = quarantining_task(Path(folder), SourceFormat.CSV, output)
        land_in_two_files(task, texts, write, at)
        report, schema = encode_with_inferred_schema(task)
        assert [item.bad_file for item in report.items] == [None] * len(task.items)
        is_text = output is Format.JSONL
        records = list(map(fields_of, lines_of(report))) if is_text else rows_of(report)
    assert len(records) == len(rows)
    for record, row in zip(records, rows, strict=True):
        assert list(record) == names
        for column, cell in zip(schema.columns, row, strict=True):
            assert is_same_cell(record[column.name], cell, column, is_text=is_text), (column, cell)


def is_same_cell(value: Any, cell: Cell, column: Column, *, is_text: bool) -> bool:
    """Return whether a value, a JSON one if `is_text`, equals a csv cell."""
    if cell is None:
        return value is None
    if column.type not in NUMERIC:
        return column.type is ColumnType.STRING and value == cell
    if not JSON_NUMBER.fullmatch(cell):
        return False
    if is_text:
        return bool(value == ("number", cell))
    return is_same_number(value, cell, column)


NAMES = st.sampled_from(["a", "b", "A", "ä", "a b", "a.b", 'q"q', "date"])
AVRO_NAMES = st.sampled_from(["a", "b", "A", "_c", "date"])
Columns = dict[str, tuple[Kind, list[Any]]]


@st.composite
def columns(draw: st.DrawFn, *, avro: bool) -> Columns:
    """Draw columns of one kind each, with the same number of values or nulls."""
    kinds = sorted(name for name, kind in KINDS.items() if kind.avro is not None or not avro)
    names = AVRO_NAMES if avro else NAMES
    chosen = draw(st.dictionaries(names, st.sampled_from(kinds), min_size=1, max_size=4))
    count = draw(st.integers(1, 6))
    return {
        name: (
            KINDS[kind],
            draw(
                st.lists(st.one_of(KINDS[kind].values, st.none()), min_size=count, max_size=count)
            ),
        )
        for name, kind in chosen.items()
    }


def parquet_of(given_columns: Columns, compression: str) -> bytes:
    """Write a parquet file with Arrow, in row groups of four."""
    arrays = {name: pa.array(values, kind.arrow) for name, (kind, values) in given_columns.items()}
    return parquet(pa.table(arrays), compression=compression, row_group_size=4)


def avro(given_columns: Columns, codec: str) -> bytes:
    fields = [
        {"name": name, "type": ["null", _named(kind.avro, name)]}
        for name, (kind, _) in given_columns.items()
    ]
    values = zip(*(values for _, values in given_columns.values()), strict=True)
    records = [dict(zip(given_columns, row, strict=True)) for row in values]
    file = io.BytesIO()
    schema = {"type": "record", "name": "outer", "fields": fields}
    fastavro.writer(file, schema, records, codec=codec)
    return file.getvalue()


def _named(kind: Any, name: str) -> Any:
    return kind | {"name": f"in_{name}"} if "fields" in kind else kind


def is_beyond_orc(value: Any) -> bool:
    """Return whether a timestamp exceeds 64 bits of nanoseconds."""
    return isinstance(value, datetime) and not 1678 <= value.year <= 2261


def assert_round_trip(data: bytes, expected: Columns, output: Format) -> None:
    """Encode a file and compare each written value."""
    if output is Format.ORC:
        assume(not any(map(is_beyond_orc, chain(*(values for _, values in expected.values())))))
    with TemporaryDirectory() as folder:
        task = quarantining_task(Path(folder), SourceFormat.AUTO, output)
        task.land(data)
        report, _ = encode_with_inferred_schema(task)
        assert (report.items[0].bad_file, report.bad_records) == (None, ())
        is_text = output is Format.JSONL
        records = list(map(fields_of, lines_of(report))) if is_text else rows_of(report)
    for name, (kind, values) in expected.items():
        is_same = is_json if is_text else kind.is_same
        for record, value in zip(records, values, strict=True):
            if value is None:
                assert record[name] is None
            else:
                assert is_same(record[name], value), (kind.arrow, record[name], value)


@pytest.mark.parametrize("output", Format)
@PROPERTY
@given(given_columns=columns(avro=False), compression=st.sampled_from(["none", "snappy", "zstd"]))
def test_parquet_values_round_trip(
    output: Format, given_columns: Columns, compression: str
) -> None:
    assert_round_trip(parquet_of(given_columns, compression), given_columns, output)


@pytest.mark.parametrize("output", Format)
@PROPERTY
@given(given_columns=columns(avro=True), codec=st.sampled_from(["null", "deflate"]))
def test_avro_values_round_trip(output: Format, given_columns: Columns, codec: str) -> None:
    assert_round_trip(avro(given_columns, codec), given_columns, output)
