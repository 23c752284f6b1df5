"""Columns of an output and their part files, read with pyarrow: types, sizes, reproducibility."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.writers.columns import (
    RowGroupWriter,
    TableBuffer,
    TableRows,
    batch_of_table,
    output_schema,
)
from batch_pipeline.model.encoding import PART_FORMATS, Compression, Encoding, Format
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.stream import PartLimits
from batch_pipeline_tests.encode.task_fixture import read_part
from batch_pipeline_tests.encode.writers.part_factories import (
    ALL_TYPES,
    TYPED_VALUES,
    content,
    list_files,
    names,
    schema,
    table,
    typed,
)


def test_columns_of_any_type_have_json_text_in_schema_order() -> None:
    known = schema(late="date", f="any", d="any", s="any", j="any", t="any")
    mixed = pa.record_batch(
        {
            "t": ["1", None],
            "j": ['{"a": 1}', None],
            "s": ['"', None],
            "d": [date(2026, 1, 31), None],
            "f": [math.nan, 1.0],
        }
    )
    records = replace(table(mixed, json=frozenset("j")), text=frozenset("t"))

    batch = batch_of_table(records, known, output_schema(known, Format.PARQUET), OnNonfinite.NULL)

    batch.validate(full=True)
    first = [None, None, '"2026-01-31"', '"\\""', '{"a": 1}', '"1"']
    assert [list(row.values()) for row in batch.to_pylist()] == [
        first,
        [None, "1.0", None, None, None, None],
    ]


def test_table_rows_count_bytes_of_values() -> None:
    batch = pa.record_batch(
        {
            "s": ["left out", "ö", None, "x"],
            "b": pa.array([b"", b"12", b"", None], pa.binary()),
            "i": pa.array([1, 2, 3, None], pa.int64()),
            "f": [True, True, None, False],
        }
    )

    rows = TableRows.of(batch.slice(1))

    fixed = 4 + 4 + 8 + 1
    assert list(rows.ends) == [fixed + 2 + 2, 2 * fixed + 4, 3 * fixed + 5]
    assert list(rows.between(1, 3).ends) == [fixed, 2 * fixed + 1]
    assert rows.between(1, 3).batch.equals(batch.slice(2))


def buffered(tables: Sequence[Table]) -> list[Table]:
    """Return the tables that a buffer combines these into."""
    buffer = TableBuffer()
    return [*(full for table in tables for full in buffer.add(table)), *buffer.flush()]


def test_table_buffer_combines_tables_of_one_schema_in_order() -> None:
    tables = [table(pa.record_batch({name: [at]})) for at in range(100) for name in "ab"[at // 90]]

    rows = [one.batch.to_pydict() for one in buffered(tables)]

    assert rows == [{"a": list(range(90))}, {"b": list(range(90, 100))}]


def test_table_buffer_separates_text_cells_from_typed_columns() -> None:
    batch = pa.record_batch({"a": ["1"]})
    tables = [table(batch), table(batch, text=True)]
    assert [one.text for one in buffered(tables)] == [one.text for one in tables]


LEVELLED = (Compression.GZIP, Compression.ZSTD)
ENCODINGS = [
    Encoding(format=file_format, compression=compression, level=level)
    for file_format in (Format.PARQUET, Format.ARROW, Format.ORC)
    for compression in PART_FORMATS[file_format].compressions
    for level in (None, 1, 9)
    if level is None or (PART_FORMATS[file_format].has_levels and compression in LEVELLED)
]
SNAPPY = Encoding(format=Format.PARQUET, compression=Compression.SNAPPY)
ORC = Encoding(format=Format.ORC, compression=Compression.ZSTD)
ARROW = Encoding(format=Format.ARROW, compression=Compression.NONE)


def encoding_id(encoding: Encoding) -> str:
    return f"{encoding.format}-{encoding.compression}-{encoding.level}"


def write_parts(
    root: Path,
    batches: list[pa.RecordBatch],
    encoding: Encoding = SNAPPY,
    limits: PartLimits | None = None,
) -> tuple[PartFile, ...]:
    root.mkdir(exist_ok=True)
    writer = RowGroupWriter(names(root, encoding.suffix), limits or PartLimits(), encoding)
    for batch in batches:
        writer.append(TableRows.of(batch))
    parts = writer.close()
    assert [read_part(part).num_rows for part in parts] == [part.records for part in parts]
    return parts


@pytest.mark.parametrize("encoding", ENCODINGS, ids=encoding_id)
def test_part_file_of_any_encoding_round_trips_and_is_reproducible(
    tmp_path: Path, encoding: Encoding
) -> None:
    known = schema(**ALL_TYPES)
    arrow_schema = output_schema(known, encoding.format)
    batch = batch_of_table(typed(), known, arrow_schema, OnNonfinite.QUARANTINE)

    [first] = write_parts(tmp_path / "first", [batch], encoding)
    [second] = write_parts(tmp_path / "second", [batch], encoding)

    assert read_part(first).to_pydict() == TYPED_VALUES
    assert read_part(first).schema.names == list(ALL_TYPES)
    assert content(first) == content(second)


@pytest.mark.parametrize("file_format", [Format.PARQUET, Format.ARROW])
def test_part_file_of_higher_level_is_smaller(tmp_path: Path, file_format: Format) -> None:
    batch = pa.record_batch({"s": [f"number {number * number}" for number in range(5_000)]})
    sizes = []
    for level in (None, 1, 19):
        encoding = Encoding(format=file_format, compression=Compression.ZSTD, level=level)
        [part] = write_parts(tmp_path / str(level), [batch], encoding)
        sizes.append(part.size_bytes)

    assert sizes[0] == sizes[1] > sizes[2]


@settings(deadline=None, max_examples=25)
@given(
    values=st.lists(st.none() | st.integers(0, 10**12), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    max_records=st.integers(1, 10),
    max_bytes=st.integers(1, 100),
    encoding=st.sampled_from([SNAPPY, ARROW, ORC]),
)
@example(values=[5, None, 7], cuts=[1, 2], max_records=3, max_bytes=100, encoding=SNAPPY)
@example(values=[5, None, 7], cuts=[1, 2], max_records=3, max_bytes=100, encoding=ARROW)
@example(values=[5, 67, 890], cuts=[], max_records=1, max_bytes=100, encoding=ARROW)
@example(values=[5, None, 7], cuts=[1, 2], max_records=3, max_bytes=100, encoding=ORC)
@example(values=[0, 0, None], cuts=[1], max_records=2, max_bytes=28, encoding=ARROW)
def test_table_writer_bytes_do_not_depend_on_batch_sizes(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[int | None],
    cuts: list[int],
    max_records: int,
    max_bytes: int,
    encoding: Encoding,
) -> None:
    numbers = pa.array(values, pa.int64())
    text, parity = (
        numbers.cast(pa.string()),
        pa.array([None if value is None else value % 2 == 1 for value in values], pa.bool_()),
    )
    batch = pa.record_batch({"i": numbers, "s": text, "b": parity})
    limits = PartLimits(max_records=max_records, max_bytes=max_bytes)
    pieces = [
        batch.slice(int(piece[0]), len(piece))
        for piece in np.split(np.arange(len(values)), sorted(cuts))
        if len(piece)
    ]

    whole = write_parts(tmp_path_factory.mktemp("whole"), [batch], encoding, limits)
    pieced = write_parts(tmp_path_factory.mktemp("pieced"), pieces, encoding, limits)

    tables = list(map(read_part, whole))
    assert list(map(content, whole)) == list(map(content, pieced))
    assert [row for table in tables for row in table.to_pylist()] == batch.to_pylist()
    for part in tables:
        size_bytes = sum(8 + 4 + len(text or "") + 1 for text in part["s"].to_pylist())
        assert part.num_rows <= max_records
        assert size_bytes <= max_bytes or part.num_rows == 1


@pytest.mark.parametrize("encoding", [SNAPPY, ARROW, ORC], ids=encoding_id)
def test_table_writer_pages_do_not_depend_on_batch_sizes(
    tmp_path: Path, encoding: Encoding
) -> None:
    batch = pa.record_batch({"s": [f"{number:0100}" for number in range(50_000)]})
    pieces = [batch.slice(start, 700) for start in range(0, 50_000, 700)]

    [whole] = write_parts(tmp_path / "whole", [batch], encoding)
    [pieced] = write_parts(tmp_path / "pieces", pieces, encoding)

    assert content(pieced) == content(whole)


def test_table_writer_limits_row_groups_to_32_mib(tmp_path: Path) -> None:
    row = pa.record_batch({"s": ["x" * 10 * 2**20]})

    [part] = write_parts(tmp_path, [row] * 5)

    groups = pq.read_metadata(to_path(part.uri))
    assert [groups.row_group(index).num_rows for index in range(groups.num_row_groups)] == [3, 2]


def test_arrow_file_has_no_data_behind_nulls(tmp_path: Path) -> None:
    secret = pa.array([1, 0x1122334455667788])
    hidden = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), secret.buffers()[1]])

    [part] = write_parts(tmp_path, [pa.record_batch({"i": hidden})], ARROW)

    assert read_part(part)["i"].to_pylist() == [1, None]
    assert bytes.fromhex("8877665544332211") not in content(part)


@pytest.mark.parametrize("encoding", [SNAPPY, ARROW, ORC], ids=encoding_id)
def test_aborted_table_writer_leaves_no_files(tmp_path: Path, encoding: Encoding) -> None:
    for group in (
        pa.record_batch({"i": [1, 2, 3, 4, 5]}),
        pa.record_batch({"i": ["x" * 2**24] * 5}),
    ):
        writer = RowGroupWriter(
            names(tmp_path, encoding.suffix), PartLimits(max_records=3), encoding
        )
        writer.append(TableRows.of(group))
        assert len(list_files(tmp_path)) == 2

        writer.abort()

        assert list_files(tmp_path) == []
