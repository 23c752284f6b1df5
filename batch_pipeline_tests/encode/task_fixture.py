"""Encode tasks over files in a folder, and readers of their part files with other libraries."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batch_pipeline.encode.task import TaskReport, TaskSpec, encode_items
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.item import Item
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.manifest import PartFile, check_batch_conservation
from batch_pipeline.model.record_rules import BadFileRules, BadRecordRules, OnBadFile
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import Source, SourceFormat, Storage, Stream
from batch_pipeline.spark.encoder import merge_misfits
from batch_pipeline.storage.part_formats import table_codec
from batch_pipeline_tests.factories import CONTEXT, stream
from batch_pipeline_tests.storage_roots import landed_file

_MAX_PASSES = 4  # as in the encode step
_TEXT_FORMATS = {SourceFormat.CSV}
_EMPTY = RecordSchema()
ENCODINGS = {
    Format.JSONL: Encoding(format=Format.JSONL, compression=Compression.NONE),
    Format.PARQUET: Encoding(format=Format.PARQUET, compression=Compression.SNAPPY),
    Format.ARROW: Encoding(format=Format.ARROW, compression=Compression.NONE),
    Format.ORC: Encoding(format=Format.ORC, compression=Compression.ZSTD),
}


def task_spec(
    stream: Stream, items: Iterable[Item], types: Mapping[str, str], *, number: int = 0
) -> TaskSpec:
    """Return a task that encodes items with a schema given as name=type."""
    return TaskSpec(
        number=number,
        stem="orders-1",
        stream=stream,
        schema=RecordSchema.from_json(list(types.items())),
        items=tuple(items),
        context=CONTEXT,
    )


class TaskFixture:
    """A landing folder, a storage root, and one encode task for all landed files."""

    def __init__(self, folder: Path) -> None:
        self.landing = folder / "landing with % and é"
        self.root = folder / "batches"
        self.landing.mkdir()
        self.root.mkdir()
        self.items: list[Item] = []
        self.stream = stream(
            source=Source(uri=to_uri(self.landing)),
            storage=Storage(root=to_uri(self.root)),
            key_properties=(),
        )

    def land(self, data: bytes, name: str = "") -> Item:
        """Write the next file and return its item."""
        number = len(self.items) + 1
        path = self.landing / (name or f"orders {number}.dat")
        path.write_bytes(data)
        self.items.append(Item(id=number, file=landed_file(path)))
        return self.items[-1]

    def spec(self, **types: str) -> TaskSpec:
        """Return the task that encodes all files with a schema given as name=type."""
        return task_spec(self.stream, self.items, types)

    def encode(self, *, execution: str = "00c0ffee", **types: str) -> TaskReport:
        """Encode all files with a schema given as name=type and check record conservation."""
        report = encode_items(self.spec(**types), execution=execution)
        if report.storage_error is None:
            check_batch_conservation(report.items, report.part_files)
            assert [item.item_id for item in report.items] == [item.id for item in self.items]
        return report

    def files(self) -> list[str]:
        """Return the relative paths of all files in the storage."""
        files = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.root)) for path in files)


def misfits(report: TaskReport) -> dict[str, str]:
    """Return the columns that do not fit the schema, with the types they need."""
    return {misfit.column.name: misfit.column.type_text for misfit in report.misfits}


def counts(report: TaskReport) -> list[tuple[int, int, int]]:
    """Return the records read, written and quarantined of each item."""
    return [(item.read, item.written, item.quarantined) for item in report.items]


def quarantining_task(folder: Path, source: SourceFormat, output: Format) -> TaskFixture:
    """Return a task that quarantines bad files and any number of bad records."""
    task = TaskFixture(folder)
    task.stream = replace(
        task.stream,
        source=replace(task.stream.source, format=source),
        encoding=ENCODINGS[output],
        on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE),
        on_bad_record=BadRecordRules(max_bad_ratio=1.0),
    )
    return task


def encode_with_inferred_schema(
    task: TaskFixture, schema: RecordSchema = _EMPTY
) -> tuple[TaskReport, RecordSchema]:
    """Encode with a schema, by default an empty one, and widen it until all records fit."""
    for number in range(_MAX_PASSES):
        types = {column.name: column.type_text for column in schema.columns}
        report = task.encode(execution=f"{number:08x}", **types)
        if not report.misfits:
            return report, schema
        text_source = _TEXT_FORMATS.issuperset(report.formats)
        merged = merge_misfits([report], schema, text_source=text_source)
        widened = schema.widened([misfit.column for misfit in merged], text_source=text_source)
        assert widened != schema
        schema = widened
    raise AssertionError(f"the schema did not settle: {schema.to_json()}")


def lines_of(report: TaskReport) -> list[str]:
    """Return the lines of uncompressed JSON part files."""
    texts = [Path(to_path(part.uri)).read_bytes().decode() for part in report.part_files]
    assert all(text.endswith("\n") for text in texts)
    return [line for text in texts for line in text[:-1].split("\n")]


def rows_of(report: TaskReport) -> list[dict[str, Any]]:
    return [row for part in report.part_files for row in read_part(part).to_pylist()]


def parse_json_exactly(text: str) -> Any:
    """Parse JSON, keeping the key order and the digits of numbers."""
    return json.loads(
        text,
        object_pairs_hook=lambda pairs: ("object", pairs),
        parse_int=lambda number: ("number", number),
        parse_float=lambda number: ("number", number),
        parse_constant=lambda number: ("number", number),
    )


def fields_of(line: str) -> dict[str, Any]:
    """Parse one record; values are as in `parse_json_exactly`."""
    kind, pairs = parse_json_exactly(line)
    assert kind == "object"
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def read_part(part: PartFile) -> pa.Table:
    """Read a columnar part file and verify its checksums, if any."""
    path = to_path(part.uri)
    if path.endswith(".parquet"):
        return pq.read_table(path, page_checksum_verification=True)
    if path.endswith(".orc"):
        return pa.Table.from_batches(table_codec(Format.ORC).read_batches(Path(path), None, 2))
    with pa.OSFile(path) as file:
        return pa.ipc.open_file(file).read_all()
