"""Writing part files: names, bounds, hashes, and JSON lines and parquet as readers read them."""

import gzip
import hashlib
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.domain.encoding import Compression
from batch_pipeline.domain.errors import StorageUnavailableError
from batch_pipeline.domain.location import to_path, to_uri
from batch_pipeline.domain.manifest import PartFile
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stream import PartLimits
from batch_pipeline.spark.write.json_lines import Lines, json_lines
from batch_pipeline.spark.write.parquet_writer import (
    ParquetPartWriter,
    arrow_schema,
    batch_of_cells,
    batch_of_rows,
)
from batch_pipeline.spark.write.part_writer import LinePartWriter, PartNames
from batch_pipeline_tests.concurrency import run_python

WRITE_ONE_PART = """
import sys
from pathlib import Path
from batch_pipeline.domain.location import to_path
from batch_pipeline_tests.unit.test_part_writer import PartLimits, written
written(Path(to_path(sys.argv[1])), [b"{}"], PartLimits())
"""

texts = st.text(
    alphabet=st.one_of(
        st.sampled_from('\0\b\t\n\f\r\x1f\x7f"\\/\u2028\ufeff😀'),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=8,
)


def names(root: Path, suffix: str = "jsonl.gz") -> PartNames:
    """Name the files of task 3."""
    return PartNames(
        root=to_uri(root), stem="orders-1", task=3, execution="00c0ffee", suffix=suffix
    )


def schema(**types: str) -> RecordSchema:
    """Make a schema of columns given as name=type."""
    return RecordSchema.from_json(list(types.items()))


def cells(**columns: list[str | None]) -> pa.RecordBatch:
    """Make a batch of text cells."""
    return pa.record_batch(
        {name: pa.array(column, pa.string()) for name, column in columns.items()}
    )


def in_folder(root: Path) -> list[str]:
    """List all files below a folder."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def content(part: PartFile) -> bytes:
    """Read a part file after checking its size and hash."""
    data = Path(to_path(part.uri)).read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (part.size_bytes, part.sha256)
    return data


def written(root: Path, records: list[bytes], limits: PartLimits) -> list[list[bytes]]:
    """Write records in one go and give the lines of each part file."""
    writer = LinePartWriter(names(root), Compression.GZIP, limits)
    writer.append(Lines.of(records))
    parts = writer.close()
    lines = [gzip.decompress(content(part)).splitlines() for part in parts]
    assert [part.records for part in parts] == list(map(len, lines))
    return lines


def test_line_writer_with_one_part_names_and_hashes_it(tmp_path: Path) -> None:
    """The name tells stem, task, part and execution; size and hash are those of the file."""
    writer = LinePartWriter(names(tmp_path), Compression.GZIP, PartLimits())

    writer.append(Lines.of([b'{"a":1}', b'{"a":2}']))
    assert in_folder(tmp_path) == [".orders-1-00030000-00c0ffee.jsonl.gz.tmp"]
    [part] = writer.close()

    assert in_folder(tmp_path) == ["orders-1-00030000-00c0ffee.jsonl.gz"]
    assert gzip.decompress(content(part)) == b'{"a":1}\n{"a":2}\n'
    assert part.records == 2
    flags_and_time = content(part)[3:8]
    assert flags_and_time == bytes(5)  # neither a time nor a name: same records, same bytes


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (PartLimits(max_records=2), [2, 2, 1]),
        (PartLimits(max_bytes=12), [3, 2]),
        (PartLimits(max_bytes=11), [2, 2, 1]),
        (PartLimits(max_bytes=1), [1, 1, 1, 1, 1]),
        (PartLimits(max_records=5), [5]),
    ],
)
def test_line_writer_with_limits_cuts_at_whole_records(
    tmp_path: Path, limits: PartLimits, expected: list[int]
) -> None:
    """A part file ends before the record that would exceed a limit; one record always fits."""
    records = [b"{1}", b"{2}", b"{3}", b"{4}", b"{5}"]  # 4 bytes each with the line feed

    parts = written(tmp_path, records, limits)

    assert [len(part) for part in parts] == expected
    assert [line for part in parts for line in part] == records


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 30), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    max_records=st.integers(1, 10),
    max_bytes=st.integers(1, 60),
)
def test_line_writer_however_lines_arrive_writes_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    cuts: list[int],
    max_records: int,
    max_bytes: int,
) -> None:
    """Part files depend on the records alone, not on the pieces in which they were given."""
    records = [b"x" * size for size in sizes]
    limits = PartLimits(max_records=max_records, max_bytes=max_bytes)
    hashes = []
    for bounds in ([], sorted(cuts)):
        writer = LinePartWriter(names(tmp_path_factory.mktemp("parts")), Compression.GZIP, limits)
        for piece in np.split(np.arange(len(records)), bounds):
            writer.append(Lines.of([records[index] for index in piece]))
        hashes.append([(part.sha256, part.records) for part in writer.close()])

    assert hashes[0] == hashes[1]


def test_line_writer_with_large_uncompressed_text_writes_it_whole(tmp_path: Path) -> None:
    """Text of many pieces arrives in order and complete."""
    records = [b"%07d" % number * 10 for number in range(50_000)]  # 3.5 MB
    writer = LinePartWriter(names(tmp_path, "jsonl"), Compression.NONE, PartLimits())
    for start in range(0, 50_000, 7_000):
        writer.append(Lines.of(records[start : start + 7_000]))

    [part] = writer.close()

    assert content(part).splitlines() == records


def test_line_writer_without_records_writes_no_file(tmp_path: Path) -> None:
    """No record, no part file."""
    assert LinePartWriter(names(tmp_path), Compression.GZIP, PartLimits()).close() == ()
    assert in_folder(tmp_path) == []


def test_line_writer_when_aborted_leaves_nothing(tmp_path: Path) -> None:
    """Finished files and the open one are removed."""
    writer = LinePartWriter(names(tmp_path), Compression.GZIP, PartLimits(max_records=1))
    writer.append(Lines.of([b"{}", b"{}", b"{}"]))
    assert len(in_folder(tmp_path)) == 3

    writer.abort()

    assert in_folder(tmp_path) == []


def test_line_writer_with_a_missing_root_says_that_storage_is_unavailable(tmp_path: Path) -> None:
    """The error names the root and the operating system's reason."""
    root = tmp_path / "gone"
    writer = LinePartWriter(names(root), Compression.GZIP, PartLimits())

    with pytest.raises(StorageUnavailableError) as raised:
        writer.append(Lines.of([b"{}"]))

    assert (raised.value.uri, raised.value.reason) == (to_uri(root), "No such file or directory")


def test_line_writer_with_a_file_of_that_name_leaves_it_alone(tmp_path: Path) -> None:
    """A hidden file that another run is writing is not touched."""
    theirs = tmp_path / ".orders-1-00030000-00c0ffee.jsonl.gz.tmp"
    theirs.write_bytes(b"theirs")
    writer = LinePartWriter(names(tmp_path), Compression.GZIP, PartLimits())

    with pytest.raises(StorageUnavailableError):
        writer.append(Lines.of([b"{}"]))
    writer.abort()

    assert theirs.read_bytes() == b"theirs"


def parsed(batch: pa.RecordBatch, known: RecordSchema) -> list[dict[str, Any]]:
    """Write cells as JSON lines and read them with the standard library."""
    lines = [line for piece in json_lines(batch, known) for line in bytes(piece.text).split(b"\n")]
    return [json.loads(line) for line in lines if line]


@settings(deadline=None)
@given(rows=st.lists(st.tuples(st.none() | texts, texts), min_size=1, max_size=6), name=texts)
@example(rows=[("\0", '\\"')], name='"\\\n')
def test_json_lines_with_any_text_reads_back_the_same(
    rows: list[tuple[str | None, str]], name: str
) -> None:
    """Whatever is in a cell or in a column's name, a JSON reader finds it again."""
    first, second = f"1{name}", f"2{name}"
    batch = pa.record_batch(
        [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows])],
        names=[first, second],
    )
    known = RecordSchema.from_json([(first, "string"), (second, "any")])

    assert parsed(batch, known) == [{first: one, second: two} for one, two in rows]


