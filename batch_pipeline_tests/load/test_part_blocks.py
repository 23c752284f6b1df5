"""Reading part files for a load; all JSON line readers return the same values."""

import json
import re
from collections.abc import Iterator
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batch_pipeline.load.part_blocks import Block, LineReader, read_blocks
from batch_pipeline.load.types import IncompatibleValueError
from batch_pipeline_tests.factories import manifest
from batch_pipeline_tests.published_files import PARQUET, described, schema_of

SCHEMA = schema_of(
    boolean="boolean",
    integer="integer",
    decimal="decimal(20,5)",
    number="number",
    text="string",
    binary="binary",
    date="date",
    time="time",
    instant="timestamp",
    local="local_timestamp",
    nothing="unknown",
)
_TEXTS = st.text(st.characters(codec="utf-8")).map(json.dumps)
_DIGITS = st.integers(-(10**15) + 1, 10**15 - 1).map(str)
_ZONES = st.sampled_from(["Z", "+00:00", "-11:30", "+05"])
_FRACTIONS = st.sampled_from(["", ".1", ".123456", ".123456000"])
_DATETIMES = st.datetimes().map(lambda value: value.replace(microsecond=0).isoformat())
# JSON texts by column, as written by our own writer and by others.
VALUES: dict[str, st.SearchStrategy[str]] = {
    "boolean": st.sampled_from(["true", "false"]),
    "integer": st.integers(-(2**63), 2**63 - 1).map(str) | st.just("-0"),
    "decimal": _DIGITS | st.builds("{}.{}".format, _DIGITS, st.integers(0, 99999)),
    "number": st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.integers(-(10**25), 10**25).map(str)
    | st.sampled_from(["1E5", "-0.0", "1e-400"]),
    "text": _TEXTS | st.text(st.characters(codec="ascii")).map(json.dumps),
    "binary": st.sampled_from(['""', '"AA=="', '"AP8="']),
    "date": st.dates().map(lambda value: f'"{value.isoformat()}"'),
    "time": st.builds('"{}{}"'.format, st.sampled_from(["00:00:00", "23:59:59"]), _FRACTIONS),
    "instant": st.builds('"{}{}{}"'.format, _DATETIMES, _FRACTIONS, _ZONES),
    "local": st.builds('"{}{}"'.format, _DATETIMES, _FRACTIONS),
    "nothing": st.just("null"),
}


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """Records with absent or null columns, in any order and with optional spaces."""
    written = []
    for _ in range(draw(st.integers(1, 8))):
        fields = draw(st.fixed_dictionaries({}, optional=VALUES))
        names = draw(st.permutations(list(fields)))
        nulls = draw(st.sets(st.sampled_from(list(VALUES))))
        space = draw(st.sampled_from(["", " "]))
        texts = (f'"{name}":{space}{"null" if name in nulls else fields[name]}' for name in names)
        written.append("{" + f"{space},".join(texts) + "}\n")
    return "".join(written).encode()


@given(text=lines())
def test_all_readers_return_the_values_of_the_text(text: bytes) -> None:
    reader = LineReader(SCHEMA)
    rows = reader.read_carefully(text).to_pylist()
    for row, line in zip(rows, text.decode().split("\n"), strict=False):
        record: dict[str, Any] = json.loads(line)
        for name in ("boolean", "integer", "number", "text"):
            value = record.get(name)
            if name == "number" and value is not None:
                value = float(value)
            assert row[name] == value
    careful = [repr(row) for row in rows]
    if not re.search(rb"[0-9][eE]", text):  # an exponent allows any number of digits
        assert [repr(row) for row in reader.read_columns(text).to_pylist()] == careful
    assert [repr(row) for row in reader.read_records(text).to_pylist()] == careful


@pytest.mark.parametrize("other", ["string", "object"])
@pytest.mark.parametrize(
    ("kind", "text"),
    [("number", "9" * 400), ("number", "-1e400"), ("decimal(38,10)", "9" * 400)],
    ids=["number", "exponent", "decimal"],
)
def test_number_out_of_range_is_rejected(kind: str, text: str, other: str) -> None:
    reader = LineReader(schema_of(a=kind, b=other))
    with pytest.raises(IncompatibleValueError, match=f"is not of type {kind[:7]}"):
        reader.read(f'{{"a":1.5}}\n{{"a":{text}}}\n'.encode())


