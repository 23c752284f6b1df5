"""Whole tasks for tests of values: encode until the schema fits, read back with other libraries."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.location import to_path
from batch_pipeline.domain.record_rules import BadFileRules, BadRecordRules, OnBadFile
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stream import SourceFormat
from batch_pipeline.spark.results import misfits_of
from batch_pipeline.spark.task_values import TaskReport
from batch_pipeline_tests.unit.test_task import Desk

_LOOKS = 4  # as many as the encode step takes
_TEXT_FORMATS = {SourceFormat.CSV}
ENCODINGS = {
    Format.JSONL: Encoding(format=Format.JSONL, compression=Compression.NONE),
    Format.PARQUET: Encoding(format=Format.PARQUET, compression=Compression.SNAPPY),
    Format.ARROW: Encoding(format=Format.ARROW, compression=Compression.NONE),
}


def desk_for(folder: Path, source: SourceFormat, output: Format) -> Desk:
    """Give a desk that sets aside whatever is bad."""
    desk = Desk(folder)
    desk.stream = replace(
        desk.stream,
        source=replace(desk.stream.source, format=source),
        encoding=ENCODINGS[output],
        on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE),
        on_bad_record=BadRecordRules(max_bad_ratio=1.0),
    )
    return desk


def settled(desk: Desk) -> tuple[TaskReport, RecordSchema]:
    """Encode with an empty schema, and again with what was missing, as the encode step does."""
    schema = RecordSchema()
    for look in range(_LOOKS):
        types = {column.name: column.type_text for column in schema.columns}
        report = desk.encode(execution=f"{look:08x}", **types)
        if not report.misfits:
            return report, schema
        text_source = _TEXT_FORMATS.issuperset(report.formats)
        found = misfits_of([report], schema, text_source=text_source)
        widened = schema.widened([misfit.column for misfit in found], text_source=text_source)
        assert widened != schema
        schema = widened
    raise AssertionError(f"the schema did not settle: {schema.to_json()}")


def lines_of(report: TaskReport) -> list[str]:
    """Give the lines of the part files of JSON lines without compression."""
    texts = [Path(to_path(part.uri)).read_bytes().decode() for part in report.part_files]
    assert all(text.endswith("\n") for text in texts)
    return [line for text in texts for line in text[:-1].split("\n")]


def rows_of(report: TaskReport) -> list[dict[str, Any]]:
    """Give the records of parquet or Arrow files."""
    return [row for part in report.part_files for row in _table(to_path(part.uri)).to_pylist()]


def shown(text: str) -> Any:
    """Read JSON so that equal means equally written: keys in order, numbers with their digits."""
    return json.loads(
        text,
        object_pairs_hook=lambda pairs: ("object", pairs),
        parse_int=lambda number: ("number", number),
        parse_float=lambda number: ("number", number),
        parse_constant=lambda number: ("number", number),
    )


def fields_of(line: str) -> dict[str, Any]:
    """Read one record, each value as `shown` does."""
    kind, pairs = shown(line)
    assert kind == "object"
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def _table(path: str) -> pa.Table:
    if path.endswith(".parquet"):
        return pq.read_table(path)
    with pa.OSFile(path) as file:
        return pa.ipc.open_file(file).read_all()
