"""Outputs of a task: part files of lines or columns, batches in memory, the quarantine."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from batch_pipeline.encode.chunks import (
    Chunk,
    JsonRecords,
    MalformedRecord,
    Table,
    move_rows_to_bad,
)
from batch_pipeline.encode.writers.columns import (
    RowGroupWriter,
    TableBuffer,
    TableRows,
    batch_of_table,
    output_schema,
)
from batch_pipeline.encode.writers.json_lines import Lines, LineWriter, json_lines
from batch_pipeline.encode.writers.part_writer import PartNames, PartWriter
from batch_pipeline.model.encoding import Compression, Format
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import PartLimits, Stream
from batch_pipeline.storage.part_formats import table_codec

QUARANTINE_FOLDER = "quarantine"
MAX_RAW_BYTES = 64 * 2**10

_ENDLESS = PartLimits(max_records=2**62, max_bytes=2**62)


class Output:
    """The destination of a task's records; this base class writes no part files.

    Every method except `abort` can raise `StorageUnavailableError`.
    """

    def __init__(self, parts: PartWriter[Any] | None = None) -> None:
        self._parts = parts

    def without_unsupported(self, chunk: Chunk) -> Chunk:
        """Set aside the checked records with values that the format cannot hold."""
        return chunk

    def write(self, chunk: Chunk) -> None:
        """Write checked records, which fit the schema."""

    def close(self) -> tuple[PartFile, ...]:
        """Finish the part files and return them in order."""
        return () if self._parts is None else self._parts.close()

    def abort(self) -> None:
        """Delete all part files; raises nothing."""
        if self._parts is not None:
            self._parts.abort()


class JsonlOutput(Output):
    """Part files of JSON lines; the text of JSON records is not changed."""

    def __init__(self, names: PartNames, stream: Stream, schema: RecordSchema) -> None:
        encoding = stream.encoding
        self._writer = LineWriter(names, stream.part_limits, encoding.compression, encoding.level)
        super().__init__(self._writer)
        self._schema = schema
        self._on_nonfinite = stream.on_nonfinite

    def write(self, chunk: Chunk) -> None:
        """Write checked records, which fit the schema."""
        if isinstance(chunk, JsonRecords):
            self._writer.append(Lines.of(chunk.lines))
            return
        for lines in json_lines(chunk, self._schema, self._on_nonfinite):
            self._writer.append(lines)


class ArrowOutput(Output):
    """Records as Arrow batches of the schema, in memory."""

    def __init__(self, schema: RecordSchema, on_nonfinite: OnNonfinite) -> None:
        super().__init__()
        self._schema = schema
        self._arrow_schema = output_schema(schema, Format.PARQUET)
        self._on_nonfinite = on_nonfinite
        self._batches: list[pa.RecordBatch] = []

    def write(self, chunk: Chunk) -> None:
        """Add checked records, which fit the schema."""
        assert isinstance(chunk, Table)  # noqa: S101 - validation for columns returns tables
        schema, arrow_schema = self._schema, self._arrow_schema
        self._batches.append(batch_of_table(chunk, schema, arrow_schema, self._on_nonfinite))

    def take_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the collected batches and remove them."""
        batches, self._batches = self._batches, []
        yield from batches


class TableOutput(Output):
    """Part files of a columnar format, with the columns of the schema."""

    def __init__(self, names: PartNames, stream: Stream, schema: RecordSchema) -> None:
        self._writer = RowGroupWriter(names, stream.part_limits, stream.encoding)
        super().__init__(self._writer)
        self._schema = schema
        self._arrow_schema = output_schema(schema, stream.encoding.format)
        self._on_nonfinite = stream.on_nonfinite
        self._small = TableBuffer()
        self._codec = table_codec(stream.encoding.format)

    def without_unsupported(self, chunk: Chunk) -> Chunk:
        """Set aside the checked records with values that the format cannot hold."""
        assert isinstance(chunk, Table)  # noqa: S101 - validation for columns returns tables
        reasons = self._codec.unsupported_rows(chunk.batch, self._arrow_schema)
        return move_rows_to_bad(chunk, reasons)

    def write(self, chunk: Chunk) -> None:
        """Write checked records, which fit the schema."""
        assert isinstance(chunk, Table)  # noqa: S101 - validation for columns returns tables
        for table in self._small.add(chunk):
            self._append(table)

    def close(self) -> tuple[PartFile, ...]:
        """Finish the part files and return them in order."""
        for table in self._small.flush():
            self._append(table)
        return super().close()

    def _append(self, table: Table) -> None:
        batch = batch_of_table(table, self._schema, self._arrow_schema, self._on_nonfinite)
        self._writer.append(TableRows.of(batch))


def open_output(names: PartNames, stream: Stream, schema: RecordSchema) -> Output:
    """Return the output of the stream's encoding; the first record creates the first file."""
    if stream.encoding.part_format.is_columnar:
        return TableOutput(names, stream, schema)
    return JsonlOutput(names, stream, schema)


class Quarantine(LineWriter):
    """The file of a task's bad records and bad files, one JSON object per line.

    Keys: `item_id`, `location`, `line` (null for a whole file), `reason`, `raw` (at most 64 KiB,
    bytes that are not UTF-8 as backslash escapes).
    """

    def __init__(self, names: PartNames) -> None:
        super().__init__(names, _ENDLESS, Compression.GZIP)

    def add(self, item_id: int, location: str, bad: MalformedRecord | str) -> None:
        """Write a bad record, or the reason why a whole file is bad.

        Raises:
            StorageUnavailableError: the file cannot be written.
        """
        line: dict[str, Any] = {"item_id": item_id, "location": location}
        if isinstance(bad, MalformedRecord):
            raw = bad.raw[:MAX_RAW_BYTES].decode("utf-8", "backslashreplace")
            line |= {"line": bad.line, "reason": bad.reason, "raw": raw}
        else:
            line |= {"line": None, "reason": bad, "raw": None}
        self.append(Lines.of([msgspec.json.encode(line)]))
