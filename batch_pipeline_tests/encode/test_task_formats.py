"""A task over files of every format, from the landed bytes to the part files."""

import io
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_pipeline.model.record_rules import BadRecordRules
from batch_pipeline.model.stream import CsvOptions, SourceFormat
from batch_pipeline_tests.encode.task_fixture import TaskFixture, counts, records


@pytest.fixture
def task(tmp_path: Path) -> TaskFixture:
    """An empty landing folder and an empty storage."""
    return TaskFixture(tmp_path)


def types_found(task: TaskFixture) -> dict[str, str]:
    """Give the columns that a first pass finds, with their types."""
    return {found.column.name: found.column.type_text for found in task.encode().misfits}


def in_two_passes(task: TaskFixture) -> list[dict[str, object]]:
    """Find the schema with a first pass, write with a second."""
    second = task.encode(**types_found(task))
    assert second.misfits == ()
    return records(second.part_files)


def test_task_with_headers_that_differ_matches_columns_by_name(task: TaskFixture) -> None:
    """New columns are added, missing ones left out, and the order of a header does not matter."""
    task.land(b"id,name\n1,Ann\n")
    task.land(b"name,id,city\nBo,2,Rome\n")
    task.land(b"city\nOslo\n")

    assert in_two_passes(task) == [
        {"id": 1, "name": "Ann"},
        {"id": 2, "name": "Bo", "city": "Rome"},
        {"city": "Oslo"},
    ]


def test_task_with_csv_of_another_dialect_uses_the_options(task: TaskFixture) -> None:
    """Names, delimiter, quote and escape are those of the stream file."""
    options = CsvOptions(delimiter=";", quote="'", escape="\\", names=("a", "b"))
    task.stream = replace(
        task.stream,
        source=replace(task.stream.source, csv=options, format=SourceFormat.CSV),
    )
    task.land(b"x\\;y;'it\\'s'\n1;\\N\n")

    assert in_two_passes(task) == [{"a": "x;y", "b": "it's"}, {"a": "1", "b": "\\N"}]


def test_task_with_one_csv_column_keeps_whole_lines(task: TaskFixture) -> None:
    """This replaces the source format `text`: no delimiter and no quote occurs in a line."""
    options = CsvOptions(delimiter="\x1f", quote="\x1e", names=("line",))
    task.stream = replace(
        task.stream,
        source=replace(task.stream.source, csv=options, format=SourceFormat.CSV),
    )
    task.land(b'12 "Ann", late\n 3 Bo\n')

    assert in_two_passes(task) == [{"line": '12 "Ann", late'}, {"line": " 3 Bo"}]


TABLE = pa.table(
    {
        "i": pa.array([1, 2]),
        "d": pa.array([Decimal("1.10"), None], pa.decimal128(9, 2)),
        "day": pa.array([date(2026, 1, 31), None]),
        "at": pa.array([1_000, 2_001], pa.timestamp("ns", "UTC")),
        "o": pa.array([{"a": [1, None]}, None]),
    }
)


def test_task_with_parquet_writes_its_records_and_quarantines_what_does_not_fit(
    task: TaskFixture,
) -> None:
    """Types come from the file; a time that is too fine spoils its record alone."""
    file = io.BytesIO()
    pq.write_table(TABLE, file)
    task.stream = replace(task.stream, on_bad_record=BadRecordRules(max_bad_records=1))
    task.land(file.getvalue())

    types = types_found(task)
    second = task.encode(**types)

    assert types == {
        "i": "integer",
        "d": "decimal(9,2)",
        "day": "date",
        "at": "timestamp",
        "o": "object",
    }
    assert records(second.part_files) == [
        {
            "i": 1,
            "d": 1.1,
            "day": "2026-01-31",
            "at": "1970-01-01T00:00:00.000001Z",
            "o": {"a": [1, None]},
        }
    ]
    assert counts(second) == [(2, 1, 1)]
    (bad,) = second.bad_records
    assert (bad.line, bad.reason.split(" in whole")[0]) == (2, "column 'at' is not")


def test_task_with_avro_writes_its_records(task: TaskFixture) -> None:
    """Logical types and unions arrive as what they mean."""
    fields = [
        {"name": "i", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "u", "type": ["null", "string", "long"]},
    ]
    file = io.BytesIO()
    rows = [
        {"i": 1, "at": datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC), "u": "x"},
        {"i": 2, "at": datetime(2026, 1, 2, 0, 0, 0, 2000, tzinfo=UTC), "u": 5},
    ]
    fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, rows, codec="deflate")
    task.land(file.getvalue())

    assert in_two_passes(task) == [
        {"i": 1, "at": "2026-01-01T00:00:00.001000Z", "u": "x"},
        {"i": 2, "at": "2026-01-02T00:00:00.002000Z", "u": 5},
    ]
