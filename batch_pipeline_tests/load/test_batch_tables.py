from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batch_pipeline.encode.arrow_types import arrow_schema_of
from batch_pipeline.load.batch_tables import common_schema, read_batches, read_table
from batch_pipeline.model.errors import BatchDataError
from batch_pipeline.model.manifest import Manifest
from batch_pipeline_tests.factories import batch, manifest
from batch_pipeline_tests.published_files import JSONL, PARQUET, schema_of, write_part

ARROW_VALUES: dict[str, Any] = {
    "decimal(5,2)": Decimal("1.25"),
    "date": date(2026, 3, 1),
    "timestamp": datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
    "binary": b"\0\xff",
}


def write_manifest(
    folder: Path, suffix: str, version: int, columns: dict[str, str], *records: dict[str, Any]
) -> Manifest:
    schema = schema_of(**columns)
    part = write_part(folder / f"{version}.{suffix}", records, schema)
    return manifest(
        batch=batch(version),
        encoding=PARQUET if suffix == "parquet" else JSONL,
        schema=schema,
        schema_version=version,
        part_files=(part,),
    )


@pytest.mark.parametrize("suffix", ["jsonl.gz", "parquet"])
@pytest.mark.parametrize(
    ("before", "after", "value", "expected"),
    [
        ("integer", "number", 7, 7.0),
        ("integer", "decimal(21,2)", 7, Decimal("7.00")),
        ("integer", "string", 7, "7"),
        ("integer", "any", 7, "7"),
        ("decimal(5,2)", "decimal(9,4)", "1.25", Decimal("1.2500")),
        ("boolean", "string", True, "true"),
        ("number", "any", 1.5, "1.5"),
        ("string", "any", 'say "a"', r'"say \"a\""'),
        ("date", "string", "2026-03-01", "2026-03-01"),
        ("timestamp", "string", "2026-03-01T12:30:00Z", "2026-03-01T12:30:00.000000Z"),
        ("binary", "string", "AP8=", "AP8="),
        ("unknown", "integer", None, None),
        ("string", "string", "unchanged", "unchanged"),
    ],
)
def test_values_are_converted_to_the_newer_type(
    tmp_path: Path, suffix: str, before: str, after: str, value: Any, expected: Any
) -> None:
    stored = value
    if suffix == "parquet":
        stored = ARROW_VALUES.get(before, value)
    elif before == "decimal(5,2)":
        stored = float(value)
    old = write_manifest(tmp_path, suffix, 1, {"x": before}, {"x": stored}, {"x": None})
    schema = schema_of(x=after)
    table = read_table([old], schema)
    assert table.schema == arrow_schema_of(schema.columns)
    assert table.column("x").to_pylist() == [expected, None]


@pytest.mark.parametrize("suffix", ["jsonl.gz", "parquet"])
def test_integer_that_a_later_number_cannot_hold_is_reported(tmp_path: Path, suffix: str) -> None:
    old = write_manifest(tmp_path, suffix, 1, {"x": "integer"}, {"x": 2**53 + 1})
    problem = r"'x' became number later, which is inexact \(.*9007199254740993.*Materialize"
    with pytest.raises(BatchDataError, match=problem):
        read_table([old], schema_of(x="number"))


def test_columns_added_later_are_null_in_older_batches(tmp_path: Path) -> None:
    old = write_manifest(tmp_path, "jsonl.gz", 1, {"id": "integer"}, {"id": 1})
    columns, record = {"id": "integer", "note": "string"}, {"id": 2, "note": "b"}
    new = write_manifest(tmp_path, "parquet", 2, columns, record)
    schema = common_schema([old, new])
    assert schema == schema_of(**columns)
    assert read_table([new, old], schema).to_pylist() == [record, {"id": 1, "note": None}]
    assert read_table([], common_schema([])) == pa.table({})
    empty = write_manifest(tmp_path, "jsonl.gz", 3, {}, {}, {})
    assert read_table([empty], schema).to_pylist() == [{"id": None, "note": None}] * 2
    assert read_table([empty, old], empty.schema).num_rows == 3


def test_common_schema_has_the_newest_types() -> None:
    old = manifest(schema=schema_of(id="integer", gone="date"))
    new = manifest(schema=schema_of(id="string"), schema_version=2)
    assert common_schema([old, new]) == schema_of(id="string", gone="date")


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_unreadable_part_file_is_reported_with_its_batch(tmp_path: Path, damage: str) -> None:
    damaged = write_manifest(tmp_path, "jsonl.gz", 1, {"id": "integer"}, {"id": 1})
    path = tmp_path / "1.jsonl.gz"
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(BatchDataError) as caught:
        list(read_batches(damaged, damaged.schema))
    for word in (damaged.batch.key, "1.jsonl.gz", "another machine", "materialize"):
        assert word in str(caught.value)
