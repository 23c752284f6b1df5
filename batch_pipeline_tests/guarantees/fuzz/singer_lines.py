"""Messages of taps (lines, SCHEMA, files of BATCH), and lines of part files before COPY."""

import gzip
import json
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard
from hypothesis import strategies as st
from singer_sdk.exceptions import InvalidJSONSchema, InvalidRecord

from batch_pipeline.cli.target import scaffold
from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.load.part_blocks import LineReader
from batch_pipeline.load.types import IncompatibleValueError
from batch_pipeline.model.encoding import Compression, Format
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.record_rules import ReadLimits
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.singer.parser import (
    BatchEncoding,
    BatchMessage,
    MessageError,
    MessageReader,
    RecordMessage,
    SchemaMessage,
    StateMessage,
)
from batch_pipeline.singer.target.batches import BatchFile, records
from batch_pipeline.singer.target.batches import check as check_file
from batch_pipeline.singer.target.config import AnnouncedStream, stream_name
from batch_pipeline.singer.target.sink import CompiledValidator
from batch_pipeline_tests.guarantees.fuzz import files, oracles
from batch_pipeline_tests.guarantees.fuzz.damage import (
    BYTES,
    CORPUS,
    FAULTS,
    UNCHANGED,
    Batch,
    choices,
    damaged_json,
    damaged_text,
    few,
    variants,
)
from batch_pipeline_tests.guarantees.fuzz.harness import Check, Outcome, expect

_MESSAGES = CORPUS["messages"]
MESSAGES: st.SearchStrategy[Batch] = st.one_of(
    damaged_json(*_MESSAGES),
    damaged_text(*(json.dumps(message, ensure_ascii=False) for message in _MESSAGES)),
)
SCHEMAS = damaged_json(*CORPUS["schemas"])


def open_messages(_folder: Path) -> Check:
    """Return the check that a message has exactly the content of its line."""
    reader = MessageReader()
    for name in ("orders", "ä"):
        expected: Any = {"type": "SCHEMA", "stream": name, "schema": {"properties": {}}}
        reader.read(json.dumps(expected).encode(), 1)

    def check(data: bytes) -> Outcome:
        line = data.replace(b"\n", b" ")
        try:
            message = reader.read(line, 7)
        except MessageError as error:
            expect(str(error).startswith("Line 7"), str(error))
            return Outcome.REFUSED
        # Skipped parts need not be UTF-8. A replacement character elsewhere is a difference.
        text = line.decode(errors="replace")
        expected = json.loads(text, parse_float=Decimal)
        with suppress(oracles.Undecided):
            oracles.parse_record(text.strip().encode())  # refuses duplicate keys
        match message:
            case RecordMessage():
                expect(message.record == expected["record"], message.record)
                expect(json.loads(message.text, parse_float=Decimal) == expected["record"])
            case StateMessage():
                expect(json.loads(message.text, parse_float=Decimal) == expected["value"])
            case SchemaMessage():
                expect(message.schema == expected["schema"], message.schema)
            case BatchMessage():
                expect(list(message.manifest) == expected["manifest"], message.manifest)
            case _:
                expect(message.version == expected["version"], message.version)
        return Outcome.READ

    return check


def open_schemas(folder: Path) -> Check:
    """Return the check that a SCHEMA validates a record and becomes a readable stream file."""
    streams = folder / "streams"
    streams.mkdir(exist_ok=True)

    def check(data: bytes) -> Outcome:
        try:
            expected = json.loads(data)
            name, schema, keys = str(expected["stream"]), expected["schema"], expected["keys"]
            record = expected["record"]
            is_message = isinstance(schema["properties"], dict) and isinstance(record, dict)
            is_message = (
                is_message and bool(name) and all(key and isinstance(key, str) for key in keys)
            )
        except (ValueError, LookupError, TypeError, RecursionError):
            return Outcome.REFUSED
        if not is_message:
            return Outcome.REFUSED
        try:
            CompiledValidator(schema).validate(record)
        except (InvalidJSONSchema, InvalidRecord):
            return Outcome.REFUSED
        stream = stream_name(name)
        announced = AnnouncedStream(name=name, schema=schema, key_properties=tuple(keys))
        try:
            stream_file, schema_file = scaffold(announced, stream, "file:///landing/a b")
        except ConfigurationError:
            return Outcome.REFUSED
        path = streams / "defs.yaml"
        path.write_text(stream_file, encoding="utf-8")
        schema_path = streams / f"{stream}.schema.json"
        schema_path.write_text(schema_file or "{}", encoding="utf-8")
        expect(read_stream_file(path).name == stream, "another stream", stream)
        schema_path.unlink()
        return Outcome.READ

    return check


def _compressed(lines: bytes, *, is_gzip: bool) -> bytes:
    return (gzip.compress if is_gzip else zstandard.compress)(lines)