def test_json_lines_with_each_type_writes_cells_in_schema_order() -> None:
    """Numbers stand as they came, nulls and columns that are not there are null."""
    batch = cells(s=["x", None], n=["1.50", "-0"], i=[None, "12"], u=[None, None])
    known = schema(i="integer", n="number", late="string", s="string", u="unknown", o="object")

    [lines] = json_lines(batch, known)

    assert bytes(lines.text).splitlines() == [
        b'{"i":null,"n":1.50,"late":null,"s":"x","u":null,"o":null}',
        b'{"i":12,"n":-0,"late":null,"s":null,"u":null,"o":null}',
    ]
    assert list(lines.ends) == [58, len(bytes(lines.text))]


def test_json_lines_of_nulls_only_writes_a_line_each() -> None:
    """Records without any value are records."""
    assert parsed(cells(a=[None, None]), schema(b="string")) == [{"b": None}] * 2


def test_json_lines_with_few_bytes_and_many_names_come_in_slices() -> None:
    """Names that are far longer than the cells do not make one huge text."""
    name = "n" * 2**20
    ones: list[str | None] = ["1"] * 100
    lines = list(json_lines(cells(**{name: ones}), schema(**{name: "integer"})))

    assert len(lines) > 1
    assert sum(len(piece.ends) for piece in lines) == 100


