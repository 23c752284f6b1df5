"""ORC part files: types as other readers see them, stripe sizes, values out of range."""

from datetime import UTC, datetime, time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from batch_pipeline.encode.writers.columns import (
    RowGroupWriter,
    TableRows,
    batch_of_table,
    output_schema,
)
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.location import to_path
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.stream import PartLimits, SourceFormat
from batch_pipeline.storage.part_formats.orc import CODEC
from batch_pipeline_tests.encode.task_fixture import quarantining_task, rows_of
from batch_pipeline_tests.encode.writers.part_factories import (
    ALL_TYPES,
    TYPED_VALUES,
    names,
    schema,
    typed,
)

ZSTD = Encoding(format=Format.ORC, compression=Compression.ZSTD)
FIRST = datetime(1677, 9, 21, 0, 12, 43, 145225, UTC)
LAST = datetime(2262, 4, 11, 23, 47, 16, 854775, UTC)


def write_part(root: Path, *batches: pa.RecordBatch) -> Path:
    """Write batches to one part file and return its path."""
    writer = RowGroupWriter(names(root, ZSTD.suffix), PartLimits(), ZSTD)
    for batch in batches:
        writer.append(TableRows.of(batch))
    [part] = writer.close()
    return Path(to_path(part.uri))


def test_arrow_reads_orc_types_and_times_as_text(tmp_path: Path) -> None:
    known = schema(**ALL_TYPES)
    arrow_schema = output_schema(known, Format.ORC)
    batch = batch_of_table(typed(), known, arrow_schema, OnNonfinite.QUARANTINE)

    table = orc.read_table(write_part(tmp_path, batch))

    assert {field.name: str(field.type) for field in table.schema} == {
        "empty": "string",
        "flag": "bool",
        "count": "int64",
        "price": "decimal128(12, 2)",
        "ratio": "double",
        "name": "string",
        "octets": "binary",
        "day": "date32[day]",
        "clock": "string",
        "instant": "timestamp[ns, tz=UTC]",
        "local": "timestamp[ns]",
        "nested": "string",
        "list": "string",
        "mixed": "string",
    }
    assert table["clock"].to_pylist() == ["12:30:00.000001", None]
    assert table.schema.field("nested").metadata == {b"content_type": b"application/json"}
    for name in ("flag", "count", "price", "ratio", "name", "octets", "day", "nested"):
        assert table[name].to_pylist() == TYPED_VALUES[name]


def test_read_batches_selects_dotted_columns_and_limits_rows(tmp_path: Path) -> None:
    clocks = pa.array([time(1), time(2), None], pa.time64("us"))
    path = write_part(tmp_path, pa.record_batch({"a.b": [1, 2, 3], "a": clocks, "c": ["x"] * 3}))

    batches = list(CODEC.read_batches(path, {"a.b", "a", "absent"}, 2))

    assert [batch.num_rows for batch in batches] == [2, 1]
    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"a.b": 1, "a": time(1)},
        {"a.b": 2, "a": time(2)},
        {"a.b": 3, "a": None},
    ]


def test_stripe_of_large_values_is_limited_to_32_mib(tmp_path: Path) -> None:
    row = pa.record_batch({"s": ["x" * 10 * 2**20]})

    file = orc.ORCFile(write_part(tmp_path, *[row] * 5))

    assert [file.read_stripe(index).num_rows for index in range(file.nstripes)] == [3, 2]


def test_stripe_of_small_values_is_limited_to_65536_rows(tmp_path: Path) -> None:
    batch = pa.record_batch({"s": [f"{number:05}" for number in range(70_000)]})
    file = orc.ORCFile(write_part(tmp_path, batch))

    assert [file.read_stripe(index).num_rows for index in range(file.nstripes)] == [65_536, 4_464]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_timestamps_are_supported_exactly_within_orc_range(
    tmp_path: Path, zone: str | None
) -> None:
    kind = pa.timestamp("us", zone)
    first, last = (
        pa.scalar(moment, pa.timestamp("us", "UTC")).cast(pa.int64()).as_py()
        for moment in (FIRST, LAST)
    )
    arrow_schema = pa.schema([("t", kind)])
    inside = pa.record_batch([pa.array([first, None, last], kind)], schema=arrow_schema)
    outside = pa.record_batch([pa.array([first - 1, 0, last + 1], kind)], schema=arrow_schema)

    assert CODEC.unsupported_rows(inside, arrow_schema) == {}
    assert pa.Table.from_batches(
        CODEC.read_batches(write_part(tmp_path, inside), None, 10)
    ) == pa.Table.from_batches([inside])
    reasons = CODEC.unsupported_rows(outside, arrow_schema)
    assert list(reasons) == [0, 2]
    assert "'t' holds 2262-04-11 23:47:16.854776, which" in reasons[2]


def test_record_with_timestamp_out_of_range_is_quarantined(tmp_path: Path) -> None:
    task = quarantining_task(tmp_path, SourceFormat.CSV, Format.ORC)
    task.land(b"id,until\n1,2026-01-31T12:00:00Z\n2,9999-12-31T00:00:00Z\n3,\n")

    report = task.encode(id="integer", until="timestamp")

    assert [row["id"] for row in rows_of(report)] == [1, 3]
    [bad] = report.bad_records
    assert bad.line == 3
    assert bad.reason == (
        "column 'until' holds 9999-12-31 00:00:00.000000, which part files of ORC cannot hold: "
        "they hold 1677-09-22 to 2262-04-11"
    )


def test_orc_encoding_with_level_is_rejected() -> None:
    with pytest.raises(InvalidValueError, match="none for this encoding"):
        Encoding(format=Format.ORC, compression=Compression.ZSTD, level=3)
