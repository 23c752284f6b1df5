"""Lineage columns of JSON records and tables; the golden files have their values in all formats."""

import pytest

from batch_pipeline.encode.chunks import JsonRecords
from batch_pipeline.encode.lineage import Lineage
from batch_pipeline.model.record_rules import LineageColumn
from batch_pipeline_tests.encode.writers.part_factories import json_records
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
