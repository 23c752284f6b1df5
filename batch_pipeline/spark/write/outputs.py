"""The kinds of part files behind one face, and the quarantine beside them."""

from typing import Any, Protocol, assert_never

import msgspec

from batch_pipeline.domain.encoding import Compression, Format
from batch_pipeline.domain.manifest import PartFile
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stream import PartLimits, Stream
from batch_pipeline.spark.chunks import BadText, Chunk, JsonRecords, Table
from batch_pipeline.spark.write.columns import batch_of_table, output_schema
from batch_pipeline.spark.write.json_lines import json_lines
from batch_pipeline.spark.write.line_parts import Lines, line_writer
from batch_pipeline.spark.write.part_files import PartNames
from batch_pipeline.spark.write.small_tables import SmallTables
from batch_pipeline.spark.write.table_parts import table_writer
from batch_pipeline.spark.write.table_rows import TableRows

QUARANTINE_FOLDER = "quarantine"
MAX_RAW_BYTES = 64 * 2**10

_ENDLESS = PartLimits(max_records=2**62, max_bytes=2**62)


class Output(Protocol):
    """Where the records of a task go; all calls raise `StorageUnavailableError` when they fail."""

    def write(self, chunk: Chunk) -> None:
        """Write checked records, which fit the schema."""
        ...

    def close(self) -> tuple[PartFile, ...]:
        """Finish the part files and give them in order."""
        ...

    def abort(self) -> None:
        """Remove all part files; raises nothing."""
        ...


class JsonlOutput:
    """Part files of JSON lines; JSON records keep the text that they came with."""

    def __init__(self, names: PartNames, stream: Stream, schema: RecordSchema) -> None:
        self._schema = schema
        self._on_nonfinite = stream.on_nonfinite
        encoding = stream.encoding
        self._parts = line_writer(names, stream.part_limits, encoding.compression, encoding.level)

    def write(self, chunk: Chunk) -> None:
        """Write checked records, which fit the schema."""
        if isinstance(chunk, JsonRecords):
            self._parts.append(Lines.of(chunk.lines))
            return
        for lines in json_lines(chunk, self._schema, self._on_nonfinite):
            self._parts.append(lines)

    def close(self) -> tuple[PartFile, ...]:
        """Finish the part files and give them in order."""
        return self._parts.close()

    def abort(self) -> None:
        """Remove all part files; raises nothing."""
        self._parts.abort()


class TableOutput:
    """Part files of parquet or Arrow, with the columns of the schema."""

    def __init__(self, names: PartNames, stream: Stream, schema: RecordSchema) -> None:
        self._schema = schema
        self._arrow_schema = output_schema(schema, stream.encoding.format)
        self._on_nonfinite = stream.on_nonfinite
        self._parts = table_writer(names, stream.part_limits, stream.encoding)
        self._small = SmallTables()

    def write(self, chunk: Chunk) -> None:
        """Write checked records, which fit the schema."""
        if isinstance(chunk, JsonRecords):
            raise TypeError("an output with columns takes tables, and got JSON text")
        for table in self._small.gathered(chunk):
            self._append(table)

    def close(self) -> tuple[PartFile, ...]:
        """Finish the part files and give them in order."""
        for table in self._small.rest():
            self._append(table)
        return self._parts.close()

    def abort(self) -> None:
        """Remove all part files; raises nothing."""
        self._parts.abort()

    def _append(self, table: Table) -> None:
        batch = batch_of_table(table, self._schema, self._arrow_schema, self._on_nonfinite)
        self._parts.append(TableRows.of(batch))


def open_output(names: PartNames, stream: Stream, schema: RecordSchema) -> Output:
    """Make the output for the stream's encoding; no file is created before the first record."""
    match stream.encoding.format:
        case Format.JSONL:
            return JsonlOutput(names, stream, schema)
        case Format.PARQUET | Format.ARROW:
            return TableOutput(names, stream, schema)
        case _:
            assert_never(stream.encoding.format)


class Quarantine:
    """The file of bad records and bad files of a task, one JSON object a line.

    Keys: `item_id`, `location`, `line` (null for a whole file), `reason`, `raw` (at most 64 KiB,
    what is not UTF-8 as backslash escapes).
    """

    def __init__(self, names: PartNames) -> None:
        self._names = names
        self._has_folder = False
        self._parts = line_writer(names, _ENDLESS, Compression.GZIP)

    def add(self, item_id: int, location: str, bad: BadText | str) -> None:
        """Keep a bad record, or the reason why a whole file is bad.

        Raises:
            StorageUnavailableError: it cannot be written.
        """
        if not self._has_folder:  # there may be a million bad records
            self._names.make_folder()
            self._has_folder = True
        line: dict[str, Any] = {"item_id": item_id, "location": location}
        if isinstance(bad, BadText):
            raw = bad.raw[:MAX_RAW_BYTES].decode("utf-8", "backslashreplace")
            line |= {"line": bad.line, "reason": bad.reason, "raw": raw}
        else:
            line |= {"line": None, "reason": bad, "raw": None}
        self._parts.append(Lines.of([msgspec.json.encode(line)]))

    def close(self) -> tuple[PartFile, ...]:
        """Finish the file, if there is one."""
        return self._parts.close()

    def abort(self) -> None:
        """Remove the file, if there is one; raises nothing."""
        self._parts.abort()