@given(
    text=st.integers(-(10**45), 10**45).map(str)
    | st.builds("{}e{}".format, st.integers(-999, 999), st.integers(-30, 50)),
    scale=st.integers(0, 38),
    other=st.sampled_from(["string", "object"]),
)
@example(text="-999999999999999999990000000001", scale=10, other="string")
@example(text="1e29", scale=30, other="string")
@example(text="0e39", scale=0, other="string")
@example(text="0.1" + 38 * "0", scale=0, other="string")
@example(text="2" + 38 * "5", scale=0, other="object")
@example(text="2" + 37 * "5" + ".1", scale=1, other="string")
@example(text="4" + 37 * "9", scale=1, other="string")
def test_decimal_is_exact_or_rejected(text: str, scale: int, other: str) -> None:
    reader = LineReader(schema_of(a=f"decimal(38,{scale})", b=other))
    try:
        batch = reader.read(f'{{"a":0.0}}\n{{"a":{text}}}\n'.encode())
    except IncompatibleValueError:
        number = Decimal(text)
        exponent = number.normalize(Context(prec=50)).as_tuple().exponent
        # The position of the first digit, which even 0e39 has.
        assert number.adjusted() >= 38 - scale or -int(exponent) > scale
        return
    assert batch.column("a").to_pylist() == [0, Decimal(text)]


def test_objects_keep_their_json_text() -> None:
    text = b'{"n":1,"o":{"b": 1.10, "a":[12345678901234567890123]}}\n{"o":null}\n\n{"n":2}\n'
    batch = LineReader(schema_of(o="object", n="integer")).read(text)
    expected = ['{"b": 1.10, "a":[12345678901234567890123]}', None, None]
    assert batch.column("o").to_pylist() == expected
    assert batch.column("n").to_pylist() == [1, None, 2]


def test_column_with_a_quote_in_its_name_is_read_beside_objects() -> None:
    schema = schema_of(**{"o": "any", '"': "integer"})
    batch = LineReader(schema).read(b'{"\\"":1,"o":[2]}\n')
    assert [array.to_pylist() for array in batch.columns] == [["[2]"], [1]]


def test_records_without_columns_are_counted() -> None:
    reader = LineReader(schema_of())
    for read in (reader.read, reader.read_columns, reader.read_records, reader.read_carefully):
        assert read(b"{}\n{}\n").num_rows == 2


@pytest.mark.parametrize(
    ("line", "column"),
    [('{"integer":1.5}', "integer"), ('{"nothing":1}', "nothing"), ('{"other":1}', "other")],
)
def test_incompatible_value_is_reported_with_row_and_column(line: str, column: str) -> None:
    with pytest.raises(IncompatibleValueError) as raised:
        LineReader(SCHEMA).read(f"{{}}\n{line}\n".encode())
    assert (raised.value.row, raised.value.column) == (1, column)


def blocks_of(path: Path, table: pa.Table, *columns: str) -> Iterator[Block]:
    """Write a parquet file and read the blocks of these columns."""
    pq.write_table(table, path)
    part = described(path, table.num_rows)
    schema = schema_of(**dict.fromkeys(columns, "integer"))
    return read_blocks(manifest(encoding=PARQUET, schema=schema, part_files=(part,)))


def test_blocks_of_a_parquet_file_are_numbered_by_record(tmp_path: Path) -> None:
    blocks = blocks_of(tmp_path / "part", pa.table({"order_id": range(5_000)}), "order_id")
    starts = [(block.first, block.read()["order_id"][0].as_py()) for block in blocks]
    assert starts == [(1, 0), (4_097, 4_096)]


def test_absent_or_empty_parquet_column_is_null(tmp_path: Path) -> None:
    table = pa.table({"order_id": [1, 2], "empty": pa.nulls(2, pa.string())})
    (block,) = blocks_of(tmp_path / "part", table, "order_id", "empty", "absent")
    nulls = [None, None]
    assert block.read().to_pydict() == {"order_id": [1, 2], "empty": nulls, "absent": nulls}
    (block,) = blocks_of(tmp_path / "part", table)
    assert block.read().num_rows == 2
