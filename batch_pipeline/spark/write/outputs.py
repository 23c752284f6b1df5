"""The two kinds of part files behind one face, and the quarantine beside them."""

from typing import Any, Protocol

import msgspec
import pyarrow as pa

from batch_pipeline.domain.encoding import Compression, Format
from batch_pipeline.domain.manifest import PartFile
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stream import PartLimits, Stream
from batch_pipeline.spark.read.csv_strict import BadText
from batch_pipeline.spark.read.jsonl_reader import JsonChunk
from batch_pipeline.spark.write.json_lines import Lines, json_lines
from batch_pipeline.spark.write.parquet_writer import (
    ParquetPartWriter,
    arrow_schema,
    batch_of_cells,
    batch_of_rows,
)
from batch_pipeline.spark.write.part_writer import LinePartWriter, PartNames, storage_errors

QUARANTINE_FOLDER = "quarantine"
MAX_RAW_BYTES = 64 * 2**10

_ENDLESS = PartLimits(max_records=2**62, max_bytes=2**62)


class Output(Protocol):
    """Where the records of a task go; all calls raise `StorageUnavailableError` when they fail."""

    def write_cells(self, cells: pa.RecordBatch) -> None:
        """Write text cells, whose form fits the schema."""
        ...

    def write_json(self, chunk: JsonChunk) -> None:
        """Write JSON records that fit the schema."""
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
        self._parts = LinePartWriter(names, stream.encoding.compression, stream.part_limits)

    def write_cells(self, cells: pa.RecordBatch) -> None:
        """Write text cells, whose form fits the schema."""
        for lines in json_lines(cells, self._schema):
            self._parts.append(lines)

    def write_json(self, chunk: JsonChunk) -> None:
        """Write JSON records that fit the schema."""
        self._parts.append(Lines.of(chunk.lines))

    def close(self) -> tuple[PartFile, ...]:
        """Finish the part files and give them in order."""
        return self._parts.close()

    def abort(self) -> None:
        """Remove all part files; raises nothing."""
        self._parts.abort()


class ParquetOutput:
    """Part files of parquet, with the columns of the schema."""

    def __init__(self, names: PartNames, stream: Stream, schema: RecordSchema) -> None:
        self._schema = schema
        self._parts = ParquetPartWriter(
            names, stream.encoding.compression, stream.part_limits, arrow_schema(schema)
        )

    def write_cells(self, cells: pa.RecordBatch) -> None:
        """Write text cells, whose form fits the schema."""
        self._parts.append(batch_of_cells(cells, self._schema))

    def write_json(self, chunk: JsonChunk) -> None:
        """Write JSON records that fit the schema."""
        self._parts.append(batch_of_rows(chunk.rows, self._schema))

    def close(self) -> tuple[PartFile, ...]:
        """Finish the part files and give them in order."""
        return self._parts.close()

    def abort(self) -> None:
        """Remove all part files; raises nothing."""
        self._parts.abort()


def open_output(names: PartNames, stream: Stream, schema: RecordSchema) -> Output:
    """Make the output for the stream's encoding; no file is created before the first record."""
    if stream.encoding.format is Format.PARQUET:
        return ParquetOutput(names, stream, schema)
    return JsonlOutput(names, stream, schema)


class Quarantine:
    """The file of bad records and bad files of a task, one JSON object a line.

    Keys: `item_id`, `location`, `line` (null for a whole file), `reason`, `raw` (at most 64 KiB,
    what is not UTF-8 as backslash escapes).
    """

    def __init__(self, names: PartNames) -> None:
        self._names = names
        self._parts = LinePartWriter(names, Compression.GZIP, _ENDLESS)

    def add(self, item_id: int, location: str, bad: BadText | str) -> None:
        """Keep a bad record, or the reason why a whole file is bad.

        Raises:
            StorageUnavailableError: it cannot be written.
        """
        with storage_errors(self._names.root):
            self._names.path(0).parent.mkdir(exist_ok=True)
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
