"""Lineage columns: their values in JSON text and in tables, and conflicting names."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from batch_pipeline.encode.chunks import JsonRecords, Table
from batch_pipeline.encode.lineage import Lineage
from batch_pipeline.encode.writers.columns import batch_of_table, output_schema
from batch_pipeline.encode.writers.json_lines import json_lines
from batch_pipeline.model.encoding import Format
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.record_rules import LineageColumn, LineageContext, OnNonfinite
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline_tests.encode.writers.part_factories import schema, table

ALL = tuple(LineageColumn)
ITEM = Item(
    id=5,
    file=LandedFile(
        location='file:///landing/"ö".csv',
        size_bytes=10,
        modified_at=datetime(2026, 1, 31, 13, 0, 0, 7, tzinfo=timezone(timedelta(hours=1))),
    ),
)
CONTEXT = LineageContext(
    batch_key="00000001-00000009",
    attempt=2,
    started_at=datetime(1970, 1, 1, 0, 1, 40, 123_999, tzinfo=UTC),
)
EXPECTED: dict[str, Any] = {
    "_item_id": 5,
    "_source_file": 'file:///landing/"ö".csv',
    "_record_number": None,
    "_batch_id": "00000001-00000009",
    "_attempt": 2,
    "_sdc_extracted_at": "2026-01-31T12:00:00.000007Z",
    "_sdc_received_at": "1970-01-01T00:01:40.123999Z",
    "_sdc_batched_at": "1970-01-01T00:01:40.123999Z",
    "_sdc_deleted_at": None,
    "_sdc_sequence": 100_123,
    "_sdc_table_version": None,
    "_sdc_sync_started_at": 100_123,
}


def records(*lines: bytes) -> JsonRecords:
    """Return JSON records with the record numbers 11, 13, 15 and so on."""
    line_numbers = range(1, len(lines) + 1)
    numbers = range(11, 11 + 2 * len(lines), 2)
    return JsonRecords(lines=list(lines), line_numbers=line_numbers, record_numbers=numbers)


def lines_with(columns: tuple[LineageColumn, ...], *lines: bytes) -> list[bytes]:
    """Add columns to JSON records and return their text."""
    added = Lineage(columns, ITEM, CONTEXT).added(records(*lines))
    assert isinstance(added, JsonRecords)
    return list(added.lines)


def test_lineage_columns_follow_columns_of_json_record() -> None:
    first, second = lines_with(ALL, b'{"a": 1.10}', b'{"a":2}')

    assert first.startswith(b'{"a": 1.10,"_item_id":5,')
    assert json.loads(first) == {"a": 1.10} | EXPECTED | {"_record_number": 11}
    assert list(json.loads(second).values()) == [2, *(EXPECTED | {"_record_number": 13}).values()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{}", b'{"_attempt":2}'),
        (b" {\t} ", b'{"_attempt":2}'),
        (b'{"a":"{"}', b'{"a":"{","_attempt":2}'),
        (b'{"a":{}} ', b'{"a":{},"_attempt":2}'),
        (b'{"a":1 }', b'{"a":1 ,"_attempt":2}'),
    ],
)
def test_lineage_of_json_record_in_any_layout_is_valid_json(line: bytes, expected: bytes) -> None:
    assert lines_with((LineageColumn.ATTEMPT,), line) == [expected]


@pytest.mark.parametrize("columns", [ALL[2:3], ALL[2:4], ALL[1:3], ALL[:2]])
def test_lineage_keeps_column_order_around_record_number(
    columns: tuple[LineageColumn, ...],
) -> None:
    [line] = lines_with(columns, b"{}")

    expected = EXPECTED | {"_record_number": 11}
    assert json.loads(line) == {column.value: expected[column.value] for column in columns}


def test_lineage_of_json_records_and_table_is_equal() -> None:
    known = RecordSchema((*schema(a="integer").columns, *(column.column for column in ALL)))
    arrow_schema = output_schema(known, Format.PARQUET)
    lineage = Lineage(ALL, ITEM, CONTEXT)

    of_records = lineage.added(records(b'{"a":1}', b'{"a":2}'))
    assert isinstance(of_records, JsonRecords)

    batch = pa.record_batch({"a": [1, 2]})
    cells = Table(batch=batch, line_numbers=[1, 2], record_numbers=[11, 13])
    of_table = lineage.added(cells)
    assert isinstance(of_table, Table)
    from_table = batch_of_table(of_table, known, arrow_schema, OnNonfinite.QUARANTINE)

    [lines] = json_lines(of_table, known, OnNonfinite.QUARANTINE)
    assert bytes(lines.text).splitlines() == of_records.lines
    assert from_table["_record_number"].to_pylist() == [11, 13]
    assert from_table["_sdc_extracted_at"][0].as_py() == ITEM.file.modified_at


def test_lineage_of_text_cells_is_typed() -> None:
    cells = table(pa.record_batch({"a": ["1"]}), text=True)

    added = Lineage((LineageColumn.ITEM_ID,), ITEM, CONTEXT).added(cells)

    assert isinstance(added, Table)
    assert (set(added.text), added.good) == ({"a"}, 1)
    assert added.batch.schema.field("_item_id").type == pa.int64()


def test_lineage_of_file_without_modification_time_has_null_extracted_at() -> None:
    item = Item(id=6, file=LandedFile(location="file:///a", size_bytes=1))
    lineage = Lineage((LineageColumn.EXTRACTED_AT,), item, CONTEXT)

    added = lineage.added(records(b"{}"))

    assert isinstance(added, JsonRecords)
    assert added.lines == [b'{"_sdc_extracted_at":null}']


def test_lineage_without_columns_returns_same_chunk() -> None:
    chunk = records(b"{}")

    assert Lineage((), ITEM, CONTEXT).added(chunk) is chunk


def test_lineage_conflicts_are_source_columns_of_the_same_name() -> None:
    lineage = Lineage((LineageColumn.ITEM_ID, LineageColumn.ATTEMPT), ITEM, CONTEXT)

    assert lineage.conflicts(["_item_id", "a", "_batch_id"]) == ("_item_id",)
    assert lineage.conflicts(["a"]) == ()
