"""Parquet and Arrow part files, as pyarrow reads them: types, sizes, checksums, same bytes."""

from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.writers.columns import (
    RowGroupWriter,
    TableRows,
    batch_of_table,
    output_schema,
)
from batch_pipeline.model.encoding import PART_FORMATS, Compression, Encoding, Format
from batch_pipeline.model.errors import StorageUnavailableError
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.stream import PartLimits
from batch_pipeline.storage.part_formats import table_codec
from batch_pipeline_tests.encode.writers.part_factories import (
    ALL_TYPES,
    TYPED_VALUES,
    content,
    files_up_to,
    list_files,
    names,
    schema,
    typed,
)

ENCODINGS = [
    Encoding(format=Format.PARQUET, compression=Compression.NONE),
    Encoding(format=Format.PARQUET, compression=Compression.SNAPPY),
    *(
        Encoding(format=Format.PARQUET, compression=Compression.GZIP, level=level)
        for level in (None, *range(10))
    ),
    *(
        Encoding(format=file_format, compression=Compression.ZSTD, level=level)
        for file_format in (Format.PARQUET, Format.ARROW)
        for level in (None, 1, 3, 19)
    ),
    *(
        Encoding(format=Format.ORC, compression=compression)
        for compression in PART_FORMATS[Format.ORC].compressions
    ),
    Encoding(format=Format.ARROW, compression=Compression.NONE),
]
SNAPPY = ENCODINGS[1]
ORC = Encoding(format=Format.ORC, compression=Compression.ZSTD)
ARROW = ENCODINGS[-1]


def shown(encoding: Encoding) -> str:
    """Name an encoding in the list of tests."""
    return f"{encoding.format}-{encoding.compression}-{encoding.level}"


def written(
    root: Path,
    batches: list[pa.RecordBatch],
    encoding: Encoding = SNAPPY,
    limits: PartLimits | None = None,
) -> list[bytes]:
    """Write batches to part files and give the bytes of each."""
    root.mkdir(exist_ok=True)
    writer = RowGroupWriter(names(root, encoding.suffix), limits or PartLimits(), encoding)
    for batch in batches:
        writer.append(TableRows.of(batch))
    parts = writer.close()
    files = list(map(content, parts))
    assert [read(file, encoding).num_rows for file in files] == [part.records for part in parts]
    return files


def read(file: bytes, encoding: Encoding = SNAPPY) -> pa.Table:
    """Read a part file, with its checksums where it has some."""
    buffer = pa.BufferReader(file)
    if encoding.format is Format.ARROW:
        return pa.ipc.open_file(buffer).read_all()
    if encoding.format is Format.ORC:
        with NamedTemporaryFile() as copy:
            copy.write(file)
            copy.flush()
            batches = table_codec(Format.ORC).read_batches(Path(copy.name), None, 1_000)
            return pa.Table.from_batches(batches)
    return pq.read_table(buffer, page_checksum_verification=True)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=shown)
def test_part_file_of_any_encoding_reads_back_typed_and_is_always_the_same(
    tmp_path: Path, encoding: Encoding
) -> None:
    """Expect all types and nulls as they were, and the same bytes when written again."""
    known = schema(**ALL_TYPES)
    arrow_schema = output_schema(known, encoding.format)
    batch = batch_of_table(typed(), known, arrow_schema, OnNonfinite.QUARANTINE)

    [first] = written(tmp_path / "first", [batch], encoding)
    [second] = written(tmp_path / "second", [batch], encoding)

    assert read(first, encoding).to_pydict() == TYPED_VALUES
    assert read(first, encoding).schema.names == list(ALL_TYPES)
    assert first == second


@pytest.mark.parametrize("file_format", [Format.PARQUET, Format.ARROW])
def test_part_file_of_a_harder_level_is_smaller(tmp_path: Path, file_format: Format) -> None:
    """Levels mean something in tables, too; none is the first."""
    batch = pa.record_batch({"s": [f"number {number * number}" for number in range(5_000)]})
    sizes = []
    for level in (None, 1, 19):
        encoding = Encoding(format=file_format, compression=Compression.ZSTD, level=level)
        [file] = written(tmp_path / str(level), [batch], encoding)
        sizes.append(len(file))

    assert sizes[0] == sizes[1] > sizes[2]


def test_parquet_file_says_which_columns_hold_json(tmp_path: Path) -> None:
    """Such columns are plain strings, whose metadata say more to those who ask."""
    arrow_schema = output_schema(schema(a="object", b="string"), Format.PARQUET)
    [file] = written(tmp_path, [pa.record_batch([["{}"], ["{}"]], schema=arrow_schema)])

    nested, plain = pq.read_schema(pa.BufferReader(file))

    assert (nested.type, plain.type) == (pa.string(), pa.string())
    assert nested.metadata[b"content_type"] == b"application/json"
    assert b"content_type" not in (plain.metadata or {})


def test_arrow_file_has_json_columns_of_the_type_that_readers_know(tmp_path: Path) -> None:
    """Readers that know Arrow's JSON type find it, so nested values need not stay text."""
    arrow_schema = output_schema(schema(a="object"), Format.ARROW)
    [file] = written(tmp_path, [pa.record_batch([["{}"]], schema=arrow_schema)], ARROW)

    assert read(file, ARROW).schema.field("a").type == pa.json_()


