"""Files of BATCH messages: their records, or an error that names the file."""

import gzip
import math
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from batch_pipeline.model.encoding import Compression, Format
from batch_pipeline.model.record_rules import ReadLimits
from batch_pipeline.singer.parser import BatchEncoding, BatchMessage, MessageError
from batch_pipeline.singer.target.batches import BatchFile, check, records
from batch_pipeline_tests.encode.landed_files import negative_row_group

LIMITS = ReadLimits(max_record_bytes=1000)


def read(path: Path, data: bytes, format_: Format = Format.JSONL) -> list[object]:
    """Check a file and read its records."""
    path.write_bytes(data)
    compressions = {b"\x1f": Compression.GZIP, b"\x28": Compression.ZSTD}
    encoding = BatchEncoding(format=format_, compression=compressions.get(data[:1]))
    message = BatchMessage(line=7, stream="orders", encoding=encoding, manifest=(path.as_uri(),))
    file = BatchFile(location=path.as_uri(), path=path)
    check(message, 0, file, keys=(), limits=LIMITS)
    return [record for _, record in records(message, file, LIMITS)]


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    data = b'{"a":1}\n\n \t{"a":2} \r\n'
    assert read(tmp_path / "x.jsonl", data) == [{"a": 1}, {"a": 2}]
    assert read(tmp_path / "x.jsonl.gz", gzip.compress(data)) == [{"a": 1}, {"a": 2}]


def test_ambiguous_or_invalid_line_is_rejected_with_location(tmp_path: Path) -> None:
    for line, problem in (
        (b'{"a":1}\x0c', "is not a JSON object"),
        (b'{"a":"\\ud800"}', "is not a JSON object"),
        (b'{"a":"\xff"}', "is not a JSON object"),
        (b"[1]", "is not a JSON object"),
        (b'{"a":1e99999999999999999999}', "has a value that cannot be represented"),
        (b'{"a":1,"a":2}', "has a twice"),
        (rb'{"a":1,"a":"\u003a"}', "has a twice"),
        (b'{"a":' + b"[" * 400 + b"]" * 400 + b',"a":1}', "has a twice"),
    ):
        with pytest.raises(MessageError, match=rf"Line 7, .*x\.jsonl line 2 {problem}"):
            read(tmp_path / "x.jsonl", b'{"a":0}\n' + line + b"\n")


def test_truncated_zstd_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.zst"
    data = zstandard.compress(b'{"a":1}\n' * 9)
    assert read(path, data) == [{"a": 1}] * 9
    with pytest.raises(MessageError, match=r"x\.jsonl\.zst cannot be read"):
        read(path, data[:-2])


def test_parquet_value_that_json_cannot_represent_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    days = pa.array([0, 2**31 - 1], pa.int32()).view(pa.date32())
    times = pa.array([1001], pa.time64("ns")), pa.array([1], pa.timestamp("ns"))
    columns = days, *times, pa.array([math.nan])
    twice = pa.table([[1], [2]], ["a", "a"])
    for table in (*(pa.table({"a": values}) for values in columns), twice):
        pq.write_table(table, path)
        with pytest.raises(MessageError, match=r"x\.parquet has a value in or after record 1"):
            read(path, path.read_bytes(), Format.PARQUET)


def test_parquet_values_are_those_of_a_file_that_is_registered(tmp_path: Path) -> None:
    """Spark writes times as INT96; in nanoseconds, those after the year 2262 would overflow."""
    path = tmp_path / "x.parquet"
    end = datetime(9999, 12, 31)  # noqa: DTZ001
    columns = {
        "uuid": pa.array([UUID(int=5).bytes], pa.uuid()),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "duration": pa.array([timedelta(days=1, milliseconds=1)]),
        "at": pa.array([end]),
    }
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True)
    (record,) = read(path, path.read_bytes(), Format.PARQUET)
    assert record == {
        "uuid": "00000000-0000-0000-0000-000000000005",
        "map": {"k": 1},
        "duration": "PT86400.001000S",
        "at": "9999-12-31T00:00:00",
    }


def test_parquet_file_with_a_negative_number_of_rows_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MessageError, match=r"can be read \(a row group has a negative number"):
        read(tmp_path / "x.parquet", negative_row_group(), Format.PARQUET)
