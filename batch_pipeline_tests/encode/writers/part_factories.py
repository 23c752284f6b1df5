"""Names, schemas and tables for tests of part files, and readers of the files on disk."""

import hashlib
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from batch_pipeline.encode.chunks import JsonRecords, Table
from batch_pipeline.encode.writers.json_lines import Lines, LineWriter
from batch_pipeline.encode.writers.outputs import open_output
from batch_pipeline.encode.writers.part_writer import PartNames
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.manifest import Manifest, PartFile
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import PartLimits
from batch_pipeline_tests.factories import manifest, stream

ALL_TYPES = {
    "empty": "unknown",
    "flag": "boolean",
    "count": "integer",
    "price": "decimal(12,2)",
    "ratio": "number",
    "name": "string",
    "octets": "binary",
    "day": "date",
    "clock": "time",
    "instant": "timestamp",
    "local": "local_timestamp",
    "nested": "object",
    "list": "array",
    "mixed": "any",
}
TYPED = {
    "empty": pa.array([None, None], pa.string()),
    "flag": pa.array([True, None]),
    "count": pa.array([-(2**63), None]),
    "price": pa.array([Decimal("1234567890.10"), None], pa.decimal128(12, 2)),
    "ratio": pa.array([0.1, None]),
    "name": pa.array(['"Zoë"', None]),
    "octets": pa.array([b"\x00\xff", None], pa.binary()),
    "day": pa.array([date(2026, 1, 31), None]),
    "clock": pa.array([time(12, 30, 0, 1), None], pa.time64("us")),
    "instant": pa.array([datetime(2026, 1, 31, 12, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    "local": pa.array([5, None], pa.timestamp("us")),
    "nested": pa.array(['{"b":null,"a":1.10}', None]),
    "list": pa.array(["[1,[]]", None]),
    "mixed": pa.array(['"x"', None]),
}
TYPED_VALUES = {name: column.to_pylist() for name, column in TYPED.items()}
JSON_COLUMNS = frozenset({"nested", "list", "mixed"})


def names(root: Path, suffix: str = "jsonl.gz") -> PartNames:
    """Return the names of the files of task 3."""
    return PartNames(
        root=to_uri(root), stem="orders-1", task=3, execution="00c0ffee", suffix=suffix
    )


def schema(**types: str) -> RecordSchema:
    """Return a schema of columns given as name=type."""
    return RecordSchema.from_json(list(types.items()))


def table(
    batch: pa.RecordBatch, *, text: bool = False, json: frozenset[str] = frozenset()
) -> Table:
    """Return the first records of a file as a chunk; if `text`, all columns are text cells."""
    count = batch.num_rows
    cells = frozenset(batch.schema.names) if text else frozenset()
    numbers = range(1, count + 1)
    return Table(batch=batch, line_numbers=numbers, record_numbers=numbers, text=cells, json=json)


def json_records(*lines: bytes) -> JsonRecords:
    """Return the first records of a file as a chunk."""
    numbers = range(1, len(lines) + 1)
    return JsonRecords(lines=list(lines), line_numbers=numbers, record_numbers=numbers)


def cells(**columns: list[str | None]) -> Table:
    arrays = {name: pa.array(column, pa.string()) for name, column in columns.items()}
    return table(pa.record_batch(arrays), text=True)


def typed() -> Table:
    """Return a table of two records with a column of each type; the second record has nulls."""
    return table(pa.record_batch(TYPED), json=JSON_COLUMNS)


def list_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def content(part: PartFile) -> bytes:
    """Read a part file and check its size and hash."""
    data = Path(to_path(part.uri)).read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (part.size_bytes, part.sha256)
    return data


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Limit the size of files that this process can write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


ENCODINGS = [
    Encoding(format=Format.JSONL, compression=Compression.GZIP),
    Encoding(format=Format.JSONL, compression=Compression.ZSTD),
    Encoding(format=Format.JSONL, compression=Compression.NONE),
    Encoding(format=Format.PARQUET, compression=Compression.SNAPPY),
    Encoding(format=Format.PARQUET, compression=Compression.GZIP),
    Encoding(format=Format.PARQUET, compression=Compression.ZSTD),
    Encoding(format=Format.PARQUET, compression=Compression.NONE),
    Encoding(format=Format.ARROW, compression=Compression.NONE),
    Encoding(format=Format.ARROW, compression=Compression.ZSTD),
    Encoding(format=Format.ORC, compression=Compression.ZSTD),
    Encoding(format=Format.ORC, compression=Compression.NONE),
]
GZIP = ENCODINGS[0]


def encoding_id(encoding: Encoding) -> str:
    return f"{encoding.format}-{encoding.compression}"


def published_table(root: Path, table: Table, known: RecordSchema, encoding: Encoding) -> Manifest:
    """Write a table to part files of an encoding and return their manifest."""
    root.mkdir(exist_ok=True)
    output = open_output(names(root, encoding.suffix), stream(encoding=encoding), known)
    output.write(table)
    return manifest(encoding=encoding, schema=known, part_files=output.close())


def published_lines(
    root: Path, *records: bytes, encoding: Encoding = GZIP, each: int = 2, **facts: Any
) -> Manifest:
    """Write lines of JSON to part files of at most `each` records and return their manifest."""
    root.mkdir(exist_ok=True)
    limits = PartLimits(max_records=each)
    writer = LineWriter(names(root, encoding.suffix), limits, encoding.compression)
    writer.append(Lines.of(records))
    return manifest(encoding=encoding, part_files=writer.close(), **facts)


def part_paths(published: Manifest) -> list[Path]:
    return [Path(to_path(part.uri)) for part in published.part_files]