@pytest.mark.parametrize("encoding", [SNAPPY, ARROW, ORC], ids=shown)
@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (PartLimits(max_records=2), [2, 2, 1]),
        (PartLimits(max_bytes=3 * 8), [3, 2]),
        (PartLimits(max_bytes=3 * 8 - 1), [2, 2, 1]),
        (PartLimits(max_bytes=1), [1, 1, 1, 1, 1]),
    ],
)
def test_table_writer_with_limits_cuts_at_whole_records(
    tmp_path: Path, encoding: Encoding, limits: PartLimits, expected: list[int]
) -> None:
    """A part file ends before the record that would exceed a limit; one record always fits."""
    batch = pa.record_batch({"i": pa.array(range(5), pa.int64())})

    tables = [read(file, encoding) for file in written(tmp_path, [batch], encoding, limits)]

    assert [table.num_rows for table in tables] == expected
    assert [row["i"] for table in tables for row in table.to_pylist()] == [0, 1, 2, 3, 4]


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
def test_table_writer_however_rows_arrive_writes_the_same_bytes_within_the_limits(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[int | None],
    cuts: list[int],
    max_records: int,
    max_bytes: int,
    encoding: Encoding,
) -> None:
    """Part files depend on the records alone, and only a single record may be too big."""
    numbers = pa.array(values, pa.int64())
    text, odd = (
        numbers.cast(pa.string()),
        pa.array([None if value is None else value % 2 == 1 for value in values], pa.bool_()),
    )
    batch = pa.record_batch({"i": numbers, "s": text, "b": odd})
    limits = PartLimits(max_records=max_records, max_bytes=max_bytes)
    pieces = [
        batch.slice(int(piece[0]), len(piece))
        for piece in np.split(np.arange(len(values)), sorted(cuts))
        if len(piece)
    ]

    whole = written(tmp_path_factory.mktemp("whole"), [batch], encoding, limits)
    pieced = written(tmp_path_factory.mktemp("pieced"), pieces, encoding, limits)

    tables = [read(file, encoding) for file in whole]
    assert whole == pieced
    assert [row for table in tables for row in table.to_pylist()] == batch.to_pylist()
    for table in tables:
        size_bytes = sum(8 + 4 + len(text or "") + 1 for text in table["s"].to_pylist())
        assert table.num_rows <= max_records
        assert size_bytes <= max_bytes or table.num_rows == 1


@pytest.mark.parametrize("encoding", [SNAPPY, ARROW, ORC], ids=shown)
def test_table_writer_with_rows_of_many_pages_ends_these_at_the_same_rows(
    tmp_path: Path, encoding: Encoding
) -> None:
    """A file of 5 MB is the same when its rows came one block after the other."""
    batch = pa.record_batch({"s": [f"{number:0100}" for number in range(50_000)]})
    pieces = [batch.slice(start, 700) for start in range(0, 50_000, 700)]

    whole = written(tmp_path / "whole", [batch], encoding)

    assert written(tmp_path / "pieces", pieces, encoding) == whole


def test_table_writer_with_many_bytes_closes_a_row_group_before_it_has_32_mib(
    tmp_path: Path,
) -> None:
    """Rows are not held back without end: 5 rows of 10 MiB make groups of 3 and 2."""
    row = pa.record_batch({"s": ["x" * 10 * 2**20]})

    [file] = written(tmp_path, [row] * 5)

    groups = pq.read_metadata(pa.BufferReader(file))
    assert [groups.row_group(index).num_rows for index in range(groups.num_row_groups)] == [3, 2]


def test_parquet_file_has_dictionaries_only_where_values_come_again(tmp_path: Path) -> None:
    """A dictionary of values that are all different would cost time and room."""
    numbers = range(10_000)
    columns: dict[str, Any] = {
        "unique": [f"number {number}" for number in numbers],
        "repeated": [f"number {number % 100}" for number in numbers],
        "null": pa.nulls(10_000, pa.string()),
    }

    [file] = written(tmp_path, [pa.record_batch(columns)])

    group = pq.read_metadata(pa.BufferReader(file)).row_group(0)
    has_dictionary = [group.column(index).has_dictionary_page for index in range(3)]
    assert has_dictionary == [False, True, True]


def test_parquet_file_that_was_damaged_is_told_by_its_checksums(tmp_path: Path) -> None:
    """A byte that changes within a page is noticed by whoever verifies."""
    [file] = written(
        tmp_path,
        [pa.record_batch({"s": ["here I am"]})],
        Encoding(format=Format.PARQUET, compression=Compression.NONE),
    )

    with pytest.raises(OSError, match="CRC"):
        read(file.replace(b"\x09\0\0\0here I am", b"\x09\0\0\0here I an"))


def test_arrow_file_holds_nothing_of_what_lay_below_nulls(tmp_path: Path) -> None:
    """Values that are not there any more are no part of the file, whatever memory held."""
    secret = pa.array([1, 0x1122334455667788])
    hidden = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), secret.buffers()[1]])

    [file] = written(tmp_path, [pa.record_batch({"i": hidden})], ARROW)

    assert read(file, ARROW)["i"].to_pylist() == [1, None]
    assert bytes.fromhex("8877665544332211") not in file


@pytest.mark.parametrize("encoding", [SNAPPY, ARROW, ORC], ids=shown)
def test_table_writer_when_aborted_leaves_nothing(tmp_path: Path, encoding: Encoding) -> None:
    """Finished files and the open one are removed, whether or not it has a row group."""
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


@pytest.mark.parametrize("encoding", [SNAPPY, ARROW, ORC], ids=shown)
def test_table_writer_without_room_for_a_file_says_so_and_leaves_nothing(
    tmp_path: Path, encoding: Encoding
) -> None:
    """An error in the middle of a file is the storage's, and can be cleaned up after."""
    numbers = pa.record_batch({"i": np.random.default_rng(1).integers(0, 2**62, 10_000)})
    writer = RowGroupWriter(names(tmp_path, encoding.suffix), PartLimits(), encoding)
    writer.append(TableRows.of(numbers))

    with files_up_to(2**10), pytest.raises(StorageUnavailableError, match="File too large"):
        writer.close()
    writer.abort()

    assert list_files(tmp_path) == []