# Files of BATCH messages: lines, damaged before or after compression, and parquet.
_COMPRESSED = choices(_compressed, is_gzip=st.booleans())
BATCH_FILES: st.SearchStrategy[Batch] = st.one_of(
    variants(few(files.JSONL), BYTES, UNCHANGED),
    variants(few(files.JSONL), BYTES, _COMPRESSED),
    variants(few(st.builds(_compressed, files.JSONL, is_gzip=st.booleans())), FAULTS, UNCHANGED),
    files.PARQUET,
)


def open_batch_files(folder: Path) -> Check:
    """Return the check that files of a BATCH are read completely, or refused by name."""
    path = folder / "input"
    file = BatchFile(location=path.as_uri(), path=path)
    limits = ReadLimits(max_record_bytes=2**20)

    def check(data: bytes) -> Outcome:
        path.write_bytes(data)
        compression = {b"\x1f": Compression.GZIP, b"\x28": Compression.ZSTD}.get(data[:1])
        format_ = Format.PARQUET if data[:1] == b"P" else Format.JSONL
        message = BatchMessage(
            line=7,
            stream="orders",
            encoding=BatchEncoding(format=format_, compression=compression),
            manifest=(path.as_uri(),),
        )
        try:
            checked = check_file(message, 0, file, keys=(), limits=limits)
            file_records = list(records(message, file, limits))
        except MessageError as error:
            expect("input" in str(error), str(error))
            return Outcome.REFUSED
        expect(len(file_records) == checked.records, len(file_records), checked.records)
        if format_ is Format.JSONL:
            plain = oracles.decompress(data)
            lines = oracles.json_lines(plain or b"")
            expect(len(lines) == len(file_records), len(lines), len(file_records))
            for (_, line), (_, record) in zip(lines, file_records, strict=True):
                expect(json.loads(line, parse_float=Decimal) == record, line, record)
        return Outcome.READ

    return check


_COLUMNS = {
    "objects": ("i integer", "n number", "s string", "d decimal(38,10)", "o object", "y any"),
    "columns": ("i integer", "n number", "s string", "d decimal(38,10)", "b boolean"),
}
_LAST = {"objects": ('{"a":[1,{"b":null}]}', "{}", "null"), "columns": ("true", "false", "null")}


@st.composite
def _part_file(draw: st.DrawFn) -> bytes:
    """Draw the lines of a part file."""
    kind = draw(st.sampled_from(sorted(_COLUMNS)))
    names = [column.split()[0] for column in _COLUMNS[kind]]
    cells = [*CORPUS["load cells"], _LAST[kind], ("1.50", '"x"', "[1e400]", "null")]
    row = st.tuples(*(st.sampled_from(some) for _, some in zip(names, cells, strict=False)))
    rows = draw(st.lists(row, min_size=1, max_size=4))
    fields = [
        [f'"{name}":{cell}' for name, cell in zip(names, cells, strict=True)] for cells in rows
    ]
    return "".join(f"{{{','.join(field)}}}\n" for field in fields).encode()


def _records(data: bytes) -> bytes:
    """Drop lines that are not records, because loads read only files of the encoder."""
    lines = []
    for line in data.split(b"\n"):
        with suppress(oracles.NotARecordError, oracles.Undecided):
            oracles.parse_record(line)
            lines.append(line + b"\n")
    return b"".join(lines)


LOAD_LINES = variants(few(_part_file()), BYTES, st.just(_records))


def open_load_lines(_folder: Path) -> Check:
    """Return the check that values are unchanged in columns, or that their row is reported."""
    readers = {}
    for kind, columns in _COLUMNS.items():
        schema = RecordSchema(tuple(Column.from_text(*column.split()) for column in columns))
        readers[kind] = schema, LineReader(schema)

    def check(lines: bytes) -> Outcome:
        if not lines:
            return Outcome.REFUSED
        schema, reader = readers["columns" if b'"b"' in lines else "objects"]
        try:
            batch = reader.read(lines)
        except IncompatibleValueError as error:
            expect(0 <= error.row <= lines.count(b"\n"), error.row)
            return Outcome.REFUSED
        _check_rows(lines, batch, schema)
        return Outcome.READ

    return check


def _check_rows(lines: bytes, batch: pa.RecordBatch, schema: RecordSchema) -> None:
    rows = batch.to_pylist()
    numbered = oracles.json_lines(lines)
    expect(len(rows) == len(numbered), len(rows), len(numbered))
    for (_, line), row in zip(numbered, rows, strict=True):
        try:
            written = dict(oracles.parse_record(line)[1])
        except oracles.Undecided:
            return
        expect(written.keys() <= set(schema.names), line)
        for column in schema.columns:
            value, expected = row[column.name], written.get(column.name)
            if column.type is ColumnType.NUMBER and expected == ("number", "-0"):
                expect(value == 0, column, value)  # an integer has no negative zero
                continue
            if column.type is ColumnType.NUMBER and expected is not None:
                expected = ("number", repr(float(expected[1])))  # the nearest double
            expect(oracles.is_same_json(value, expected, column), column, value, "was", expected)
