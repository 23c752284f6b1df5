"""Lineage columns of JSON records and tables; the golden files have their values in all formats."""

from typing import Any

import pyarrow as pa
import pytest

from batch_pipeline.encode.chunks import JsonRecords, Table
from batch_pipeline.encode.lineage import Lineage
from batch_pipeline.encode.writers.json_lines import json_lines
from batch_pipeline.model.record_rules import LineageColumn, OnNonfinite
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline_tests.encode.writers.part_factories import json_records, schema
from batch_pipeline_tests.factories import CONTEXT, item


def with_column(column: LineageColumn, line: bytes) -> bytes:
    """Add a column to a record of a file without modification time."""
    added = Lineage((column,), item(modified_at=None), CONTEXT).added(json_records(line))
    assert isinstance(added, JsonRecords)
    return added.lines[0]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{}", b'{"_attempt":1}'),
        (b" {\t} ", b'{"_attempt":1}'),
        (b'{"a":"{"}', b'{"a":"{","_attempt":1}'),
        (b'{"a":{}} ', b'{"a":{},"_attempt":1}'),
        (b'{"a":1 }', b'{"a":1 ,"_attempt":1}'),
    ],
)
def test_lineage_of_json_record_in_any_layout_is_valid_json(line: bytes, expected: bytes) -> None:
    assert with_column(LineageColumn.ATTEMPT, line) == expected


def test_lineage_of_file_without_modification_time_has_null_extracted_at() -> None:
    assert with_column(LineageColumn.EXTRACTED_AT, b"{}") == b'{"_sdc_extracted_at":null}'


def test_lineage_of_json_records_and_table_is_equal() -> None:
    columns = tuple(LineageColumn)
    lineage = Lineage(columns, item(), CONTEXT)
    known = RecordSchema((*schema(a="integer").columns, *(column.column for column in columns)))
    numbers: dict[str, Any] = {"line_numbers": [1, 2], "record_numbers": [11, 13]}

    records = lineage.added(JsonRecords(lines=[b'{"a":1}', b'{"a":2}'], **numbers))
    cells = lineage.added_to_table(Table(batch=pa.record_batch({"a": [1, 2]}), **numbers))

    assert isinstance(records, JsonRecords)
    [lines] = json_lines(cells, known, OnNonfinite.QUARANTINE)
    assert bytes(lines.text).splitlines() == records.lines
    assert cells.batch["_record_number"].to_pylist() == [11, 13]
    assert cells.batch["_sdc_extracted_at"][0].as_py() == item().file.modified_at