def test_parquet_writer_with_each_type_reads_back_typed(tmp_path: Path) -> None:
    """Columns have the schema's types; mixtures are JSON text."""
    known = schema(i="integer", n="number", s="string", b="boolean", u="unknown", a="any")
    batch = cells(i=["-5", None], n=["1.5", "2"], s=["", None], u=[None, None], a=["x", None])
    writer = ParquetPartWriter(
        names(tmp_path, "parquet"), Compression.ZSTD, PartLimits(), arrow_schema(known)
    )

    writer.append(batch_of_cells(batch, known))
    writer.append(batch_of_rows([(7, 2**53, "y", True, None, "[1]")], known))
    [part] = writer.close()

    assert pq.read_table(pa.BufferReader(content(part))).to_pylist() == [
        {"i": -5, "n": 1.5, "s": "", "b": None, "u": None, "a": '"x"'},
        {"i": None, "n": 2.0, "s": None, "b": None, "u": None, "a": None},
        {"i": 7, "n": float(2**53), "s": "y", "b": True, "u": None, "a": "[1]"},
    ]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (PartLimits(max_records=2), [2, 2, 1]),
        (PartLimits(max_bytes=3 * 8), [3, 2]),
        (PartLimits(max_bytes=1), [1, 1, 1, 1, 1]),
    ],
)
def test_parquet_writer_with_limits_cuts_at_whole_records(
    tmp_path: Path, limits: PartLimits, expected: list[int]
) -> None:
    """A part file ends before the record that would exceed a limit; one record always fits."""
    writer = ParquetPartWriter(
        names(tmp_path, "parquet"), Compression.SNAPPY, limits, arrow_schema(schema(i="integer"))
    )

    writer.append(pa.record_batch({"i": pa.array(range(5), pa.int64())}))
    parts = writer.close()

    tables = [pq.read_table(pa.BufferReader(content(part))) for part in parts]
    assert [part.records for part in parts] == expected
    assert [row["i"] for table in tables for row in table.to_pylist()] == [0, 1, 2, 3, 4]


def test_parquet_writer_when_aborted_leaves_nothing(tmp_path: Path) -> None:
    """Finished files and the open one are removed."""
    writer = ParquetPartWriter(
        names(tmp_path, "parquet"),
        Compression.SNAPPY,
        PartLimits(max_records=2),
        arrow_schema(schema(i="integer")),
    )
    writer.append(pa.record_batch({"i": pa.array(range(5), pa.int64())}))
    assert len(in_folder(tmp_path)) == 3

    writer.abort()

    assert in_folder(tmp_path) == []


def test_line_writer_killed_before_the_file_has_its_name_leaves_no_part_file(
    tmp_path: Path,
) -> None:
    """Expect what a killed process wrote to be hidden."""
    killed = run_python(WRITE_ONE_PART, to_uri(tmp_path), failpoints="encode.before_rename=kill")
    assert killed == -signal.SIGKILL
    assert in_folder(tmp_path) == [".orders-1-00030000-00c0ffee.jsonl.gz.tmp"]
