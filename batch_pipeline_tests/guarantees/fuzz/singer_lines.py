"""What taps say to the target: lines, SCHEMA, files of BATCH; and lines on their way to COPY."""

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

from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.load.part_blocks import LineReader
from batch_pipeline.load.types import IncompatibleValueError
from batch_pipeline.model.encoding import Compression, Format
from batch_pipeline.model.errors import ConfigurationError
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
from batch_pipeline.singer.target.batches import BatchFile, BatchLimits, records
from batch_pipeline.singer.target.batches import check as check_file
from batch_pipeline.singer.target.config import AnnouncedStream, stream_name
from batch_pipeline.singer.target.sink import CompiledValidator, scaffold
from batch_pipeline_tests.guarantees.fuzz import files, oracles
from batch_pipeline_tests.guarantees.fuzz.damage import (
    AS_IT_IS,
    BYTES,
    CORPUS,
    FAULTS,
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
    damaged_text(*(json.dumps(one, ensure_ascii=False) for one in _MESSAGES)),
)
SCHEMAS = damaged_json(*CORPUS["schemas"])


def open_messages(_folder: Path) -> Check:
    """What a line says is all that is taken from it."""
    reader = MessageReader()
    for name in ("orders", "ä"):
        given: Any = {"type": "SCHEMA", "stream": name, "schema": {"properties": {}}}
        reader.read(json.dumps(given).encode(), 1)

    def check(data: bytes) -> Outcome:
        line = data.replace(b"\n", b" ")
        try:
            message = reader.read(line, 7)
        except MessageError as error:
            expect(str(error).startswith("Line 7"), str(error))
            return Outcome.REFUSED
        # What is skipped may be no UTF-8; what is taken is compared, and has no such character.
        text = line.decode(errors="replace")
        given = json.loads(text, parse_float=Decimal)
        with suppress(oracles.Unclear):
            oracles.record(text.strip().encode())  # which refuses what has two meanings
        match message:
            case RecordMessage():
                expect(message.record == given["record"], message.record)
                expect(json.loads(message.text, parse_float=Decimal) == given["record"])
            case StateMessage():
                expect(json.loads(message.text, parse_float=Decimal) == given["value"])
            case SchemaMessage():
                expect(message.schema == given["schema"], message.schema)
            case BatchMessage():
                expect(list(message.manifest) == given["manifest"], message.manifest)
            case _:
                expect(message.version == given["version"], message.version)
        return Outcome.READ

    return check


def open_schemas(folder: Path) -> Check:
    """A SCHEMA is compiled, checks a record, and gives a stream file that can be read."""
    place = folder / "streams"
    place.mkdir(exist_ok=True)

    def check(data: bytes) -> Outcome:
        try:
            given = json.loads(data)
            name, schema, keys = str(given["stream"]), given["schema"], given["keys"]
            record = given["record"]
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
            made = scaffold(announced, stream, "file:///landing/a b")
        except ConfigurationError:
            return Outcome.REFUSED
        path = place / "defs.yaml"
        path.write_text(made.stream_file, encoding="utf-8")
        (place / made.schema_name).write_text(made.schema_file or "{}", encoding="utf-8")
        expect(read_stream_file(path).name == stream, "another stream", stream)
        (place / made.schema_name).unlink()
        return Outcome.READ

    return check


def _packed(lines: bytes, *, is_gzip: bool) -> bytes:
    return (gzip.compress if is_gzip else zstandard.compress)(lines)


# Files that a BATCH may name: lines, damaged before or after they are compressed, and parquet.
_PACKED = choices(_packed, is_gzip=st.booleans())
BATCH_FILES: st.SearchStrategy[Batch] = st.one_of(
    variants(few(files.JSONL), BYTES, AS_IT_IS),
    variants(few(files.JSONL), BYTES, _PACKED),
    variants(few(st.builds(_packed, files.JSONL, is_gzip=st.booleans())), FAULTS, AS_IT_IS),
    files.PARQUET,
)


def open_batch_files(folder: Path) -> Check:
    """Files of a BATCH are what it says, or are refused with their names."""
    path = folder / "input"
    file = BatchFile(location=path.as_uri(), path=path)
    limits = BatchLimits(max_line_bytes=2**20)

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
            found = list(records(message, file, limits))
        except MessageError as error:
            expect("input" in str(error), str(error))
            return Outcome.REFUSED
        expect(len(found) == checked.records, len(found), checked.records)
        if format_ is Format.JSONL:
            plain = oracles.unpacked(data)
            lines = oracles.json_lines(plain or b"")
            expect(len(lines) == len(found), len(lines), len(found))
            for (_, line), (_, record) in zip(lines, found, strict=True):
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
    """Draw lines of a part file."""
    kind = draw(st.sampled_from(sorted(_COLUMNS)))
    names = [column.split()[0] for column in _COLUMNS[kind]]
    cells = [*CORPUS["load cells"], _LAST[kind], ("1.50", '"x"', "[1e400]", "null")]
    row = st.tuples(*(st.sampled_from(some) for _, some in zip(names, cells, strict=False)))
    rows = draw(st.lists(row, min_size=1, max_size=4))
    fields = [[f'"{name}":{cell}' for name, cell in zip(names, one, strict=True)] for one in rows]
    return "".join(f"{{{','.join(one)}}}\n" for one in fields).encode()


def _records(data: bytes) -> bytes:
    """Drop lines that are no records: files that are loaded are what the encoder wrote."""
    lines = []
    for line in data.split(b"\n"):
        with suppress(oracles.NoRecordError, oracles.Unclear):
            oracles.record(line)
            lines.append(line + b"\n")
    return b"".join(lines)


LOAD_LINES = variants(few(_part_file()), BYTES, st.just(_records))


def open_load_lines(_folder: Path) -> Check:
    """Values go into columns as they are, or their record is named."""
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
            written = dict(oracles.record(line)[1])
        except oracles.Unclear:
            return
        expect(written.keys() <= set(schema.names), line)
        for column in schema.columns:
            value, was = row[column.name], written.get(column.name)
            if column.type is ColumnType.NUMBER and was == ("number", "-0"):
                expect(value == 0, column, value)  # a whole number, whose zeros are one
                continue
            if column.type is ColumnType.NUMBER and was is not None:
                was = ("number", repr(float(was[1])))  # as near as a double comes
            expect(oracles.is_same_json(value, was, column), column, value, "was", was)
